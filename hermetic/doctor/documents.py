"""From the arguments of a training call to the documents of its rows: what is given, what can only be inferred.

Precedence is that of a sealed model: ``document_ids`` and ``seq_idx``, then ``cu_seq_lens_*``, then positions that
restart. Beyond that, two things are read that a sealed model refuses: document numbers in a 2-D ``attention_mask``,
and a ready-made 4-D mask, where a document starts at every token that does not see the one before it.
"""

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from hermetic.constants import TAIL_DOCUMENT_ID
from hermetic.probe.padding import blank_tail
from hermetic.seal.inputs import Bools, packed_rows_from_call

_GIVEN = ("document_ids", "seq_idx", "cu_seq_lens_q", "cu_seq_lens_k")


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Documents:
    """Where documents start in ``[B, S]`` token slots, and who says so."""

    starts: Bools
    """``[B, S]``: a real token that begins a document."""
    real: Bools
    """``[B, S]``: a token, not padding."""
    source: str | None
    """The argument that says it; ``None`` when the call says nothing, and each row counts as one document."""
    inferred: bool
    """Read off positions or a mask, which are made for something else; ``True`` without a source, too."""

    @property
    def lengths(self) -> tuple[int, ...]:
        """Real tokens of each document, row by row."""
        number = np.cumsum(self.starts.ravel())[self.real.ravel()]
        counts = np.bincount(number, minlength=1)[1:]
        return tuple(int(count) for count in counts)

    @property
    def seams(self) -> Bools:
        """``[B, S]``: starts that another document comes before in the same row."""
        return self.starts & (np.cumsum(self.starts, axis=1) > 1)


def named_arguments(module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """All arguments of a call by name; positional ones of a wrapper that names none are left out."""
    bound = inspect.signature(module.forward).bind_partial(*args).arguments
    return {name: value for name, value in bound.items() if name not in {"args", "kwargs"}} | dict(kwargs)


def documents_of_call(call: Mapping[str, Any], shape: tuple[int, int]) -> Documents:
    """The documents of a call over ``[B, S]`` token slots.

    Raises:
        BoundariesError: the arguments contradict each other or do not describe documents.
    """
    facts, source = dict(call), _source(call)
    mask = facts.get("attention_mask")
    numbers = _numbers_in(mask, shape)
    if numbers is not None:
        del facts["attention_mask"]
        if source is None or source == "position_ids":
            facts["document_ids"], source = numbers, "attention_mask"
    tail = _blank_tail(call, shape)
    real = _real(facts.get("attention_mask"), shape) & ~tail
    if tail.any():
        facts["attention_mask"] = torch.from_numpy(real)
    rows = packed_rows_from_call(facts, shape)
    if rows is None:
        starts = real & (np.cumsum(real, axis=1) == 1)
        return Documents(starts=starts, real=real, source=None, inferred=True)
    starts = rows.real & (rows.position_ids().numpy() == 0)
    return Documents(starts=starts, real=rows.real, source=source, inferred=source not in _GIVEN)


def _source(call: Mapping[str, Any]) -> str | None:
    return next((name for name in (*_GIVEN, "position_ids") if call.get(name) is not None), None)


def _numbers_in(mask: Any, shape: tuple[int, int]) -> torch.Tensor | None:
    """``[B, S]`` document numbers that a mask holds beyond what is padding; ``None`` for a mask of 0 and 1."""
    if not isinstance(mask, torch.Tensor):
        return None
    if mask.ndim == 2:
        return mask.long() - 1 if tuple(mask.shape) == shape and bool((mask > 1).any()) else None
    if mask.ndim != 4 or tuple(mask.shape[-2:]) != (shape[1], shape[1]):
        return None
    square = mask.detach()[:, 0]
    sees = square if square.dtype == torch.bool else square > -1.0  # added to scores: 0 lets through, very negative not
    real = sees.diagonal(dim1=1, dim2=2)
    goes_on = torch.zeros_like(real)
    goes_on[:, 1:] = sees.diagonal(offset=-1, dim1=1, dim2=2)
    numbers = (real & ~goes_on).long().cumsum(dim=1) - 1
    return numbers.masked_fill(~real, TAIL_DOCUMENT_ID).expand(shape)


def _blank_tail(call: Mapping[str, Any], shape: tuple[int, int]) -> Bools:
    ids = call.get("input_ids")
    if not isinstance(ids, torch.Tensor) or tuple(ids.shape) != shape:
        return np.zeros(shape, dtype=np.bool_)
    return blank_tail(ids, call.get("position_ids"), call.get("labels"))


def _real(mask: Any, shape: tuple[int, int]) -> Bools:
    if isinstance(mask, torch.Tensor) and tuple(mask.shape) == shape:
        return np.asarray(mask.detach().cpu() != 0, dtype=np.bool_)
    return np.ones(shape, dtype=np.bool_)
