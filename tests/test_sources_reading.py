"""Reading JSONL and Parquet: every record with its place, or an error that says where and why."""

import hashlib
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hermetic.data.sources import read_records, sha256_of_file
from hermetic.errors import SourceError

JSON_OBJECTS = st.dictionaries(
    st.text(st.characters(codec="utf-8")),
    st.none() | st.booleans() | st.integers() | st.text(st.characters(codec="utf-8")) | st.lists(st.integers()),
)


def numbered(path):
    return [(record.number, record.values) for record in read_records(path)]


@given(records=st.lists(JSON_OBJECTS, min_size=1))
@settings(max_examples=100)
def test_jsonl_gives_back_every_object_in_order_with_its_line(tmp_path_factory, records):
    path = tmp_path_factory.mktemp("jsonl") / "any.jsonl"
    path.write_text("".join(f"{json.dumps(record, ensure_ascii=False)}\n" for record in records), "utf-8")

    assert numbered(path) == list(enumerate(records, start=1))


def test_lines_of_white_space_hold_no_record_but_count_as_lines(tmp_path):
    path = tmp_path / "gaps.json"
    path.write_text('\n{"text": "a"}\n  \n{"text": "b"}')

    assert numbered(path) == [(2, {"text": "a"}), (4, {"text": "b"})]


def test_a_record_names_its_file_and_line(tmp_path):
    path = tmp_path / "one.jsonl"
    path.write_text('{"text": "a"}\n')

    assert next(read_records(path)).where == f"{path}:1"


def test_parquet_gives_rows_across_row_groups_with_their_numbers(tmp_path):
    path = tmp_path / "rows.parquet"
    pq.write_table(pa.table({"text": ["a", None, "c"], "input_ids": [None, [1, 2], None]}), path, row_group_size=2)

    assert numbered(path) == [
        (1, {"text": "a", "input_ids": None}),
        (2, {"text": None, "input_ids": [1, 2]}),
        (3, {"text": "c", "input_ids": None}),
    ]


def test_reading_is_lazy_so_the_lines_before_a_malformed_one_arrive(tmp_path):
    path = tmp_path / "late.jsonl"
    path.write_text('{"text": "a"}\n{"text": "b"}\n{oops}\n')
    records = read_records(path)

    assert [next(records).number, next(records).number] == [1, 2]
    with pytest.raises(SourceError, match=r"late\.jsonl:3: malformed JSON"):
        next(records)


def test_a_missing_file_is_an_error(tmp_path):
    with pytest.raises(SourceError, match=r"nowhere\.jsonl does not exist, expected a file; check the path"):
        read_records(tmp_path / "nowhere.jsonl")


def test_a_folder_is_not_a_source(tmp_path):
    folder = tmp_path / "folder.jsonl"
    folder.mkdir()

    with pytest.raises(SourceError, match=r"folder\.jsonl is a folder"):
        read_records(folder)


def test_another_ending_is_an_error_that_lists_the_known_ones(tmp_path):
    path = tmp_path / "chats.csv"
    path.write_text("text\n")

    with pytest.raises(
        SourceError, match=r"ends in '\.csv', expected one of \.jsonl, \.ndjson, \.json, \.parquet, \.arrow, "
    ):
        read_records(path)


@pytest.mark.parametrize("content", ["", "\n  \n"])
def test_an_empty_file_is_an_error(tmp_path, content):
    path = tmp_path / "empty.jsonl"
    path.write_text(content)

    with pytest.raises(SourceError, match=r"empty\.jsonl is empty, expected at least one record"):
        list(read_records(path))


def test_a_parquet_file_without_rows_is_empty(tmp_path):
    path = tmp_path / "empty.parquet"
    pq.write_table(pa.table({"text": pa.array([], pa.string())}), path)

    with pytest.raises(SourceError, match=r"empty\.parquet is empty"):
        list(read_records(path))


def test_malformed_json_shows_line_reason_character_and_surroundings(tmp_path):
    path = tmp_path / "bad.jsonl"
    path.write_text('{"text": "fine"}\n{"text": "no comma" "label": 3}\n')

    expected = (
        r"bad\.jsonl:2: malformed JSON, Expecting ',' delimiter at character 21 of the line, near '.* \"label\": 3}'"
    )
    with pytest.raises(SourceError, match=expected):
        list(read_records(path))


def test_a_jsonl_file_that_is_one_json_list_is_told_that_its_name_should_end_in_json(tmp_path):
    path = tmp_path / "list.jsonl"
    path.write_text('[{"text": "a"}]\n')

    with pytest.raises(SourceError, match=r"jsonl:1: the line holds a JSON list, .* one list has to end in \.json"):
        list(read_records(path))


def test_bytes_that_are_not_utf8_are_an_error_with_their_line(tmp_path):
    path = tmp_path / "latin.jsonl"
    path.write_bytes(b'{"text": "a"}\n{"text": "\xe4"}\n')

    with pytest.raises(SourceError, match=r"latin\.jsonl:2: byte 11 of the line is not UTF-8"):
        list(read_records(path))


def test_a_broken_parquet_file_is_an_error(tmp_path):
    path = tmp_path / "broken.parquet"
    path.write_bytes(b"PAR1 but not really")

    with pytest.raises(SourceError, match=r"broken\.parquet cannot be read as a table after row 0"):
        list(read_records(path))


def test_the_checksum_is_that_of_the_bytes(tmp_path):
    path = tmp_path / "bytes"
    path.write_bytes(bytes(range(256)) * 5000)

    assert sha256_of_file(path) == hashlib.sha256(path.read_bytes()).hexdigest()
