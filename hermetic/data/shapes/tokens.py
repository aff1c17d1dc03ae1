"""Token ids, perhaps with ``labels`` (unshifted) or ``loss_mask``.

Guarantee: ids, labels and masks are whole numbers within their range, as many as there are tokens. A row that
was packed or padded before is refused: taken for one document, it would leak by construction. Price: two passes
over the numbers.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from hermetic.constants import IGNORE_INDEX
from hermetic.data.shapes.checks import check_list, check_not_empty, shown
from hermetic.data.shapes.types import TokenRecord
from hermetic.errors import RecordError

__all__ = ["parse_tokens"]

TokenArray: TypeAlias = npt.NDArray[np.int32]

_ROW_KEYS: Final = ("seq_lengths", "position_ids", "cu_seqlens", "document_ids", "attention_mask")


def parse_tokens(where: str, values: Mapping[str, Any], *, vocabulary: int) -> TokenRecord:
    """``input_ids``, perhaps with ``labels`` or ``loss_mask``."""
    present = [key for key in _ROW_KEYS if key in values and not _is_all_ones(key, values[key])]
    if present:
        raise RecordError(
            f"{where}: {present[0]!r} beside 'input_ids' shows a row that is already packed or padded, "
            "expected one unpadded document a record; give the documents themselves",
            reason="already_packed",
        )
    ids = _integers(where, "input_ids", values["input_ids"])
    check_not_empty(f"{where}: 'input_ids'", ids)
    _check_range(where, "input_ids", ids, vocabulary, allowed=())
    input_ids = np.array(ids, dtype=np.int32)
    return TokenRecord(where=where, input_ids=input_ids, labels=_labels(where, values, input_ids, vocabulary))


def _is_all_ones(key: str, value: Any) -> bool:
    """An attention mask that masks nothing says nothing about padding."""
    return key == "attention_mask" and isinstance(value, list) and all(entry == 1 for entry in value)


def _labels(where: str, values: Mapping[str, Any], input_ids: TokenArray, vocabulary: int) -> TokenArray:
    if "labels" in values:
        labels = _integers(where, "labels", values["labels"])
        _check_same_length(where, "labels", labels, len(input_ids))
        _check_range(where, "labels", labels, vocabulary, allowed=(IGNORE_INDEX,))
        return np.array(labels, dtype=np.int32)
    if "loss_mask" in values:
        mask = _integers(where, "loss_mask", values["loss_mask"])
        _check_same_length(where, "loss_mask", mask, len(input_ids))
        _check_range(where, "loss_mask", mask, 2, allowed=())
        return np.where(np.array(mask) == 1, input_ids, np.int32(IGNORE_INDEX))
    return input_ids.copy()


def _integers(where: str, key: str, value: Any) -> list[int]:
    check_list(f"{where}: {key!r}", value, "integers")
    accepted = {int, bool} if key == "loss_mask" else {int}
    integers: list[int] = value
    if set(map(type, integers)) <= accepted:
        return integers
    index, wrong = next((index, entry) for index, entry in enumerate(value) if type(entry) not in accepted)
    raise RecordError(
        f"{where}: {key}[{index}] is {shown(wrong)}, a {type(wrong).__name__}, expected an integer; "
        "write token ids as whole numbers",
        reason="not_integers",
    )


def _check_same_length(where: str, key: str, values: list[int], tokens: int) -> None:
    if len(values) != tokens:
        raise RecordError(
            f"{where}: {key!r} has {len(values)} entries for {tokens} input_ids, expected as many; "
            f"{key} stand unshifted, one for each token",
            reason="lengths_differ",
        )


def _check_range(where: str, key: str, values: list[int], bound: int, *, allowed: Iterable[int]) -> None:
    if min(values) >= 0 and max(values) < bound:
        return
    wrong = next((index for index, value in enumerate(values) if not 0 <= value < bound and value not in allowed), None)
    if wrong is not None:
        besides = "".join(f" or {value}" for value in allowed)
        raise RecordError(
            f"{where}: {key}[{wrong}] is {values[wrong]}, expected 0 to {bound - 1}{besides}; "
            "check which tokenizer wrote the record",
            reason="out_of_range",
        )
