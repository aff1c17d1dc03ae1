"""For the tests of hermetic.data.sources: one list of records as every kind of file, and how to read all of it."""

import gzip
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hermetic.data.sources import BadRecord, SourceSpec, find_files, read_part, read_records, split_into_parts
from hermetic.errors import SourceError


def as_jsonl(path, records):
    path.write_text("".join(f"{json.dumps(record, ensure_ascii=False)}\n" for record in records), "utf-8")


def as_blank_lines_between(path, records):
    """CRLF, a byte order mark, blank lines, no line end at the end."""
    lines = [json.dumps(record) for record in records]
    path.write_bytes(b"\xef\xbb\xbf" + "\r\n \t\r\n".join(lines).encode())


def as_array(path, records):
    path.write_text(json.dumps(records, ensure_ascii=False), "utf-8")


def as_indented_array(path, records):
    path.write_bytes(b"\xef\xbb\xbf \n" + json.dumps(records, indent=1).encode() + b"\n\n")


def as_parquet(path, records):
    pq.write_table(table(records), path, row_group_size=3)


def as_arrow_file(path, records):
    content = table(records)
    with pa.ipc.new_file(str(path), content.schema) as writer:
        writer.write_table(content, max_chunksize=3)


def as_arrow_stream(path, records):
    content = table(records)
    with pa.ipc.new_stream(str(path), content.schema) as writer:
        writer.write_table(content, max_chunksize=3)


def as_dataset(path, records):
    import datasets

    shards = min(2, len(records))
    datasets.Dataset.from_list(records, features=FEATURES()).save_to_disk(str(path), num_shards=shards)


def FEATURES():  # noqa: N802 - a constant that imports datasets
    from datasets import Features, List, Value

    return Features({"text": Value("string"), "input_ids": List(Value("int64"))})


SCHEMA = pa.schema({"text": pa.string(), "input_ids": pa.list_(pa.int64())})


def table(records):
    return pa.Table.from_pylist(records, schema=SCHEMA)


def as_gzip(write, ending):
    def write_packed(path, records):
        plain = path.with_name(f"plain{ending}")
        write(plain, records)
        path.write_bytes(gzip.compress(plain.read_bytes()))
        plain.unlink()

    return write_packed


def as_zstandard(write, ending):
    def write_packed(path, records):
        plain = path.with_name(f"plain{ending}")
        write(plain, records)
        path.write_bytes(pa.compress(plain.read_bytes(), codec="zstd", asbytes=True))
        plain.unlink()

    return write_packed


WRITERS = {
    "a.jsonl": as_jsonl,
    "blank.ndjson": as_blank_lines_between,
    "lines.json": as_jsonl,
    "array.json": as_array,
    "indented.json": as_indented_array,
    "a.parquet": as_parquet,
    "file.arrow": as_arrow_file,
    "stream.arrows": as_arrow_stream,
    "dataset": as_dataset,
    "a.jsonl.gz": as_gzip(as_jsonl, ".jsonl"),
    "array.json.zst": as_zstandard(as_array, ".json"),
    "a.parquet.gz": as_gzip(as_parquet, ".parquet"),
}
"""How to write each kind of file, by a name for it."""


def found(*paths, spool):
    return find_files([SourceSpec(location=str(path)) for path in paths], spool=spool)


def read_all(path, *, part_bytes, spool):
    """Every record or bad record of one file, part after part."""
    files = found(path, spool=spool)
    parts = split_into_parts(files, part_bytes=part_bytes)
    return [record for part in parts for record in read_part(files[part.file], part)]


def refused(*locations, spool):
    """The reason and the message of the error that finding files ends in."""
    with pytest.raises(SourceError) as caught:
        found(*locations, spool=spool)
    return caught.value.reason, str(caught.value)


def numbered(records):
    return [(record.number, record.values) for record in records]


def plainly(path):
    return numbered(read_records(path))


def outcome(records):
    """What became of each record: its values, or the reason why there are none."""
    return [
        (record.number, record.error.reason if isinstance(record, BadRecord) else record.values) for record in records
    ]


def write_raw(path, content):
    path.write_bytes(content)
    return path
