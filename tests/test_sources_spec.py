"""What a user writes for a source is a place and a weight, or an error."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hermetic.data.sources import SourceSpec, parse_source
from hermetic.errors import SourceError


@pytest.mark.parametrize(
    ("text", "location", "weight"),
    [
        ("x.jsonl", "x.jsonl", 1.0),
        ("x.jsonl@0.5", "x.jsonl", 0.5),
        ("x.jsonl@2", "x.jsonl", 2.0),
        ("x.jsonl@1e-3", "x.jsonl", 0.001),
        ("a b/ä@home.jsonl", "a b/ä@home.jsonl", 1.0),
        ("a@b@2.5", "a@b", 2.5),
        ("data/*.jsonl@3", "data/*.jsonl", 3.0),
        ("hub:org/name:train@0.25", "hub:org/name:train", 0.25),
        ("-", "-", 1.0),
        ("-@2", "-", 2.0),
        ("x@1_0", "x@1_0", 1.0),
        ("x@٣", "x@٣", 1.0),
        ("x@ 2", "x@ 2", 1.0),
        ("x@", "x@", 1.0),
    ],
)
def test_a_number_after_the_last_at_sign_is_a_weight_and_nothing_else_is(text, location, weight):
    assert parse_source(text) == SourceSpec(location=location, weight=weight)


@given(weight=st.floats(min_value=0, exclude_min=True, allow_infinity=False))
def test_every_finite_weight_above_zero_comes_back_exactly(weight):
    assert parse_source(f"chats.jsonl@{weight}") == SourceSpec(location="chats.jsonl", weight=weight)


def test_a_path_that_exists_wins_over_a_weight(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x@0.5").touch()
    (tmp_path / "dangling@2").symlink_to("nowhere")

    assert parse_source("x@0.5") == SourceSpec(location="x@0.5", weight=1.0)
    assert parse_source("dangling@2") == SourceSpec(location="dangling@2", weight=1.0)
    assert parse_source("x@0.5@2") == SourceSpec(location="x@0.5", weight=2.0)


@pytest.mark.parametrize("weight", ["0", "-1", "-0.0", "nan", "inf", "-inf", "1e999"])
def test_a_weight_that_takes_no_definite_number_of_documents_is_an_error(weight):
    with pytest.raises(SourceError) as caught:
        parse_source(f"x.jsonl@{weight}")

    assert caught.value.reason == "weight"
    assert str(caught.value) == (
        f"the source 'x.jsonl@{weight}' has the weight {weight}, expected a finite number above 0; "
        "leave the source out to take none of its documents"
    )


@pytest.mark.parametrize("text", ["", "@2"])
def test_a_source_without_a_location_is_an_error(text):
    with pytest.raises(SourceError, match=rf"the source '{text}' has no location, expected a path; name a file"):
        parse_source(text)
