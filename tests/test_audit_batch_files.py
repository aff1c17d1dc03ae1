"""A batch is the same from every kind of file, and a file that cannot be read says which tensor, and what it found."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.numpy import save_file
from safetensors.torch import save_file as save_torch

import hermetic
from hermetic.audit import audit
from hermetic.audit.batch.audit import audit_batch
from hermetic.audit.batch.files import _READERS
from hermetic.batch import Boundaries
from hermetic.batch.dialects import additive_mask
from hermetic.errors import AuditError

BATCH = {
    "input_ids": [[10, 11, 12, 20, 21]],
    "labels": [[10, 11, 12, 20, 21]],
    "position_ids": [[0, 1, 2, 0, 1]],
}
ROWS = [
    {"input_ids": [10, 11, 12, 20, 21], "labels": [-100, 11, 12, 20, 21], "seq_lengths": [3, 2]},
    {"input_ids": [30, 31, 32], "labels": [-100, 31, 32], "seq_lengths": [3]},
]


def codes(path):
    return [finding.code for finding in audit_batch(path).findings]


def write_table(path, table):
    if path.suffix == ".parquet":
        pq.write_table(table, path)
    elif path.suffix == ".feather":
        pyarrow.feather.write_feather(table, path, compression="uncompressed")
    else:
        new = pa.ipc.new_file if path.suffix == ".ipc" else pa.ipc.new_stream
        with pa.OSFile(str(path), "wb") as sink, new(sink, table.schema) as writer:
            writer.write_table(table)


def write_batch(path, batch):
    arrays = {name: np.array(value, dtype=np.int64) for name, value in batch.items()}
    if path.suffix == ".safetensors":
        save_file(arrays, path)
    elif path.suffix == ".npz":
        np.savez(path, **arrays)
    elif path.suffix == ".json":
        path.write_text(json.dumps(batch))
    else:
        write_table(path, pa.table({name: value[0] for name, value in batch.items()}))


def write_rows(path, rows):
    if path.suffix == ".json":
        path.write_text(json.dumps(rows))
    elif path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        write_table(path, pa.Table.from_pylist(rows))


@pytest.mark.parametrize("ending", ["safetensors", "npz", "json", "parquet", "arrow", "ipc", "feather"])
def test_one_batch_is_the_same_from_every_kind_of_file(tmp_path, ending):
    path = tmp_path / f"batch.{ending}"
    write_batch(path, BATCH)
    report = audit_batch(path)
    (found,) = report.findings

    assert (found.code, found.place.key, found.place.file) == ("HM401", "labels", str(path))
    assert report.subject == str(path)
    assert audit_batch(path, name="step 3").subject == "step 3"
    assert report.facts == audit_batch(BATCH).facts


@pytest.mark.parametrize("ending", ["json", "jsonl", "parquet", "arrow", "ipc", "feather"])
def test_rows_of_different_lengths_are_read_as_rows_and_located_as_such(tmp_path, ending):
    path = tmp_path / f"rows.{ending}"
    write_rows(path, ROWS)
    report = audit_batch(path)

    assert [finding.code for finding in report.findings] == ["HM401"]
    assert report.findings[0].what.endswith("labels is 20 at row 0, token 3")
    assert dict(report.facts)["rows"] == "2 rows of different lengths"
    assert dict(report.facts)["documents"] == "3 by seq_lengths: 3, 2, 3 tokens"


def test_a_mask_of_half_precision_comes_back_from_a_file(tmp_path):
    boundaries = Boundaries.from_lengths([3, 2])
    mask = additive_mask(boundaries, dtype=torch.bfloat16)
    inputs = {"input_ids": torch.arange(5)[None], "position_ids": boundaries.position_ids[None]}
    save_torch(inputs | {"attention_mask": mask}, tmp_path / "sound.safetensors")
    save_torch(inputs | {"attention_mask": torch.zeros_like(mask)}, tmp_path / "open.safetensors")

    assert codes(tmp_path / "sound.safetensors") == []
    assert codes(tmp_path / "open.safetensors") == ["HM603"]


def test_model_inputs_survive_a_file_with_their_numbers_of_one_element(tmp_path):
    batch = hermetic.collate([{"input_ids": [5, 6, 7]}, {"input_ids": [8, 9]}], pad_to=8).model_inputs()
    np.savez(tmp_path / "batch.npz", **{name: np.asarray(value) for name, value in batch.items()})
    np.savez(
        tmp_path / "short.npz", **{name: np.asarray(value) for name, value in (batch | {"max_length_q": 2}).items()}
    )

    assert codes(tmp_path / "batch.npz") == []
    assert codes(tmp_path / "short.npz") == ["HM260"]


def truncated(path):
    write_batch(path, BATCH)
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])


def objects(path):
    np.savez(path, input_ids=np.array([[5, "a", None]], dtype=object))


def write_text(text):
    return lambda path: path.write_text(text)


def table(**columns):
    return lambda path: write_table(path, pa.table(columns))


@pytest.mark.parametrize(
    ("name", "write", "expected"),
    [
        ("a.safetensors", truncated, "is damaged or no safetensors file ("),
        ("a.npz", truncated, "is damaged or no .npz file ("),
        ("a.parquet", truncated, "is damaged or no Parquet file ("),
        ("a.arrow", truncated, "is damaged or no Arrow file ("),
        ("a.ipc", truncated, "is damaged or no Arrow file ("),
        ("a.json", truncated, " is not JSON ("),
        ("a.npz", objects, ", input_ids cannot be read (Object arrays cannot be loaded"),
        ("a.npz", lambda path: np.savez(path, input_ids=[[0.5]]), ", input_ids has dtype float64, expected whole"),
        ("a.npz", lambda path: np.savez(path, x=[1]), " has no tensor with a value for each token"),
        ("a.npz", write_text("not a zip"), " is damaged or no .npz file ("),
        ("a.json", write_text(""), " is empty, expected the tensors of a batch"),
        ("a.json", write_text("[1, 2]"), " holds list, expected an object, or rows that are objects with lists"),
        ("a.json", write_text('{"input_ids": [[1, 2], [3]]}'), ", input_ids is ragged: row 1 has 1 values, expected 2"),
        ("a.jsonl", write_text('{"input_ids": [1]}\n{"input_ids": 7}\n'), ", input_ids of row 1 is 7, expected a list"),
        ("a.jsonl", write_text('{"input_ids": [1]}\n{oops}\n'), ":2 is not JSON ("),
        ("a.jsonl", write_text("\n"), " holds list, expected an object, or rows"),
        ("a.parquet", table(input_ids=[[1, 2], None]), ", input_ids has 1 rows without a value, expected a list"),
        ("a.parquet", table(input_ids=[[1, None]]), ", input_ids has 1 values that are null, expected numbers"),
        ("a.parquet", table(input_ids=[[1.5]]), ", input_ids has dtype float64, expected whole numbers"),
        ("a.parquet", table(input_ids=[[1]], labels=[1]), " has numbers in labels and lists in input_ids, expected"),
        ("a.parquet", table(text=["a"]), " has no tensor with a value for each token"),
        ("a.pt", write_text("x"), " ends in .pt, expected one of .safetensors, .npz, .arrow"),
    ],
)
def test_a_file_that_cannot_be_read_is_refused_with_its_name_the_tensor_what_was_found_and_expected(
    tmp_path, name, write, expected
):
    path = tmp_path / name
    write(path)

    with pytest.raises(AuditError) as caught:
        audit_batch(path)

    assert str(caught.value).startswith(f"{path}{expected}" if expected[0] in " ,:" else f"{path} {expected}")


@pytest.mark.parametrize("ending", _READERS)
def test_a_file_that_only_a_batch_can_be_is_audited_as_one_without_being_told(tmp_path, ending):
    path = tmp_path / f"batch{ending}"
    (write_rows if ending == ".jsonl" else write_batch)(path, ROWS if ending == ".jsonl" else BATCH)

    report = audit(path)

    assert report.kind == "batch"
    assert report == audit_batch(path)


def test_a_json_file_is_a_configuration_until_a_tensors_name_has_a_list(tmp_path):
    path = tmp_path / "train.json"
    path.write_text(json.dumps({"packing": True, "max_length": 9, "label_names": ["labels"], "model": "input_ids"}))
    assert audit(path, stack="trl").kind == "configuration"

    path.write_text(json.dumps(BATCH, indent=1))
    assert audit(path).kind == "batch"


def test_a_stack_or_versions_that_would_be_ignored_are_refused(tmp_path):
    script, batch = tmp_path / "train.py", tmp_path / "batch.json"
    script.write_text("x = 1\n")
    write_batch(batch, BATCH)

    for subject, what in ((tmp_path, "a packed folder"), (script, "a script"), (batch, "a batch"), (BATCH, "a batch")):
        with pytest.raises(AuditError, match=f"stack is 'trl', and {what} is of no stack; expected none"):
            audit(subject, stack="trl")
    for subject, what in ((tmp_path, "a packed folder"), (batch, "a batch"), (BATCH, "a batch")):
        with pytest.raises(AuditError, match=f"versions are trl==1.16.0, and {what} is judged without"):
            audit(subject, versions={"trl": "1.16.0"})
    assert audit(script, versions={"trl": "1.16.0"}).kind == "script"


def test_a_missing_file_and_a_folder_are_refused(tmp_path):
    with pytest.raises(AuditError, match="missing, expected the file of a batch"):
        audit_batch(tmp_path / "none.npz")
    with pytest.raises(AuditError, match="is a folder, expected the file of a batch"):
        audit_batch(str(tmp_path))


def test_every_byte_that_a_safetensors_file_may_lose_is_an_audit_error(tmp_path):
    path = tmp_path / "batch.safetensors"
    write_batch(path, BATCH)
    content = path.read_bytes()
    for end in range(0, len(content), 7):
        path.write_bytes(content[:end])
        with pytest.raises(AuditError):
            audit_batch(path)
