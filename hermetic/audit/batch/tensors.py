"""A batch as NumPy arrays: one flat stream of T slots and where its rows begin, whatever the batch came as.

Algorithm: every tensor that has a known name is copied to the host and checked for its kind; rows are those of the
token ids. Rows of different lengths, as files of rows have them, and ``[B, S]`` are the same thing here. Guarantee:
nothing is cast in a way that changes a value, and torch is used only where the batch already holds its tensors.
Price: one copy of the tensors with known names; all others are not touched.
"""

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from hermetic.audit.batch.names import (
    EDGE_LIKE,
    KNOWN,
    LABELS,
    LENGTHS,
    MASK,
    NUMBERS,
    PAST,
    PER_TOKEN,
    POSITIONS,
    SETTINGS,
    SHIFTED_LABELS,
    TOKENS,
    WHOLE_NUMBERS,
)
from hermetic.audit.finding import Place
from hermetic.errors import AuditError

Ints: TypeAlias = NDArray[np.int64]
Bools: TypeAlias = NDArray[np.bool_]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Tensor:
    """Values under a name, and how they came."""

    name: str
    values: NDArray[Any]
    dtype: str | None = None
    """As its author would write it, ``torch.int32``; ``None`` of lists, which have none."""
    device: str | None = None
    """Of a torch tensor."""
    counts: Ints | None = None
    """``[B]`` values of each row, of rows that may differ in length; ``values`` is flat then."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class BatchTensors:
    """A batch of B rows and T slots in all."""

    subject: str
    file: str | None
    tensors: Mapping[str, Tensor]
    settings: Mapping[str, Any]
    """Plain values: ``use_cache``, the longest lengths; ``past_key_values`` is True where something was read before."""
    rows: Ints
    """``[B + 1]``: row ``i`` is the slots from edge ``i`` up to edge ``i + 1``."""
    tail: int | None = None
    """The first slot of the padded tail, of a batch that knows it."""

    @property
    def num_rows(self) -> int:
        """B."""
        return len(self.rows) - 1

    @property
    def num_slots(self) -> int:
        """T, padding included."""
        return int(self.rows[-1])

    @property
    def shape(self) -> str:
        """How messages call it."""
        widths = np.unique(np.diff(self.rows))
        rows = "1 row" if self.num_rows == 1 else f"{self.num_rows} rows"
        return f"{rows} of {'different lengths' if len(widths) > 1 else f'{int(widths[0]):,} tokens'}"

    def fits(self, name: str) -> bool:
        """Whether a tensor is there and has one value for each slot."""
        tensor = self.tensors.get(name)
        if tensor is None:
            return False
        if tensor.counts is not None:
            return np.array_equal(tensor.counts, np.diff(self.rows))
        return tensor.values.ndim <= 2 and tensor.values.size == self.num_slots

    def flat(self, name: str) -> NDArray[Any] | None:
        """``[T]``, or ``None`` where it is missing or of another size."""
        return self.tensors[name].values.reshape(-1) if self.fits(name) else None

    def first(self, names: tuple[str, ...]) -> str | None:
        """The first of these tensors that is there and fits."""
        return next((name for name in names if self.fits(name)), None)

    def where(self, slot: int) -> str:
        """A slot in the words of a message.

        Example:
            Rows of 4: slot 6 is ``"row 1, token 2"``; in a batch of one row it is ``"token 6"``.
        """
        row = int(np.searchsorted(self.rows, slot, side="right")) - 1
        token = f"token {slot - int(self.rows[row])}"
        return token if self.num_rows == 1 else f"row {row}, {token}"

    def place(self, name: str) -> Place:
        """Where a tensor is."""
        return Place(key=name, file=self.file)

    def row_starts(self) -> Bools:
        """``[T]``: the first slot of each row that has one."""
        starts = np.zeros(self.num_slots, dtype=np.bool_)
        starts[self.rows[:-1][np.diff(self.rows) > 0]] = True
        return starts

    def row_of_slots(self) -> Ints:
        """``[T]``: the row of each slot."""
        return np.repeat(np.arange(self.num_rows), np.diff(self.rows))


def tensors_of(batch: Any, *, name: str | None = None, file: str | None = None) -> BatchTensors:
    """Read a batch that is in memory.

    Args:
        batch: A ``PackedBatch``, a mapping of tensors, arrays or nested lists, or what this function returned.
        name: What messages call it. Default: its class.
        file: The file that it came from.

    Returns:
        Its tensors with known names.

    Raises:
        AuditError: If it is none of these, nothing in it has a value for each token, or a tensor has values of a
            kind that it cannot have.

    Example:
        >>> tensors_of({"input_ids": [[5, 6, 7], [8, 9, 4]]}).rows
        array([0, 3, 6])
    """
    if isinstance(batch, BatchTensors):
        return batch
    subject = name or type(batch).__name__
    mapping = batch.model_inputs() if hasattr(batch, "model_inputs") else batch
    if not isinstance(mapping, Mapping):
        raise AuditError(
            f"{subject} is of type {type(batch).__name__}, expected a PackedBatch, a mapping of tensors such as a "
            "collator returns, or the path of a file; pass what the model is called with"
        )
    tensors = [tensor_of(key, mapping[key], where=subject) for key in mapping if key in KNOWN]
    settings = {key: _setting(key, mapping[key], subject) for key in SETTINGS if mapping.get(key) is not None}
    if mapping.get(PAST) is not None:
        settings[PAST] = True
    found = assembled([tensor for tensor in tensors if tensor], settings, subject=subject, file=file)
    return found if mapping is batch else replace(found, tail=batch.boundaries.num_tokens)


def assembled(found: list[Tensor], settings: Mapping[str, Any], *, subject: str, file: str | None) -> BatchTensors:
    """A batch of tensors that were read, with the rows of its token ids.

    Raises:
        AuditError: If none of them has a value for each token.
    """
    tensors = {tensor.name: tensor for tensor in found}
    rows = _rows(tensors)
    if rows is None or rows[-1] == 0:
        raise AuditError(
            f"{subject} has {'no tokens' if rows is not None else 'no tensor with a value for each token'} (found: "
            f"{', '.join(sorted(tensors)) or 'nothing that is known'}), expected {TOKENS[0]} of shape [T] or [B, S], "
            "and labels, position_ids or others beside it; pass the batch that the model is called with"
        )
    batch = BatchTensors(subject=subject, file=file, tensors=tensors, settings=settings, rows=rows)
    scores = [name for name in LABELS if name in tensors and tensors[name].values.dtype.kind == "f"]
    for name in scores:
        if batch.fits(name):
            raise _not_whole(tensors[name], subject)
    kept = {name: tensor for name, tensor in tensors.items() if name not in scores}  # of a regression: no tokens
    return replace(batch, tensors=kept)


def _rows(tensors: Mapping[str, Tensor]) -> Ints | None:
    for name in (*TOKENS, *LABELS, *SHIFTED_LABELS, *NUMBERS, *POSITIONS, MASK):
        tensor = tensors.get(name)
        if tensor is None or (name == MASK and tensor.values.ndim > 2):
            continue
        if tensor.counts is not None:
            edges: Ints = np.append(np.zeros(1, dtype=np.int64), np.cumsum(tensor.counts))
            return edges
        shape = tensor.values.shape[-2:]
        count, width = shape if len(shape) == 2 else (1, shape[0])
        even: Ints = np.arange(count + 1, dtype=np.int64) * width
        return even
    return None


def tensor_of(name: str, value: Any, *, where: str, ragged: bool = False) -> Tensor | None:
    """Read one value; ``None`` for ``None``.

    Args:
        name: One that is known.
        value: A tensor, an array or a nested list.
        where: What messages call the batch.
        ragged: Whether the lists of a list may differ in length, as rows of a file may.

    Raises:
        AuditError: If values are not numbers, not whole where they have to be, or lists differ in length.
    """
    torch = sys.modules.get("torch")
    if value is None:
        return None
    if torch is not None and isinstance(value, torch.Tensor):
        return _checked(_from_torch(name, value, where), where)
    if isinstance(value, np.ndarray):
        return _checked(Tensor(name=name, values=value, dtype=str(value.dtype)), where)
    if isinstance(value, list | tuple):
        return _checked(_from_list(name, value, where, ragged=ragged or name in LENGTHS), where)
    raise AuditError(
        f"{where}, {name} is of type {type(value).__name__}, expected a tensor, an array or a list of numbers; "
        f"{_instead_of(name, value)}"
    )


def _instead_of(name: str, value: Any) -> str:
    """The way out of a value that is no tensor: a mask may be a mapping of masks, or a function."""
    if name == MASK and isinstance(value, Mapping) and value:
        kinds = ", ".join(map(str, value))
        return f"it holds a mask for each kind of layer ({kinds}): audit the batch once with each of them as {MASK}"
    if name == MASK and hasattr(value, "mask_mod"):
        return (
            "it is a function for FlexAttention: audit the batch with its cells, create_mask(mask.mask_mod, B, 1, S, S)"
            ".float().log(), of torch.nn.attention.flex_attention"
        )
    return "pass the batch as the model is called with it"


def _from_torch(name: str, value: Any, where: str) -> Tensor:
    if value.device.type == "meta":
        raise AuditError(f"{where}, {name} is on the device meta, expected values; make the batch on a real device")
    if value.layout is not sys.modules["torch"].strided or value.is_nested:
        raise AuditError(f"{where}, {name} is sparse or nested, expected values in rows; pass its to_dense()")
    host = value.detach().cpu()
    host = host.float() if host.is_floating_point() else host  # NumPy has no bfloat16
    return Tensor(name=name, values=host.numpy(), dtype=str(value.dtype), device=str(value.device))


def _from_list(name: str, value: list[Any] | tuple[Any, ...], where: str, *, ragged: bool) -> Tensor:
    nested = [isinstance(entry, list | tuple | np.ndarray) for entry in value]
    if any(nested) and not all(nested):
        raise AuditError(
            f"{where}, {name}[{nested.index(False)}] is {value[nested.index(False)]!r} beside lists, expected one list "
            "for each row"
        )
    counts = [len(entry) for entry in value] if any(nested) else []
    if len(set(counts)) > 1 and not ragged:
        odd = next(index for index, count in enumerate(counts) if count != counts[0])
        raise AuditError(
            f"{where}, {name} is ragged: row {odd} has {counts[odd]} values, expected {counts[0]} as in row 0; pad the "
            "rows to one length, for a batch is a tensor"
        )
    if len(set(counts)) > 1:
        parts = [_plain(f"{name}[{index}]", entry, where) for index, entry in enumerate(value)]
        return Tensor(name=name, values=np.concatenate(parts), counts=np.array(counts, dtype=np.int64))
    return Tensor(name=name, values=_plain(name, value, where))


def _plain(name: str, value: Any, where: str) -> NDArray[Any]:
    """A list with one length at each depth."""
    try:
        array = np.asarray(value)
    except (ValueError, OverflowError) as problem:
        raise AuditError(
            f"{where}, {name} is ragged or beyond 64 bits ({problem}); expected equal lengths"
        ) from problem
    return array.astype(np.int64) if array.size == 0 else array  # NumPy would call an empty list float64


def _checked(tensor: Tensor, where: str) -> Tensor:
    kinds = "iuf" if tensor.name in LABELS else "iu" if tensor.name in WHOLE_NUMBERS else "iufb"
    kind = tensor.values.dtype.kind
    if kind not in kinds:
        raise _not_whole(tensor, where)
    allowed = (1, 2) if tensor.name in EDGE_LIKE else (1, 2, 3, 4)
    if tensor.values.ndim not in allowed:
        raise AuditError(
            f"{where}, {tensor.name} has shape {list(tensor.values.shape)}, expected {' or '.join(map(str, allowed))} "
            "dimensions; pass the batch as the model is called with it"
        )
    return tensor


def _not_whole(tensor: Tensor, where: str) -> AuditError:
    return AuditError(
        f"{where}, {tensor.name} has dtype {tensor.dtype or tensor.values.dtype}, expected "
        f"{'whole numbers' if tensor.name in WHOLE_NUMBERS else 'numbers or booleans'}; check where it was made"
    )


def _setting(name: str, value: Any, where: str) -> Any:
    """A number or a truth value; a tensor of one element is one."""
    plain = value.tolist() if hasattr(value, "tolist") else value
    while isinstance(plain, list) and len(plain) == 1:
        plain = plain[0]
    if not isinstance(plain, int):
        raise AuditError(f"{where}, {name} is {value!r}, expected one whole number or truth value")
    return plain


def per_token(batch: BatchTensors) -> Iterator[Tensor]:
    """The tensors that should have a value for each slot."""
    return (batch.tensors[name] for name in PER_TOKEN if name in batch.tensors)
