"""Which files sources stand for: in a fixed order, once each, fingerprinted, unpacked where need be, or an error."""

import gzip
import hashlib
import os

import pytest
from source_helpers import WRITERS, found, plainly, refused, write_raw

from hermetic.data.sources import SourceSpec, find_files, read_part, split_into_parts
from hermetic.errors import SourceError

RECORDS = [{"text": "a", "input_ids": [1]}, {"text": "b", "input_ids": []}]
ONE = b'{"a": 1}\n'


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def test_a_file_is_named_as_the_user_wrote_it_opened_by_its_full_path_and_known_by_its_bytes(tmp_path):
    write_raw(tmp_path / "a b@home ä.jsonl", ONE)

    (file,) = found("a b@home ä.jsonl", spool=tmp_path / "spool")
    (part,) = split_into_parts([file])
    state = (tmp_path / "a b@home ä.jsonl").stat()

    assert (file.source, file.name, file.kind) == (0, "a b@home ä.jsonl", "jsonl")
    assert file.path == str(tmp_path / "a b@home ä.jsonl")
    assert (file.sha256, file.size, file.mtime_ns) == (hashlib.sha256(ONE).hexdigest(), 9, state.st_mtime_ns)
    assert [record.where for record in read_part(file, part)] == ["a b@home ä.jsonl:1"]
    assert not (tmp_path / "spool").exists()


def test_files_come_in_the_order_of_sources_and_those_of_a_glob_in_the_order_of_their_names(tmp_path):
    for name in ("z.jsonl", "b/10.jsonl", "b/9.jsonl", "b/c/1.jsonl"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        write_raw(tmp_path / name, ONE)

    files = found("z.jsonl", "b/**/*.jsonl", spool=tmp_path)

    assert [(file.source, file.name) for file in files] == [
        (0, "z.jsonl"),
        (1, "b/10.jsonl"),
        (1, "b/9.jsonl"),
        (1, "b/c/1.jsonl"),
    ]


def test_a_path_that_exists_is_no_pattern(tmp_path):
    write_raw(tmp_path / "[ab].jsonl", ONE)
    write_raw(tmp_path / "a.jsonl", ONE)

    assert [file.name for file in found("[ab].jsonl", spool=tmp_path)] == ["[ab].jsonl"]


def test_a_link_is_read_as_what_it_points_to(tmp_path):
    write_raw(tmp_path / "a.jsonl", ONE)
    (tmp_path / "link.jsonl").symlink_to("a.jsonl")

    assert plainly("link.jsonl") == [(1, {"a": 1})]


@pytest.mark.parametrize("name", WRITERS)
def test_every_kind_of_file_has_the_checksum_of_its_bytes_as_they_lie(tmp_path, name):
    WRITERS[name](tmp_path / name, RECORDS)
    (file,) = found(name, spool=tmp_path / "spool")
    lying = sorted((tmp_path / name).glob("*.arrow")) if name == "dataset" else [tmp_path / name]

    assert file.sha256 == hashlib.sha256(b"".join(path.read_bytes() for path in lying)).hexdigest()
    assert (
        file.kind
        == {
            "a.jsonl": "jsonl",
            "blank.ndjson": "jsonl",
            "lines.json": "jsonl",
            "array.json": "json_array",
            "indented.json": "json_array",
            "a.parquet": "parquet",
            "file.arrow": "arrow",
            "stream.arrows": "arrow",
            "dataset": "dataset",
            "a.jsonl.gz": "jsonl",
            "array.json.zst": "json_array",
            "a.parquet.gz": "parquet",
        }[name]
    )


def test_progress_counts_every_byte_of_every_file(tmp_path):
    sizes = [3 << 20, 10]
    for index, size in enumerate(sizes):
        write_raw(tmp_path / f"{index}.jsonl", b'{"a": 1}'.ljust(size))
    seen = []

    find_files([SourceSpec(location="*.jsonl")], spool=tmp_path, on_progress=seen.append)

    assert seen == [1 << 20, 2 << 20, 3 << 20, (3 << 20) + 10]


FOLDER = (
    "folder is a folder, expected a file or a folder that save_to_disk of datasets wrote; "
    "name its files, as in 'folder/*.jsonl'"
)
CSV = (
    "chats.csv ends in '.csv', expected one of .jsonl, .ndjson, .json, .parquet, .arrow, .arrows, perhaps with .gz or "
    ".zst behind it; convert it to JSONL (one JSON object a line) or Parquet"
)


@pytest.mark.parametrize(
    ("location", "reason", "message"),
    [
        ("nowhere.jsonl", "missing", "nowhere.jsonl does not exist, expected a file; check the path"),
        ("*.jsonl", "no_match", "*.jsonl matches no file, expected at least one; check the pattern"),
        ("folder", "folder", FOLDER),
        ("chats.csv", "unknown_kind", CSV),
        ("pipe.jsonl", "not_a_file", "pipe.jsonl is not a regular file; pipe it in and name it '-'"),
        (
            "empty.jsonl",
            "empty_file",
            "empty.jsonl is empty, expected at least one record; check how the file was written",
        ),
        (
            "blank.json",
            "empty_file",
            "blank.json is empty, expected at least one record; check how the file was written",
        ),
        ("packed.jsonl", "unknown_kind", "packed.jsonl is a gzip archive, expected JSON; add .gz to its name"),
        ("wide.jsonl", "unknown_kind", "wide.jsonl is UTF-16, expected JSON; save it as UTF-8"),
        ("wrong.json", "unknown_kind", "wrong.json is Parquet, expected JSON; add .parquet to its name"),
        (
            "bad\udcff.jsonl",
            "name",
            "the name 'bad\\udcff.jsonl' is not valid Unicode, so no manifest can hold it; rename the file",
        ),
        ("hub:", "missing", "hub: names no dataset, expected hub:org/name or hub:org/name:split"),
    ],
)
def test_what_is_no_source_is_an_error_that_says_what_it_is_and_the_way_out(tmp_path, location, reason, message):
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe.jsonl")
    write_raw(tmp_path / "chats.csv", b"a\n")
    write_raw(tmp_path / "empty.jsonl" if location != "*.jsonl" else tmp_path / "empty", b"")
    write_raw(tmp_path / "blank.json", b"\xef\xbb\xbf \n\r\n\t")
    write_raw(tmp_path / "packed.jsonl", gzip.compress(ONE))
    write_raw(tmp_path / "wide.jsonl", ONE.decode().encode("utf-16"))
    WRITERS["a.parquet"](tmp_path / "wrong.json", RECORDS)
    for path in tmp_path.glob("*.jsonl") if location == "*.jsonl" else ():
        path.unlink()

    assert refused(location, spool=tmp_path / "spool") == (reason, message)


def test_no_source_at_all_is_an_error(tmp_path):
    assert refused(spool=tmp_path) == ("missing", "no source is named, expected at least one; name a file")


def test_a_file_that_cannot_be_opened_is_an_error(tmp_path, monkeypatch):
    write_raw(tmp_path / "a.jsonl", ONE)

    def deny(*_, **__):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("pathlib.Path.open", deny)

    assert refused("a.jsonl", spool=tmp_path) == (
        "unreadable",
        "a.jsonl cannot be read: Permission denied; check its permissions and its disk",
    )


def test_a_file_that_changes_while_it_is_fingerprinted_is_an_error(tmp_path):
    path = write_raw(tmp_path / "a.jsonl", ONE)

    with pytest.raises(SourceError, match="changed while it was fingerprinted, 9 bytes before and 18 after") as caught:
        find_files([SourceSpec(location="a.jsonl")], spool=tmp_path, on_progress=lambda _: path.write_bytes(ONE * 2))
    assert caught.value.reason == "changed_file"


def same_name(_):
    return "a.jsonl", "a.jsonl", "a.jsonl"


def other_path(_):
    return "a.jsonl", "./a.jsonl", "a.jsonl and ./a.jsonl"


def glob(_):
    return "*.jsonl", "a.jsonl", "a.jsonl"


def symbolic_link(tmp_path):
    (tmp_path / "s.jsonl").symlink_to("a.jsonl")
    return "a.jsonl", "s.jsonl", "a.jsonl and s.jsonl"


def hard_link(tmp_path):
    os.link(tmp_path / "a.jsonl", tmp_path / "h.jsonl")
    return "a.jsonl", "h.jsonl", "a.jsonl and h.jsonl"


def inside_a_dataset(tmp_path):
    WRITERS["dataset"](tmp_path / "ds", RECORDS)
    return "ds", "ds/data-00000-of-00002.arrow", "ds and ds/data-00000-of-00002.arrow"


def stdin_twice(_):
    return "-", "-", "<stdin>"


@pytest.mark.parametrize(
    "naming", [same_name, other_path, glob, symbolic_link, hard_link, inside_a_dataset, stdin_twice]
)
def test_a_file_that_is_named_twice_under_whatever_name_is_an_error(tmp_path, naming):
    write_raw(tmp_path / "a.jsonl", ONE)
    first, second, both = naming(tmp_path)

    reason, message = refused(first, second, spool=tmp_path / "spool")

    assert reason == "duplicate_source"
    assert message == (
        f"{both} is one file named twice, so its documents would be packed twice; "
        "name it once, with the weight @2 if that is meant"
    )


def test_a_copy_of_a_file_is_another_file(tmp_path):
    for name in ("a.jsonl", "b.jsonl"):
        write_raw(tmp_path / name, ONE)

    assert len(found("a.jsonl", "b.jsonl", spool=tmp_path)) == 2


def test_a_glob_leaves_no_folder_out_that_it_matches_unless_it_matches_what_lies_in_it(tmp_path):
    WRITERS["dataset"](tmp_path / "data" / "ds", RECORDS)
    (tmp_path / "data" / "deep").mkdir()
    write_raw(tmp_path / "data" / "deep" / "a.jsonl", ONE)

    assert [file.name for file in found("data/**/*.jsonl", spool=tmp_path)] == ["data/deep/a.jsonl"]
    assert [file.kind for file in found("data/d[s]", spool=tmp_path)] == ["dataset"]
    assert refused("data/*", spool=tmp_path)[1].startswith("data/deep is a folder, expected a file")


def test_of_several_splits_one_has_to_be_named(tmp_path):
    import datasets

    dataset = datasets.Dataset.from_list(RECORDS)
    datasets.DatasetDict(train=dataset, test=dataset).save_to_disk(str(tmp_path / "both"))

    assert refused("both", spool=tmp_path) == (
        "folder",
        "both is a folder of several splits (test, train), expected one; name it as both/test",
    )
    assert plainly("both/train") == list(enumerate(RECORDS, start=1))


@pytest.mark.parametrize("state", ["{}", "no JSON", '{"_data_files": [3]}', '{"_data_files": []}', "[]"])
def test_a_folder_of_datasets_without_a_list_of_its_files_is_an_error(tmp_path, state):
    WRITERS["dataset"](tmp_path / "ds", RECORDS)
    (tmp_path / "ds" / "state.json").write_text(state)
    reason, message = refused("ds", spool=tmp_path)

    assert reason == ("empty_file" if state == '{"_data_files": []}' else "corrupt_file")
    assert message.startswith("ds")


@pytest.mark.parametrize("name", ["../other/data-00000-of-00002.arrow", "/etc/passwd", "..", "..\\\\b", ""])
def test_a_folder_of_datasets_that_names_a_file_outside_of_itself_is_refused(tmp_path, name):
    for folder in ("ds", "other"):
        WRITERS["dataset"](tmp_path / folder, RECORDS)
    (tmp_path / "ds" / "state.json").write_text(f'{{"_data_files": [{{"filename": "{name}"}}]}}')
    reason, message = refused("ds", spool=tmp_path)

    assert reason == "corrupt_file"
    assert "expected names of files in the folder itself" in message


def test_a_data_file_that_is_missing_from_a_folder_of_datasets_is_an_error(tmp_path):
    WRITERS["dataset"](tmp_path / "ds", RECORDS)
    (tmp_path / "ds" / "data-00001-of-00002.arrow").unlink()

    assert refused("ds", spool=tmp_path)[0] == "missing"


def test_all_kinds_of_files_are_read_in_one_run(tmp_path):
    (tmp_path / "data").mkdir()
    for name, write in WRITERS.items():
        write(tmp_path / "data" / name, RECORDS)
    names = [f"data/{name}" for name in WRITERS]
    files = found(*names, spool=tmp_path / "spool")
    parts = split_into_parts(files)

    assert [file.name for file in files] == names
    assert [part.file for part in parts] == list(range(len(files)))
    for file, part in zip(files, parts, strict=True):
        read = [(record.where, record.values) for record in read_part(file, part)]
        first = 2 if file.name.endswith("ndjson") else 1  # its second record stands behind a blank line
        assert read == [(f"{file.name}:1", RECORDS[0]), (f"{file.name}:{first + 1}", RECORDS[1])]
