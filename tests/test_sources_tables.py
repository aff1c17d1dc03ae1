"""Rows of Parquet, Arrow and datasets: every row once, and a damaged table is refused and never followed."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from source_helpers import WRITERS, found, numbered, outcome, plainly, read_all, write_raw

from hermetic.data.sources import read_part, read_records, split_into_parts
from hermetic.errors import SourceError

RECORDS = [{"text": f"text {number} é" * number, "input_ids": list(range(number))} for number in range(20)]
TABLES = ["a.parquet", "file.arrow", "stream.arrows"]


@pytest.mark.parametrize("name", TABLES)
def test_a_table_cut_off_anywhere_is_refused(tmp_path, name):
    WRITERS[name](tmp_path / name, RECORDS)
    whole = (tmp_path / name).read_bytes()
    for cut in range(0, len(whole), 47):
        write_raw(tmp_path / name, whole[:cut])
        with pytest.raises(SourceError) as caught:
            list(read_records(tmp_path / name))
        assert caught.value.reason in {"corrupt_file", "truncated_file"}
    assert numbered(read_records(write_raw(tmp_path / name, whole))) == list(enumerate(RECORDS, start=1))


@pytest.mark.parametrize("name", TABLES)
def test_damaged_bytes_end_in_an_error_or_a_bad_record_and_never_in_a_crash(tmp_path, name):
    WRITERS[name](tmp_path / name, RECORDS)
    whole, drawn, refused = (tmp_path / name).read_bytes(), np.random.default_rng(0), 0
    for _ in range(150):
        damaged = bytearray(whole)
        for _ in range(int(drawn.choice([1, 4, 20]))):
            damaged[int(drawn.integers(len(damaged)))] = int(drawn.integers(256))
        write_raw(tmp_path / name, bytes(damaged))
        try:
            list(read_all(tmp_path / name, part_bytes=300, spool=tmp_path))
        except SourceError:
            refused += 1
    assert refused > 50


def test_a_stream_whose_writer_never_closed_is_refused_though_all_that_it_holds_is_whole(tmp_path):
    WRITERS["stream.arrows"](tmp_path / "a.arrows", RECORDS)
    whole = (tmp_path / "a.arrows").read_bytes()
    path = write_raw(tmp_path / "a.arrows", whole[:-8])

    assert pa.ipc.open_stream(whole[:-8]).read_all().num_rows == len(RECORDS)
    with pytest.raises(SourceError) as caught:
        list(read_records(path))
    assert caught.value.reason == "truncated_file"
    assert str(caught.value) == (
        f"{path}: after the last batch of the Arrow stream come 0 bytes, expected the end marker that its writer "
        "leaves when it closes, and nothing else; write or copy the file anew"
    )


def test_two_streams_in_one_file_are_refused_for_only_the_first_would_be_read(tmp_path):
    WRITERS["stream.arrows"](tmp_path / "a.arrows", RECORDS)
    whole = (tmp_path / "a.arrows").read_bytes()
    path = write_raw(tmp_path / "a.arrows", whole * 2)

    assert pa.ipc.open_stream(whole * 2).read_all().num_rows == len(RECORDS)
    with pytest.raises(SourceError, match="after the last batch of the Arrow stream come") as caught:
        list(read_records(path))
    assert caught.value.reason == "trailing_content"


def test_a_text_that_is_not_utf8_is_one_bad_row(tmp_path):
    texts = pa.StringArray.from_buffers(3, pa.py_buffer(b"\0\0\0\0\1\0\0\0\2\0\0\0\3\0\0\0"), pa.py_buffer(b"a\xffc"))
    pq.write_table(pa.table({"text": texts}), tmp_path / "a.parquet")

    read = read_all(tmp_path / "a.parquet", part_bytes=10**6, spool=tmp_path)

    assert outcome(read) == [(1, {"text": "a"}), (2, "not_utf8"), (3, {"text": "c"})]
    assert str(read[1].error).startswith(f"{tmp_path / 'a.parquet'}:2: a text of the row is not UTF-8 (")
    assert str(read[1].error).endswith("; write the column anew")


def test_an_offset_that_points_outside_its_batch_is_refused_before_it_is_followed(tmp_path):
    WRITERS["file.arrow"](tmp_path / "a.arrow", [{"text": "abcdefgh", "input_ids": []}])
    whole = (tmp_path / "a.arrow").read_bytes()
    offset = b"\0\0\0\0\x08\0\0\0"
    assert whole.count(offset) >= 1
    path = write_raw(tmp_path / "a.arrow", whole.replace(offset, b"\0\0\0\0\x08\0\0\x70"))

    with pytest.raises(SourceError, match=r"a\.arrow cannot be read as a table after row 0: ") as caught:
        list(read_records(path))
    assert caught.value.reason == "corrupt_file"


def test_a_value_that_python_has_no_word_for_is_one_bad_row(tmp_path):
    times = pa.array([0, 2**62, 0], pa.timestamp("s"))
    content = pa.table({"text": ["a", "b", "c"], "at": times})
    with pa.ipc.new_file(str(tmp_path / "a.arrow"), content.schema) as writer:
        writer.write_table(content)

    first, bad, last = read_all(tmp_path / "a.arrow", part_bytes=10**6, spool=tmp_path)

    assert (first.values["text"], last.values["text"]) == ("a", "c")
    assert (bad.number, bad.error.reason) == (2, "malformed")
    assert f"{tmp_path / 'a.arrow'}:2: a value of the row cannot be read (" in str(bad.error)


@pytest.mark.parametrize(
    ("content", "inside"),
    [
        (pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["a", "a"]), "the table"),
        (
            pa.table({"m": pa.StructArray.from_arrays([pa.array([1]), pa.array([2])], names=["a", "a"])}),
            "the column 'm'",
        ),
    ],
    ids=["columns", "fields"],
)
def test_a_name_that_occurs_twice_is_refused_for_one_of_the_two_would_be_lost(tmp_path, content, inside):
    pq.write_table(content, tmp_path / "a.parquet")

    with pytest.raises(SourceError, match=f"{inside} has two columns named 'a', of which one would be lost") as caught:
        list(read_records(tmp_path / "a.parquet"))
    assert caught.value.reason == "duplicate_key"


def test_rows_of_nulls_are_rows(tmp_path):
    pq.write_table(pa.table({"text": pa.array([None, "a", None])}), tmp_path / "a.parquet")

    assert plainly(tmp_path / "a.parquet") == [(1, {"text": None}), (2, {"text": "a"}), (3, {"text": None})]


@pytest.mark.parametrize("name", [*TABLES, "dataset"])
def test_a_table_without_rows_is_empty(tmp_path, name):
    if name == "dataset":
        WRITERS[name](tmp_path / name, RECORDS[:2])
        for path in (tmp_path / name).glob("*.arrow"):
            WRITERS["stream.arrows"](path, [])
    else:
        WRITERS[name](tmp_path / name, [])

    with pytest.raises(SourceError, match=f"{name} is empty, expected at least one record") as caught:
        split_into_parts(found(tmp_path / name, spool=tmp_path))
    assert caught.value.reason == "empty_file"


def test_columns_of_json_are_the_values_that_they_stand_for(tmp_path):
    json = pa.ExtensionArray.from_storage(pa.json_(), pa.array(['{"a": [1, null]}', None, '{"b": 1, "b": 2}', "1"]))
    nested = pa.StructArray.from_arrays([json, pa.array([1, 2, 3, 4])], names=["j", "n"])
    content = pa.table({"j": json, "s": nested, "l": pa.array([[0], [], None, [1, 2]])})
    with pa.ipc.new_stream(str(tmp_path / "a.arrow"), content.schema) as writer:
        writer.write_table(content)

    read = read_all(tmp_path / "a.arrow", part_bytes=10**6, spool=tmp_path)

    assert outcome(read) == [
        (1, {"j": {"a": [1, None]}, "s": {"j": {"a": [1, None]}, "n": 1}, "l": [0]}),
        (2, {"j": None, "s": {"j": None, "n": 2}, "l": []}),
        (3, "malformed"),
        (4, {"j": 1, "s": {"j": 1, "n": 4}, "l": [1, 2]}),
    ]
    assert "the key 'b' occurs twice" in str(read[2].error)


def test_one_large_row_group_is_cut_into_at_most_sixteen_parts(tmp_path):
    content = pa.table({"text": ["x" * 1000] * 640, "n": list(range(640))})
    pq.write_table(content, tmp_path / "a.parquet", row_group_size=640, use_dictionary=False)
    (file,) = found(tmp_path / "a.parquet", spool=tmp_path)
    parts = split_into_parts([file], part_bytes=1000)

    assert [(part.start, part.stop) for part in parts] == [(40 * index, 40 * index + 40) for index in range(16)]
    assert [record.values["n"] for part in parts for record in read_part(file, part)] == list(range(640))


def test_small_row_groups_are_read_together_up_to_the_size_of_a_part(tmp_path):
    content = pa.table({"n": pa.array(range(100), pa.int64())})
    pq.write_table(content, tmp_path / "a.parquet", row_group_size=10, use_dictionary=False, compression="none")
    groups = pq.ParquetFile(tmp_path / "a.parquet").metadata
    sizes = {groups.row_group(index).total_byte_size for index in range(10)}
    (size,) = sizes

    parts = split_into_parts(found(tmp_path / "a.parquet", spool=tmp_path), part_bytes=3 * size)

    assert [(part.start, part.stop, part.first_number) for part in parts] == [
        (0, 30, 1),
        (30, 60, 31),
        (60, 90, 61),
        (90, 100, 91),
    ]


def test_a_table_that_has_fewer_rows_than_its_part_is_refused(tmp_path, monkeypatch):
    WRITERS["a.parquet"](tmp_path / "a.parquet", RECORDS)
    (file,) = found(tmp_path / "a.parquet", spool=tmp_path)
    (part,) = split_into_parts([file])
    monkeypatch.setattr("hermetic.data.sources.tables.rows_of", lambda batch: batch.to_pylist()[1:])

    with pytest.raises(SourceError, match=r"a\.parquet ends after row \d+, expected rows up to 20"):
        list(read_part(file, part))
