"""A batch in a file: safetensors, ``.npz``, Arrow, Parquet, JSON or JSON Lines; no pickle.

Algorithm: the ending says how to read. A table or a list of records is rows with lists, which may differ in length; a
table of plain numbers is one flat row. Guarantee: what cannot be read is an ``AuditError`` that names the file, the
tensor, what was found and what was expected. Price: the whole file in memory; columns with unknown names are not read.
"""

import json
import zipfile
import zlib
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from hermetic.audit.batch.names import KNOWN, SETTINGS
from hermetic.audit.batch.tensors import BatchTensors, Tensor, assembled, tensor_of, tensors_of
from hermetic.errors import AuditError, MissingDependencyError

_SAFETENSORS_DTYPES: Final = {
    "BOOL": np.bool_, "U8": np.uint8, "I8": np.int8, "I16": np.int16, "U16": np.uint16, "I32": np.int32,
    "U32": np.uint32, "I64": np.int64, "U64": np.uint64, "F16": np.float16, "F32": np.float32, "F64": np.float64,
}  # fmt: skip


def read_batch(path: Path, *, name: str | None = None) -> BatchTensors:
    """Read a batch from a file.

    Args:
        path: Of the file.
        name: What messages call it. Default: the path.

    Raises:
        AuditError: If the file is missing, empty, damaged, of another kind, or no batch.
        MissingDependencyError: For a safetensors file, if safetensors is not installed.
    """
    if not path.is_file():
        raise AuditError(f"{path} is {'a folder' if path.is_dir() else 'missing'}, expected the file of a batch")
    reader = _READERS.get(path.suffix.lower())
    if reader is None:
        raise AuditError(f"{path} ends in {path.suffix or 'nothing'}, expected one of {', '.join(_READERS)}")
    if path.stat().st_size == 0:
        raise AuditError(f"{path} is empty, expected the tensors of a batch; write it again")
    read = reader(path)
    if isinstance(read, list):
        return assembled([tensor for tensor in read if tensor], {}, subject=name or str(path), file=str(path))
    batch = tensors_of(read, name=str(path), file=str(path))
    return batch if name is None else replace(batch, subject=name)


def _safetensors(path: Path) -> Mapping[str, Any]:
    try:
        import safetensors
    except ImportError as error:
        raise MissingDependencyError(
            f"{path} is a safetensors file and safetensors is not installed; install hermetic[hf]"
        ) from error
    try:
        entries = safetensors.deserialize(path.read_bytes())  # type: ignore[no-untyped-call]  # it is Rust
    except safetensors.SafetensorError as error:
        raise AuditError(f"{path} is damaged or no safetensors file ({error}); write it again") from error
    wanted = {*KNOWN, *SETTINGS}
    return {name: _stored(path, name, entry) for name, entry in entries if name in wanted}


def _stored(path: Path, name: str, entry: Mapping[str, Any]) -> NDArray[Any]:
    data, shape, kind = bytes(entry["data"]), entry["shape"], entry["dtype"]
    if kind == "BF16":  # the upper half of a float32
        wide = np.frombuffer(data, dtype="<u2").astype(np.uint32) << np.uint32(16)
        return wide.view(np.float32).reshape(shape)
    if kind not in _SAFETENSORS_DTYPES:
        raise AuditError(
            f"{path}, {name} has dtype {kind}, expected one of BF16, {', '.join(_SAFETENSORS_DTYPES)}; convert it"
        )
    return np.frombuffer(data, dtype=np.dtype(_SAFETENSORS_DTYPES[kind]).newbyteorder("<")).reshape(shape)


def _npz(path: Path) -> Mapping[str, Any]:
    with path.open("rb") as file:  # NumPy leaves a damaged file open
        try:
            arrays = np.load(file, allow_pickle=False)
        except (zipfile.BadZipFile, OSError, EOFError, ValueError) as error:
            raise AuditError(f"{path} is damaged or no .npz file ({error}); write it again with numpy.savez") from error
        names = [name for name in getattr(arrays, "files", ()) if name in KNOWN or name in SETTINGS]
        return {name: _array(path, arrays, name) for name in names}


def _array(path: Path, arrays: Any, name: str) -> NDArray[Any]:
    try:
        array: NDArray[Any] = arrays[name]
    except (ValueError, zipfile.BadZipFile, zlib.error, EOFError, KeyError) as error:
        raise AuditError(
            f"{path}, {name} cannot be read ({error}), expected an array of numbers; objects are pickles and are never "
            "loaded, so save numbers of one length"
        ) from error
    return array


def _json(path: Path) -> Mapping[str, Any] | list[Tensor | None]:
    value = _parsed(path, path.read_bytes(), "")
    return value if isinstance(value, dict) else _records(path, value)


def _json_lines(path: Path) -> list[Tensor | None]:
    lines = path.read_bytes().splitlines()
    return _records(path, [_parsed(path, line, f":{number}") for number, line in enumerate(lines, 1) if line.strip()])


def _parsed(path: Path, text: bytes, where: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise AuditError(f"{path}{where} is not JSON ({error}), expected a batch or rows; write it again") from error


def _records(path: Path, rows: Any) -> list[Tensor | None]:
    if not isinstance(rows, list) or not rows or not all(isinstance(row, dict) for row in rows):
        raise AuditError(f"{path} holds {type(rows).__name__}, expected an object, or rows that are objects with lists")
    names = [name for name in rows[0] if name in KNOWN]
    return [_column_of_records(path, name, rows) for name in names]


def _column_of_records(path: Path, name: str, rows: list[dict[str, Any]]) -> Tensor | None:
    for number, row in enumerate(rows):
        if not isinstance(row.get(name), list):
            raise AuditError(f"{path}, {name} of row {number} is {row.get(name)!r}, expected a list of numbers")
    return _of_rows(path, name, [row[name] for row in rows])


def _of_rows(path: Path, name: str, lists: list[list[Any]]) -> Tensor | None:
    """A column of lists, of one length or not; empty ones are rows without tokens."""
    tensor = tensor_of(name, [entry for entry in lists if entry] or [[]], where=str(path), ragged=True)
    if tensor is None or tensor.values.ndim > 2:
        return tensor
    counts = np.array([len(entry) for entry in lists], dtype=np.int64)
    return Tensor(name=name, values=tensor.values.reshape(-1), counts=counts)


def _arrow(path: Path) -> list[Tensor | None] | Mapping[str, Any]:
    import pyarrow as pa

    try:
        with pa.memory_map(str(path)) as source:
            is_file = source.read(6) == b"ARROW1"
            source.seek(0)
            table = (pa.ipc.open_file(source) if is_file else pa.ipc.open_stream(source)).read_all()
            return _table(path, table)
    except (pa.ArrowException, OSError) as error:
        raise AuditError(f"{path} is damaged or no Arrow file ({error}); write it again") from error


def _parquet(path: Path) -> list[Tensor | None] | Mapping[str, Any]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        names = set(pq.read_schema(path).names)
        table = pq.read_table(path, columns=sorted(names & KNOWN))
    except (pa.ArrowException, OSError) as error:
        raise AuditError(f"{path} is damaged or no Parquet file ({error}); write it again") from error
    return _table(path, table)


def _table(path: Path, table: Any) -> list[Tensor | None] | Mapping[str, Any]:
    columns = {name: table.column(name) for name in table.column_names if name in KNOWN}
    plain = {name: column for name, column in columns.items() if not _has_lists(column)}
    if plain and len(plain) < len(columns):
        raise AuditError(
            f"{path} has numbers in {', '.join(sorted(plain))} and lists in "
            f"{', '.join(sorted(columns.keys() - plain.keys()))}, expected lists in all, or one number for each token"
        )
    if plain:
        return {name: _numbers(path, name, column) for name, column in plain.items()}
    return [_of_lists(path, name, column) for name, column in columns.items()]


def _has_lists(column: Any) -> bool:
    import pyarrow as pa

    kind = column.type
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def _of_lists(path: Path, name: str, column: Any) -> Tensor | None:
    import pyarrow as pa

    merged = pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)
    if merged.null_count:
        raise AuditError(f"{path}, {name} has {merged.null_count} rows without a value, expected a list in each")
    if _has_lists(merged.flatten()):
        return tensor_of(name, merged.to_pylist(), where=str(path))
    counts = np.asarray(merged.value_lengths().to_numpy(zero_copy_only=False), dtype=np.int64)
    values = _numbers(path, name, merged.flatten())
    checked = tensor_of(name, values, where=str(path))
    return checked and Tensor(name=name, values=checked.values, counts=counts)


def _numbers(path: Path, name: str, column: Any) -> NDArray[Any]:
    if column.null_count:
        raise AuditError(f"{path}, {name} has {column.null_count} values that are null, expected numbers")
    values = column.to_numpy() if hasattr(column, "chunks") else column.to_numpy(zero_copy_only=False)
    array: NDArray[Any] = np.asarray(values)
    return array


_READERS: Final[dict[str, Callable[[Path], Any]]] = {
    ".safetensors": _safetensors,
    ".npz": _npz,
    ".arrow": _arrow,
    ".feather": _arrow,
    ".ipc": _arrow,
    ".parquet": _parquet,
    ".json": _json,
    ".jsonl": _json_lines,
}
