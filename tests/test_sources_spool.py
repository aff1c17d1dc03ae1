"""What cannot be cut as it lies: archives and standard input are spooled whole, the hub goes through its cache."""

import gzip
import hashlib
import io
import sys

import pyarrow as pa
import pytest
from source_helpers import found, numbered, plainly, refused, write_raw

from hermetic.data.sources import read_part, read_records, sha256_of_file, split_into_parts
from hermetic.errors import MissingDependencyError

ONE = b'{"a": 1}\n'


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def test_what_is_packed_is_unpacked_once_into_the_spool_under_its_checksum(tmp_path):
    path = write_raw(tmp_path / "a.jsonl.gz", gzip.compress(ONE * 3, mtime=0))
    spool = tmp_path / "spool"

    (first,) = found("a.jsonl.gz", spool=spool)
    (second,) = found("a.jsonl.gz", spool=spool)

    assert first == second
    assert [copy.name for copy in spool.iterdir()] == [f"{sha256_of_file(path)}.jsonl"]
    assert (first.path, first.name, first.size) == (str(spool / f"{first.sha256}.jsonl"), "a.jsonl.gz", 27)
    assert (spool / f"{first.sha256}.jsonl").read_bytes() == ONE * 3


def test_reading_a_packed_file_leaves_no_copy_behind(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    write_raw(tmp_path / "a.jsonl.gz", gzip.compress(ONE * 3))
    records = read_records("a.jsonl.gz")

    assert next(records).where == "a.jsonl.gz:1"
    assert len(list((tmp_path / "temporary").iterdir())) == 1
    assert numbered(records) == [(2, {"a": 1}), (3, {"a": 1})]
    assert list((tmp_path / "temporary").iterdir()) == []


def test_archives_of_several_members_are_read_to_the_end(tmp_path):
    write_raw(tmp_path / "a.jsonl.gz", gzip.compress(ONE) + gzip.compress(ONE))
    write_raw(tmp_path / "a.jsonl.zst", pa.compress(ONE, "zstd", asbytes=True) + pa.compress(ONE, "zstd", asbytes=True))

    assert plainly("a.jsonl.gz") == plainly("a.jsonl.zst") == [(1, {"a": 1}), (2, {"a": 1})]


@pytest.mark.parametrize("ending", [".gz", ".zst"])
def test_an_archive_that_ends_early_anywhere_or_is_none_leaves_an_error_and_no_copy(tmp_path, ending):
    pack = {".gz": gzip.compress, ".zst": lambda content: pa.compress(content, "zstd", asbytes=True)}[ending]
    whole = pack(b"".join(b'{"a": %d}\n' % (index * index) for index in range(50)))
    spool, name = tmp_path / "spool", f"a.jsonl{ending}"
    for content in [*(whole[:cut] for cut in range(1, len(whole))), whole + b"tail", b"no archive"]:
        write_raw(tmp_path / name, content)
        reason, message = refused(name, spool=spool)

        assert reason == "corrupt_file"
        assert message.startswith(f"{name} cannot be unpacked: ")
        assert message.endswith("; expected a complete archive; copy or compress it anew")
    assert list(spool.iterdir()) == []
    assert len(plainly(write_raw(tmp_path / name, whole))) == 50


def test_an_archive_of_nothing_is_empty(tmp_path):
    write_raw(tmp_path / "a.jsonl.gz", gzip.compress(b""))

    assert refused("a.jsonl.gz", spool=tmp_path / "spool")[0] == "empty_file"


def test_a_spool_without_room_is_an_error_that_does_not_blame_the_archive(tmp_path):
    write_raw(tmp_path / "a.jsonl.gz", gzip.compress(ONE))
    write_raw(tmp_path / "spool", b"")
    reason, message = refused("a.jsonl.gz", spool=tmp_path / "spool")

    assert reason == "spool"
    assert message == (
        f"a.jsonl.gz cannot be unpacked into {tmp_path / 'spool'}: File exists; expected room for its plain copy "
        "there; make room, or unpack the file yourself"
    )


def pipe_in(monkeypatch, content):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))


@pytest.mark.parametrize(("content", "kind"), [(ONE * 2, "jsonl"), (b'[{"a": 1}, {"a": 1}]', "json_array")])
def test_standard_input_is_kept_in_the_spool_and_the_same_bytes_give_the_same_file(
    tmp_path, monkeypatch, content, kind
):
    files = []
    for _ in range(2):
        pipe_in(monkeypatch, content)
        files += found("-", spool=tmp_path / "spool")
    (part,) = split_into_parts(files[:1])

    assert files[0] == files[1]
    assert (files[0].name, files[0].kind, files[0].sha256) == ("<stdin>", kind, hashlib.sha256(content).hexdigest())
    assert [record.where for record in read_part(files[0], part)] == ["<stdin>:1", "<stdin>:2"]
    assert len(list((tmp_path / "spool").iterdir())) == 1


def test_a_terminal_is_no_source(tmp_path, monkeypatch):
    pipe_in(monkeypatch, b"")
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)

    assert refused("-", spool=tmp_path) == ("missing", "<stdin> is a terminal, expected records; pipe a file in")


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """A folder that load_dataset takes in place of a repository of the hub, and a cache of its own."""
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    (tmp_path / "repository").mkdir()
    write_raw(
        tmp_path / "repository" / "train.jsonl", b'{"text": "a", "x": {"y": 1}}\n{"text": "b", "x": {"y": "z"}}\n'
    )
    return tmp_path / "repository"


def test_the_only_split_of_a_dataset_of_the_hub_is_read_with_the_values_that_datasets_shows(tmp_path, hub):
    import datasets

    (file,) = found(f"hub:{hub}", spool=tmp_path / "spool")
    (part,) = split_into_parts([file])
    shown = list(datasets.load_dataset(str(hub), split="train"))

    assert (file.kind, file.name) == ("arrow", f"hub:{hub}:train")
    assert [record.values for record in read_part(file, part)] == shown
    assert shown == [{"text": "a", "x": {"y": 1}}, {"text": "b", "x": {"y": "z"}}]
    assert found(f"hub:{hub}:train", spool=tmp_path) == [file]


def test_of_several_splits_of_the_hub_one_has_to_be_named(tmp_path, hub):
    write_raw(hub / "test.jsonl", b'{"text": "c", "x": {"y": 1}}\n')

    assert refused(f"hub:{hub}", spool=tmp_path) == (
        "split",
        f"hub:{hub} has several splits, expected one of train, test; name it as hub:{hub}:train",
    )
    assert refused(f"hub:{hub}:dev", spool=tmp_path) == (
        "split",
        f"hub:{hub}:dev has no split 'dev', expected one of train, test; name it as hub:{hub}:train",
    )
    assert [file.name for file in found(f"hub:{hub}:test", spool=tmp_path)] == [f"hub:{hub}:test"]


def test_a_dataset_that_cannot_be_loaded_is_an_error_with_its_cause(tmp_path, hub):
    (hub / "train.jsonl").unlink()
    reason, message = refused(f"hub:{hub}", spool=tmp_path)

    assert reason == "hub"
    assert message.startswith(f"hub:{hub} cannot be loaded: ")
    assert message.endswith("; check its name, the network and your access")


def test_the_hub_without_the_package_names_the_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)

    with pytest.raises(MissingDependencyError, match=r"pip install 'hermetic\[hf\]'"):
        found("hub:org/name", spool=tmp_path)
