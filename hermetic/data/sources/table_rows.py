"""Rows of Arrow batches as Python values.

Guarantee: a row that has no Python value is an exception in its place, and its neighbours are there; texts of the type
``arrow.json``, which ``datasets`` writes where records differ in shape, are the values that they stand for. Price: one
conversion of the batch; of a batch with such a row, one more a row.
"""

from typing import Any, Final, TypeAlias

import pyarrow as pa

from hermetic.data.sources.json_text import parse_value
from hermetic.errors import SourceError

__all__ = ["Row", "check_schema", "rows_of"]

Row: TypeAlias = dict[str, Any] | Exception

_NO_VALUE: Final = (ValueError, OverflowError, TypeError, pa.ArrowException)
"""Invalid UTF-8, JSON that is none, dates that Python has no words for."""


def check_schema(schema: pa.Schema, name: str) -> None:
    """Refuse a table in which a name occurs twice: the second column would win silently.

    Raises:
        SourceError: Naming the column.
    """
    _check_names(list(schema), name, "the table")


def _check_names(fields: list[pa.Field], name: str, inside: str) -> None:
    seen: set[str] = set()
    for field in fields:
        if field.name in seen:
            raise SourceError(
                f"{name}: {inside} has two columns named {field.name!r}, of which one would be lost; expected each "
                "name once; rename or drop one",
                reason="duplicate_key",
            )
        seen.add(field.name)
        _check_names(_inner(field.type), name, f"the column {field.name!r}")


def _inner(kind: pa.DataType) -> list[pa.Field]:
    return [kind.field(index) for index in range(kind.num_fields)]


def rows_of(batch: pa.RecordBatch) -> list[Row]:
    """Turn a batch of R rows into R dictionaries, with an exception in the place of a row that has no Python value."""
    try:
        return _dictionaries(batch)
    except _NO_VALUE:
        return [_row(batch.slice(index, 1)) for index in range(len(batch))]


def _row(batch: pa.RecordBatch) -> Row:
    try:
        return _dictionaries(batch)[0]
    except _NO_VALUE as error:
        return error


def _dictionaries(batch: pa.RecordBatch) -> list[Row]:
    rows: list[Row] = batch.to_pylist()
    for field in batch.schema:
        if _holds_json(field.type):
            for row in rows:
                row[field.name] = _decoded(row[field.name], field.type)  # type: ignore[index]
    return rows


def _is_json(kind: pa.DataType) -> bool:
    return isinstance(kind, pa.BaseExtensionType) and kind.extension_name == "arrow.json"


def _holds_json(kind: pa.DataType) -> bool:
    return _is_json(kind) or any(_holds_json(field.type) for field in _inner(kind))


def _decoded(value: Any, kind: pa.DataType) -> Any:
    """Replace the JSON texts in ``value`` by what they stand for."""
    if value is None or not _holds_json(kind):
        return value
    if _is_json(kind):
        return parse_value(value.encode(), "in a column of JSON", what="value")
    if pa.types.is_struct(kind):
        return {field.name: _decoded(value[field.name], field.type) for field in kind}
    if isinstance(value, list) and kind.num_fields == 1:
        return [_decoded(entry, kind.field(0).type) for entry in value]
    raise TypeError(f"JSON inside {kind}")
