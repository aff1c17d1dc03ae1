"""Saved plans: exact round trips, all-or-nothing writes, and a typed error for every damaged file."""

import json
import os
import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hermetic.errors import ConservationError, PlanFileError
from hermetic.plan import Plan, plan_rows
from hermetic.plan.arguments import STRATEGIES

PLAN = plan_rows([5, 2, 3, 1], 4, on_overflow="split", max_documents_per_row=3, seed=11)


@pytest.fixture
def saved(tmp_path):
    path = tmp_path / "plan.npz"
    PLAN.save(path)
    return path


def rewrite(path, *, header=None, **arrays):
    """Write ``path`` again with some members replaced and a sound container around them."""
    with np.load(path) as archive:
        members = dict(archive)
    fields = json.loads(str(members["header"]))
    members["header"] = np.array(json.dumps(fields | (header or {})))
    np.savez(path, **(members | arrays))


@settings(deadline=None, max_examples=50)
@given(
    lengths=st.lists(st.integers(0, 12), max_size=20),
    strategy=st.sampled_from(STRATEGIES),
    policy=st.sampled_from(["truncate", "split", "drop"]),
    limit=st.none() | st.integers(1, 3),
    shuffle=st.just((None, 0)) | st.tuples(st.integers(0, 2**70), st.integers(0, 9)),
    align=st.sampled_from([1, 2, 3, 6]),
)
def test_a_saved_plan_loads_as_the_same_plan(tmp_path_factory, *, lengths, strategy, policy, limit, shuffle, align):
    seed, epoch = shuffle
    limit = None if strategy == "optimal" else limit
    options = {"strategy": strategy, "on_overflow": policy, "max_documents_per_row": limit, "align": align}
    plan = plan_rows(lengths, 6, seed=seed, epoch=epoch, **options)
    path = tmp_path_factory.mktemp("plans") / "plan.npz"
    plan.save(path)
    assert Plan.load(path) == plan


def test_a_plan_is_written_at_the_very_path_that_was_given(tmp_path):
    path = tmp_path / "no_suffix"
    PLAN.save(str(path))
    assert os.listdir(tmp_path) == ["no_suffix"]  # noqa: PTH208 - the names are the claim
    assert Plan.load(str(path)) == PLAN


def test_the_same_plan_gives_the_same_bytes(saved, tmp_path):
    PLAN.save(tmp_path / "again.npz")
    assert (tmp_path / "again.npz").read_bytes() == saved.read_bytes()


def test_a_saved_plan_has_the_permissions_of_any_new_file(saved, tmp_path):
    (tmp_path / "plain").write_bytes(b"")
    assert saved.stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_a_failed_save_leaves_the_old_plan_and_no_other_file(saved, monkeypatch):
    def fail(file, **_):
        file.write(b"half a pl")
        raise OSError(28, "No space left on device")

    before = saved.read_bytes()
    monkeypatch.setattr(np, "savez", fail)
    with pytest.raises(PlanFileError, match=r"cannot write a plan to .*plan\.npz: No space left on device"):
        plan_rows([1], 4).save(saved)
    assert saved.read_bytes() == before
    assert [path.name for path in saved.parent.iterdir()] == ["plan.npz"]


def test_saving_into_a_folder_that_does_not_exist_is_refused(tmp_path):
    with pytest.raises(PlanFileError, match=r"cannot write a plan to .*No such file.*choose a folder that exists"):
        PLAN.save(tmp_path / "nowhere" / "plan.npz")


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(PlanFileError, match=r"cannot read a plan from .*plan\.npz: No such file"):
        Plan.load(tmp_path / "plan.npz")


def test_a_folder_is_not_a_plan(tmp_path):
    with pytest.raises(PlanFileError, match=r"cannot read a plan from .*Is a directory"):
        Plan.load(tmp_path)


@pytest.mark.parametrize(
    "content",
    [b"", b"not a plan", b"PK\x03\x04 not a zip", pickle.dumps([1, 2]), json.dumps({"rows": []}).encode()],
    ids=["empty", "text", "broken zip", "pickle", "json"],
)
def test_a_foreign_file_is_refused(tmp_path, content):
    path = tmp_path / "plan.npz"
    path.write_bytes(content)
    with pytest.raises(PlanFileError, match=r"plan\.npz is not a plan, or it is damaged"):
        Plan.load(path)


def test_a_bare_array_file_is_refused(tmp_path):
    np.save(tmp_path / "array.npy", np.arange(3))
    with pytest.raises(PlanFileError, match=r"one bare array instead of an \.npz archive"):
        Plan.load(tmp_path / "array.npy")


def test_an_archive_of_something_else_is_refused(tmp_path):
    np.savez(tmp_path / "weights.npz", weight=np.arange(3))
    with pytest.raises(PlanFileError, match=r"is not a plan, or it is damaged \(KeyError: 'header'\)"):
        Plan.load(tmp_path / "weights.npz")


@pytest.mark.parametrize("header", ["[1]", '{"format": "another"}'])
def test_an_archive_with_another_header_is_refused(tmp_path, header):
    np.savez(tmp_path / "other.npz", header=np.array(header))
    with pytest.raises(PlanFileError, match=r"is an \.npz file but not a plan"):
        Plan.load(tmp_path / "other.npz")


def test_a_plan_of_another_format_version_is_refused(saved):
    rewrite(saved, header={"version": 1})
    with pytest.raises(PlanFileError, match=r"format version 1; this release of hermetic reads version 2"):
        Plan.load(saved)


def test_a_pickle_inside_a_plan_is_never_executed(saved, tmp_path):
    class Executed:
        def __reduce__(self):
            return (os.mkdir, (str(tmp_path / "executed"),))

    rewrite(saved, order=np.array([Executed()], object))
    with pytest.raises(PlanFileError, match="allow_pickle=False"):
        Plan.load(saved)
    assert not (tmp_path / "executed").exists()


@pytest.mark.parametrize(
    ("header", "message"),
    [
        ({"strategy": "first_fit"}, r"is damaged: strategy is 'first_fit'; expected one of"),
        ({"capacity": "4"}, r"is damaged: capacity is '4', a str"),
        ({"on_overflow": "drop"}, r"is damaged: fragments is a Fragments; with .*'drop' expected None"),
        ({"colour": "red"}, r"is damaged: .*unexpected keyword argument 'colour'"),
    ],
)
def test_a_header_that_makes_no_plan_is_refused(saved, header, message):
    rewrite(saved, header=header)
    with pytest.raises(PlanFileError, match=message):
        Plan.load(saved)


def test_an_array_of_another_kind_is_refused(saved):
    rewrite(saved, order=np.zeros(5))
    with pytest.raises(PlanFileError, match=r"is damaged: order must be .*float64"):
        Plan.load(saved)


def test_a_missing_array_is_refused(saved):
    with np.load(saved) as archive:
        members = {name: archive[name] for name in archive.files if name != "fragment_start"}
    np.savez(saved, **members)
    with pytest.raises(PlanFileError, match=r"is damaged: fragments\.start must be"):
        Plan.load(saved)


@pytest.mark.parametrize(
    ("tampered", "message"),
    [
        ({"order": np.array([0, 1, 2, 3, 3])}, r"plan\.npz: fragment 4 is in no row|is placed 2 times"),
        ({"lengths": np.array([5, 2, 3, 2])}, r"plan\.npz: fragment 4 .*does not reach the end"),
        ({"row_offsets": np.array([0, 5])}, r"plan\.npz: row 0 holds 11 tokens, more than the capacity 4"),
        ({"fragment_start": np.array([0, 3, 0, 0, 0])}, r"plan\.npz: fragment 1 .*it does not start where"),
        ({"header": {"max_documents_per_row": 1}}, r"more than max_documents_per_row 1"),
    ],
)
def test_a_tampered_plan_is_refused_when_it_is_loaded(saved, tampered, message):
    rewrite(saved, **tampered)
    with pytest.raises(ConservationError, match=message):
        Plan.load(saved)


def test_every_damaged_byte_is_refused_or_changes_nothing(saved):
    sound = saved.read_bytes()
    refused = 0
    for place in range(len(sound)):
        damaged = bytearray(sound)
        damaged[place] ^= 0xFF
        saved.write_bytes(damaged)
        try:
            assert Plan.load(saved) == PLAN
        except PlanFileError:
            refused += 1
    assert refused > len(sound) // 2


def test_every_shortened_file_is_refused(saved):
    sound = saved.read_bytes()
    for size in range(0, len(sound), 7):
        saved.write_bytes(sound[:size])
        with pytest.raises(PlanFileError, match="is not a plan, or it is damaged"):
            Plan.load(saved)
