"""A file that is one JSON array: each element is a record or is reported, and damage never swallows a file silently."""

import itertools
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from source_helpers import found, outcome, plainly, read_all, write_raw

from hermetic.data.sources import split_into_parts
from hermetic.data.sources.scan import deepest, find_separators, start_state
from hermetic.errors import SourceError


def array_of(tmp_path, content):
    return write_raw(tmp_path / "a.json", content)


def separators(content):
    state, places = start_state(), np.empty(len(content), np.int64)
    count = find_separators(np.frombuffer(content, np.uint8), state, places)
    return places[:count].tolist(), state.tolist()


def test_the_scanner_finds_the_commas_between_elements_and_the_bracket_that_closes():
    content = rb'{"a,]": [1, 2]}, "x\",]", 3 ] tail,'

    assert separators(content) == ([15, 24, 28], [0, 0, 0])


@given(
    texts=st.lists(st.text(st.sampled_from('a"\\{}[],')), min_size=1), cuts=st.lists(st.integers(0, 200), max_size=5)
)
def test_scanned_in_pieces_a_text_has_the_separators_that_it_has_as_a_whole(texts, cuts):
    content = b"".join(json.dumps({"a": [text]}).encode() + b"," for text in texts) + b"1]"
    state, places, pieced, edges = start_state(), np.empty(len(content), np.int64), [], sorted({0, *cuts, len(content)})
    for start, stop in itertools.pairwise(edges):
        piece = np.frombuffer(content[start:stop], np.uint8)
        pieced += (places[: find_separators(piece, state, places)] + start).tolist()

    assert (pieced, state.tolist()) == separators(content)
    assert len(pieced) == len(texts) + 1


@given(
    value=st.recursive(
        st.text(st.sampled_from('"\\{}[]')), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)
    )
)
def test_the_depth_of_a_text_is_that_of_its_value(value):
    def depth(of):
        inner = of.values() if isinstance(of, dict) else of if isinstance(of, list) else None
        return 0 if inner is None else 1 + max(map(depth, inner), default=0)

    assert deepest(np.frombuffer(json.dumps(value).encode(), np.uint8)) == depth(value)


@pytest.mark.parametrize("content", [b"[]", b" [ \n ] \n", b"\xef\xbb\xbf[]"])
def test_an_array_without_elements_is_empty(tmp_path, content):
    path = array_of(tmp_path, content)

    with pytest.raises(SourceError, match=r"a\.json is empty, expected at least one record") as caught:
        read_all(path, part_bytes=1, spool=tmp_path)
    assert caught.value.reason == "empty_file"


@pytest.mark.parametrize("part_bytes", [1, 10**6])
@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b'[{"a": 1}, 2, {"a": 3}]', [(1, {"a": 1}), (2, "not_an_object"), (3, {"a": 3})]),
        (b'[{"a": 1},, {"a": 3}]', [(1, {"a": 1}), (2, "malformed"), (3, {"a": 3})]),
        (b'[{"a": 1}, ]', [(1, {"a": 1}), (2, "malformed")]),
        (b'[,{"a": 2}]', [(1, "malformed"), (2, {"a": 2})]),
        (b'[{"a": 1} {"a": 2}, {"a": 3}]', [(1, "malformed"), (2, {"a": 3})]),
        (b'[{"a": 1}}, {"a": 2}]', [(1, "malformed"), (2, {"a": 2})]),
        (b'[{"a": [1}]}, {"a": 2}]', [(1, "malformed"), (2, {"a": 2})]),
        (b'[{"a": 1, "a": 2}, {"a": 3}]', [(1, "duplicate_key"), (2, {"a": 3})]),
        (b'[{"a": "\xff"}, {"a": 2}]', [(1, "not_utf8"), (2, {"a": 2})]),
        (b'[{"a": "\0"}, {"a": 2}]', [(1, "nul_bytes"), (2, {"a": 2})]),
        (b'[[{"a": 1}, {"a": 2}]]', [(1, "not_an_object")]),
    ],
)
def test_an_element_that_is_no_record_is_one_bad_record_and_the_others_are_read(
    tmp_path, content, expected, part_bytes
):
    path = array_of(tmp_path, content)

    assert outcome(read_all(path, part_bytes=part_bytes, spool=tmp_path)) == expected


def test_what_is_wrong_with_an_element_names_its_number_and_its_byte(tmp_path):
    path = array_of(tmp_path, b'[{"a": 1},\n{"b" 2},\n,{"c": 3}]')

    _, second, third, _ = read_all(path, part_bytes=1, spool=tmp_path)

    assert str(second.error) == (
        f"{path}:2 (from byte 11): malformed JSON, Expecting ':' delimiter at character 7 of the element, "
        "near '{\"b\" 2}'; expected one complete JSON object; repair or remove the element"
    )
    assert str(third.error) == (
        f"{path}:3: nothing stands before the separator at byte 21, expected an object; remove the comma"
    )


WHOLE = b'[{"a": 1}, {"a": [{"b": "x,]\\""}]},\n{"c": 3}]'
ENDS = (9, WHOLE.index(b"]}") + 2, len(WHOLE) - 1)
"""Where the elements of WHOLE end."""


@pytest.mark.parametrize("part_bytes", [1, 10**6])
@pytest.mark.parametrize("cut", range(1, len(WHOLE)))
def test_wherever_an_array_is_cut_off_its_whole_elements_are_read_and_the_torn_one_is_reported(
    tmp_path, cut, part_bytes
):
    path = array_of(tmp_path, WHOLE[:cut])
    whole = [(index + 1, value) for index, value in enumerate(json.loads(WHOLE)) if cut >= ENDS[index]]

    *read, torn = read_all(path, part_bytes=part_bytes, spool=tmp_path)

    assert outcome(read) == whole
    assert outcome([torn]) == [(len(whole) + 1, "truncated_file")]
    assert (
        f"{path}:{len(whole) + 1}: the file ends at byte {cut} before its array does; its last element begins at byte"
        in str(torn.error)
    )
    assert plainly(array_of(tmp_path, WHOLE)) == [(1, {"a": 1}), (2, {"a": [{"b": 'x,]"'}]}), (3, {"c": 3})]


@pytest.mark.parametrize(
    ("content", "number"),
    [
        (b'[{"a": "x}, {"a": "y"}, {"a": "z"}]', 1),
        (b'[{"a": 1}, {"a": {"b": 2}, {"c": 3}, {"d": 4}]', 2),
        (b'[{"a": 1}, {"a": [1, 2}, {"c": 3}, {"d": 4}]', 2),
        (b'[{"a": 1}, {"a" 2}', 2),
        (b'[{"a": 1}, {"a": "\xff', 2),
        (b'[{"a": 1}, {"a": ' + b"[" * 1000, 2),
    ],
    ids=["quote", "brace", "bracket", "colon", "UTF-8", "depth"],
)
def test_damage_that_hides_where_elements_end_refuses_the_file_instead_of_passing_for_one_bad_record(
    tmp_path, content, number
):
    path = array_of(tmp_path, content)

    with pytest.raises(SourceError, match="the end of this element, which begins at byte") as caught:
        split_into_parts(found(path, spool=tmp_path))
    assert caught.value.reason == "endless_element"
    assert str(caught.value).startswith(f"{path}:{number}: ")


def test_a_torn_element_longer_than_a_record_may_be_refuses_the_file(tmp_path, monkeypatch):
    monkeypatch.setattr("hermetic.data.sources.json_array.MAX_RECORD_BYTES", 100)
    short, long = (array_of(tmp_path, b'[{"a": 1},{"a": "' + b"x" * size).read_bytes() for size in (93, 94))

    assert outcome(read_all(array_of(tmp_path, short), part_bytes=1, spool=tmp_path))[1] == (2, "truncated_file")
    with pytest.raises(SourceError, match=r"a\.json:2: the end of this element.* in the 101 bytes"):
        read_all(array_of(tmp_path, long), part_bytes=1, spool=tmp_path)


@pytest.mark.parametrize("rest", [b'[{"b": 2}]', b', {"b": 2}]', b"}", b"x"])
def test_whatever_follows_an_array_refuses_the_file_for_none_of_it_would_be_read(tmp_path, rest):
    path = array_of(tmp_path, b'[{"a": 1}]\n' + rest)

    with pytest.raises(SourceError, match=r"the array ends at byte 10 of \d+ and b'.' follows at byte 12") as caught:
        split_into_parts(found(path, spool=tmp_path))
    assert caught.value.reason == "trailing_content"


def test_an_element_that_spans_several_blocks_is_whole(tmp_path):
    records = [{"a": "x" * (3 << 20)}, {"a": '"\\' * (1 << 20)}, {"a": 3}]
    path = array_of(tmp_path, json.dumps(records).encode())

    assert outcome(read_all(path, part_bytes=1, spool=tmp_path)) == list(enumerate(records, start=1))
