"""What is not a record is reported with file, line, value and way out, and the records around it are still read."""

import json
import re
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from source_helpers import found, outcome, read_all, write_raw

import hermetic.data.sources
from hermetic.data.sources import MAX_RECORD_BYTES, BadRecord, read_part, read_records, split_into_parts
from hermetic.data.sources.json_text import MAX_DEPTH, completeness, parse_object
from hermetic.errors import SourceError

NUL = (
    "is NUL, expected text; the file was damaged, as by a full disk or a power failure, or is not UTF-8; write it anew"
)
TWICE = "occurs twice in one object, where only the second value would count; expected each key once; remove one"
NOT_AN_OBJECT = (
    'expected an object; write one object such as {"text": ...} for each record; '
    "a file that is one list has to end in .json"
)
DEEP = "deep, expected at most 128; flatten the record"


def malformed(line, problem, character):
    message = (
        f"malformed JSON, {problem} at character {character} of the line, near {line.decode()!r}; "
        "expected one complete JSON object; repair or remove the line"
    )
    return line, "malformed", message


# What a line holds, the reason to count by, and the whole message behind file and line.
LINES = {
    "no quotes": malformed(b"{a: 1}", "Expecting property name enclosed in double quotes", 2),
    "single quotes": malformed(b"{'a': 1}", "Expecting property name enclosed in double quotes", 2),
    "no colon": malformed(b'{"a" 1}', "Expecting ':' delimiter", 6),
    "no comma": malformed(b'{"a": 1 "b": 2}', "Expecting ',' delimiter", 9),
    "no value": malformed(b'{"a": }', "Expecting value", 7),
    "two objects": malformed(b'{"a": 1}{"a": 2}', "Extra data", 9),
    "open bracket": malformed(b'{"a": [1, 2}', "Expecting ',' delimiter", 12),
    "open string": malformed(b'{"a": "b}', "Unterminated string starting", 7),
    "bad escape": malformed(rb'{"a": "\x41"}', "Invalid \\escape", 8),
    "bad unicode escape": malformed(rb'{"a": "\u12"}', "Invalid \\uXXXX escape", 9),
    "raw tab": malformed(b'{"a": "\t"}', "Invalid control character", 8),
    "python": malformed(b'{"a": True}', "Expecting value", 7),
    "comment": malformed(b'{"a": 1} // one', "Extra data", 10),
    "byte order mark": malformed(b'\xef\xbb\xbf{"a": 1}', "Expecting value", 1),
    "hexadecimal": malformed(b'{"a": 0x10}', "Expecting ',' delimiter", 8),
    "leading zero": malformed(b'{"a": 012}', "Expecting ',' delimiter", 8),
    "NUL bytes": (b'{"a": "\0\0\0"}', "nul_bytes", f"byte 8 of the line {NUL}"),
    "only NUL bytes": (b"\0" * 4096, "nul_bytes", f"byte 1 of the line {NUL}"),
    "Latin-1": (
        b'{"a": "\xe4"}',
        "not_utf8",
        "byte 8 of the line is not UTF-8 (invalid continuation byte); save the file as UTF-8",
    ),
    "surrogates as bytes": (
        b'{"a": "\xed\xa0\x80"}',
        "not_utf8",
        "byte 8 of the line is not UTF-8 (invalid continuation byte); save the file as UTF-8",
    ),
    "overlong": (
        b'{"a": "\xc0\x80"}',
        "not_utf8",
        "byte 8 of the line is not UTF-8 (invalid start byte); save the file as UTF-8",
    ),
    "NaN": (b'{"a": NaN}', "not_finite", "NaN is not JSON; expected a finite number or null; replace it"),
    "Infinity": (
        b'{"a": -Infinity}',
        "not_finite",
        "-Infinity is not JSON; expected a finite number or null; replace it",
    ),
    "overflow": (
        b'{"a": [1.5, 1e999]}',
        "not_finite",
        "the number 1e999 overflows to infinity; expected one that a double holds; replace it",
    ),
    "digits": (
        b'{"a": -' + b"9" * 5000 + b"}",
        "number_too_long",
        "the whole number -9999999999999999999... has 5000 digits, expected at most 4300; write it as a string",
    ),
    "duplicate key": (b'{"text": "a", "id": 1, "text": "b"}', "duplicate_key", f"the key 'text' {TWICE}"),
    "inner duplicate": (b'{"m": [{"a": 1, "a": 1}]}', "duplicate_key", f"the key 'a' {TWICE}"),
    "escaped duplicate": (rb'{"a": 1, "\u0061": 2}', "duplicate_key", f"the key 'a' {TWICE}"),
    "list": (b"[1, 2]", "not_an_object", f"the line holds a JSON list, {NOT_AN_OBJECT}"),
    "text": (b'"a"', "not_an_object", f"the line holds a JSON str, {NOT_AN_OBJECT}"),
    "number": (b"12", "not_an_object", f"the line holds a JSON int, {NOT_AN_OBJECT}"),
    "null": (b"null", "not_an_object", f"the line holds a JSON NoneType, {NOT_AN_OBJECT}"),
    "129 deep": (b'{"a": ' + b"[" * 128 + b"]" * 128 + b"}", "too_deep", f"the line is nested 129 {DEEP}"),
    "a million deep": (b'{"a": ' * 1_000_000, "too_deep", f"the line is nested 1000000 {DEEP}"),
    "a million brackets": (b"[" * 1_000_000, "too_deep", f"the line is nested 1000000 {DEEP}"),
}


@pytest.mark.parametrize("name", LINES)
def test_a_line_that_is_no_record_says_why_and_its_neighbours_are_read(tmp_path, name):
    line, reason, message = LINES[name]
    path = write_raw(tmp_path / "bad.jsonl", b'{"n": 1}\n' + line + b'\n{"n": 3}\n')

    first, bad, last = read_all(path, part_bytes=10**9, spool=tmp_path)

    assert (first.values, last.values, last.number) == ({"n": 1}, {"n": 3}, 3)
    assert isinstance(bad, BadRecord)
    assert (bad.number, bad.where, bad.error.reason) == (2, f"{path}:2", reason)
    assert str(bad.error) == f"{path}:2: {message}"
    assert isinstance(bad.error, SourceError)


@pytest.mark.parametrize("name", LINES)
def test_reading_a_whole_file_stops_at_the_line_that_is_no_record(tmp_path, name):
    line, reason, message = LINES[name]
    path = write_raw(tmp_path / "bad.jsonl", b'{"n": 1}\n' + line + b'\n{"n": 3}\n')
    records = read_records(path)

    assert next(records).values == {"n": 1}
    with pytest.raises(SourceError) as caught:
        next(records)
    assert (str(caught.value), caught.value.reason) == (f"{path}:2: {message}", reason)


def test_what_only_looks_hostile_is_read():
    deep = b'{"a": ' + b"[" * (MAX_DEPTH - 1) + b"]" * (MAX_DEPTH - 1) + b"}"
    brackets = json.dumps({"a": "[{" * 1000}).encode()
    wide = json.dumps({"a": [[]] * 1000}).encode()
    long = json.dumps({"a": int("9" * 4300)}).encode()

    for raw in (
        deep,
        brackets,
        wide,
        long,
        b'{"a": {"x": 1}, "b": {"x": 1}}',
        rb'{"a": "\ud800"}',
        rb'{"a": "\u0000"}',
    ):
        assert parse_object(raw, "here", what="line") == json.loads(raw)


def test_python_would_have_read_what_is_refused_for_losing_something_silently():
    assert json.loads(LINES["duplicate key"][0]) == {"text": "b", "id": 1}
    assert json.loads(LINES["overflow"][0]) == {"a": [1.5, float("inf")]}
    assert json.loads(LINES["NaN"][0])["a"] != json.loads(LINES["NaN"][0])["a"]


def test_half_a_surrogate_pair_in_the_place_of_an_error_does_not_keep_its_message_from_being_written(tmp_path):
    path = write_raw(tmp_path / "bad.jsonl", rb'{"a": "\ud800", "\ud800": 1, "\ud800": 2}')
    ((number, reason),) = outcome(read_all(path, part_bytes=100, spool=tmp_path))
    (bad,) = read_all(path, part_bytes=100, spool=tmp_path)

    assert (number, reason) == (1, "duplicate_key")
    assert r"the key '\ud800' occurs twice" in str(bad.error).encode("utf-8").decode()


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda values: st.lists(values, max_size=3) | st.dictionaries(st.text(), values, max_size=3),
    max_leaves=6,
)


@given(record=st.dictionaries(st.text(), JSON, max_size=4), ascii_only=st.booleans(), indent=st.sampled_from([None, 1]))
def test_every_beginning_of_a_record_is_cut_off_and_the_whole_is_not(record, ascii_only, indent):
    raw = json.dumps(record, ensure_ascii=ascii_only, indent=indent).encode("utf-8", "replace")

    assert [length for length in range(1, len(raw)) if completeness(raw[:length]) != "cut off"] == []
    assert completeness(raw) == "whole"


@pytest.mark.parametrize("name", [name for name in LINES if name != "open string"])
def test_a_malformed_line_is_not_taken_for_one_that_is_cut_off(name):
    assert completeness(LINES[name][0]) != "cut off"


@pytest.mark.parametrize("cut", [b'{"a": 2', b'{"a": tr', b'{"a": "\xc3', b"{", b'{"a": [{"b": "c\\'])
def test_a_last_line_that_is_cut_off_is_a_truncated_file(tmp_path, cut):
    path = write_raw(tmp_path / "torn.jsonl", b'{"a": 1}\n' + cut)

    whole, torn = read_all(path, part_bytes=1, spool=tmp_path)

    assert whole.values == {"a": 1}
    assert torn.error.reason == "truncated_file"
    assert str(torn.error) == (
        f"{path}:2: the file ends at byte {9 + len(cut)} in the middle of this line, {len(cut)} bytes after it began; "
        "expected a complete JSON object; copy the file anew, or remove the line"
    )


@pytest.mark.parametrize(
    ("end", "reason"),
    [(b'{"a": 2}', {"a": 2}), (b'{"a": 2\n', "malformed"), (b'{"a": 2]', "malformed"), (b"\0\0\0\0", "nul_bytes")],
    ids=["whole", "line end follows", "malformed", "NUL bytes"],
)
def test_a_last_line_that_is_whole_or_wrong_before_its_end_is_not_truncated(tmp_path, end, reason):
    path = write_raw(tmp_path / "end.jsonl", b'{"a": 1}\n' + end)

    assert outcome(read_all(path, part_bytes=1, spool=tmp_path)) == [(1, {"a": 1}), (2, reason)]


@pytest.fixture
def short_records(monkeypatch):
    """64 MiB of test data prove no more than 1,000 bytes."""
    for module in ("json_lines", "json_array"):
        monkeypatch.setattr(f"hermetic.data.sources.{module}.MAX_RECORD_BYTES", 1000)
    return 1000


@pytest.mark.parametrize("excess", [0, 1, 2, 5000])
@pytest.mark.parametrize("end", [b"\n", b""])
def test_a_line_may_have_the_most_bytes_and_not_one_more(tmp_path, short_records, excess, end):
    record = {"a": "x" * (short_records + excess - len('{"a": ""}'))}
    path = write_raw(tmp_path / "long.jsonl", b'{"n": 1}\n' + json.dumps(record).encode() + b'\n{"n": 3}' + end)

    read = outcome(read_all(path, part_bytes=10, spool=tmp_path))

    assert read == [(1, {"n": 1}), (2, "too_long" if excess else record), (3, {"n": 3})]


@pytest.mark.parametrize("excess", [0, 1, 5000])
@pytest.mark.parametrize("part_bytes", [10, 10**6])
def test_an_element_may_have_the_most_bytes_and_not_one_more(tmp_path, short_records, excess, part_bytes):
    record = {"a": "x" * (short_records + excess - len('{"a": ""}'))}
    path = write_raw(tmp_path / "long.json", b'[{"n": 1},' + json.dumps(record).encode() + b',{"n": 3}]')

    read = read_all(path, part_bytes=part_bytes, spool=tmp_path)

    assert outcome(read) == [(1, {"n": 1}), (2, "too_long" if excess else record), (3, {"n": 3})]


def test_a_line_of_200_mb_is_named_with_its_size_and_never_held(tmp_path):
    path = tmp_path / "long.jsonl"
    with path.open("wb") as file:
        file.write(b'{"n": 1}\n{"a": "')
        for _ in range(200):
            file.write(b"x" * 10**6)
        file.write(b'"}\n{"n": 3}\n')
    (source,) = found(path, spool=tmp_path)
    tracemalloc.start()
    read = [record for part in split_into_parts([source]) for record in read_part(source, part)]
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()

    assert outcome(read) == [(1, {"n": 1}), (2, "too_long"), (3, {"n": 3})]
    assert str(read[1].error) == (
        f"{path}:2: the line has 200000010 bytes, expected at most {MAX_RECORD_BYTES}; check that the file has line "
        "ends, and split or remove the record"
    )
    assert most < 2.5 * MAX_RECORD_BYTES


def test_the_page_of_sources_lists_exactly_the_reasons_that_the_code_gives():
    code = "".join(path.read_text("utf-8") for path in Path(hermetic.data.sources.__file__).parent.glob("*.py"))
    given_there = set(re.findall(r'reason="(\w+)"', code)) | set(re.findall(r'reason="\w+" if .* else "(\w+)"', code))
    refused = set(re.findall(r'^ +"(\w+)",\n +\)$|"(not_finite)"', code, re.MULTILINE))
    page = (Path(__file__).parents[1] / "docs" / "sources.md").read_text("utf-8")
    listed = re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE)

    assert sorted(listed) == sorted(given_there | {first or second for first, second in refused} | {"malformed"})
