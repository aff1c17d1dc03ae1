"""What can be read off a batch without running a model: targets across seams, weights, documents without boundaries."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from hermetic.constants import IGNORE_INDEX
from hermetic.doctor.documents import Documents
from hermetic.markup import counted
from hermetic.probe import Finding

Ints = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True, slots=True)
class Checked:
    """Findings, and remarks that are none."""

    findings: tuple[Finding, ...] = ()
    notes: tuple[str, ...] = ()


def check_targets(call: Mapping[str, Any], ids: Ints, documents: Documents, *, shifts: bool) -> Checked:
    """Whether a token is trained to predict a token of another document, or the wrong token of its own.

    Args:
        call: arguments by name; ``labels`` and ``shift_labels`` are looked at.
        ids: ``[B, S]`` token ids.
        documents: where documents start in them.
        shifts: the model shifts ``labels`` itself, as transformers' models do. Otherwise the labels' own values tell.
    """
    name = next((name for name in ("labels", "shift_labels") if call.get(name) is not None), None)
    if name is None or call[name].numel() != ids.size:
        return Checked(
            notes=("no labels in the call: the loss is made outside of the model, so targets were not seen",)
        )
    labels = call[name].detach().cpu().numpy().reshape(ids.shape)
    moved = name == "shift_labels" or _are_shifted(labels, ids)
    if moved and shifts and name == "labels":
        return Checked(findings=(_shifted_twice(labels),))
    targets = labels if moved else _shifted(labels)
    wrong = _before(documents.seams) & (targets != IGNORE_INDEX)
    return Checked(
        findings=(_across_a_seam(int(wrong.sum()), int(documents.seams.sum()), name),) if wrong.any() else (),
        notes=_weights(call, targets, wrong, documents),
    )


def _shifted(labels: Ints) -> Ints:
    """What each slot is trained to predict: the label of the next."""
    targets = np.full_like(labels, IGNORE_INDEX)
    targets[:, :-1] = labels[:, 1:]
    return targets


def _before(seams: NDArray[np.bool_]) -> NDArray[np.bool_]:
    last = np.zeros_like(seams)
    last[:, :-1] = seams[:, 1:]
    return last


def _are_shifted(labels: Ints, ids: Ints) -> bool:
    """Whether labels name the next token rather than their own, by their values."""
    supervised = labels[:, :-1] != IGNORE_INDEX
    own = int((supervised & (labels[:, :-1] == ids[:, :-1])).sum())
    following = int((supervised & (labels[:, :-1] == ids[:, 1:])).sum())
    return following > own and 2 * following > int(supervised.sum())


def _shifted_twice(labels: Ints) -> Finding:
    return Finding(
        code="HM403",
        what="labels are shifted already, and the model shifts them again: each token learns the one after the next",
        size=float((labels != IGNORE_INDEX).sum()),
        unit="labels",
        where="labels",
        way_out="Pass labels unshifted, as copies of input_ids with -100 where nothing is to be learned",
    )


def _across_a_seam(wrong: int, seams: int, name: str) -> Finding:
    where = "the first token of each document" if name == "labels" else "the last token of each document"
    return Finding(
        code="HM401",
        what="the last token of a document is trained to predict the first token of the next one",
        size=float(wrong),
        unit=f"of {counted(seams, 'seam')}",
        where=name,
        way_out=f"Set {name} to -100 at {where} in the collator, or call hermetic.seal(model), which does",
    )


def _weights(call: Mapping[str, Any], targets: Ints, wrong: NDArray[np.bool_], documents: Documents) -> tuple[str, ...]:
    """How much each document counts in the loss of this call."""
    trained = documents.real & (targets != IGNORE_INDEX) & ~wrong
    number = np.cumsum(documents.starts.ravel())[trained.ravel()]
    each = np.bincount(number, minlength=len(documents.lengths) + 1)[1:]
    silent = int((each == 0).sum())
    notes = [counted(int(trained.sum()), "supervised token")]
    if silent:
        notes.append(_silence(silent, len(each)))
    given = call.get("num_items_in_batch")
    if given is None:
        notes.append("what the loss is divided by is decided outside of this call, and was not seen")
    else:
        notes.append(f"the loss is divided by num_items_in_batch = {_number(given):g}, for all batches of the step")
    return tuple(notes)


def _silence(silent: int, count: int) -> str:
    verbs = "has no supervised token and teaches" if silent == 1 else "have no supervised token and teach"
    return f"{silent} of {counted(count, 'document')} {verbs} nothing"


def _number(value: Any) -> float:
    return float(value.sum() if isinstance(value, torch.Tensor) else value)


def check_text(ids: Ints, real: NDArray[np.bool_], *, begin: frozenset[int], end: frozenset[int]) -> Checked:
    """Whether rows without boundaries look like several documents, by the tokens that begin and end a text.

    A begin inside a row is one. So are ends inside if half of the rows or more are full and broken off, as text is
    that was concatenated and cut; other ends inside may be the turns of a conversation, which is a remark.
    """
    if not begin | end:
        return Checked(notes=("the model's configuration names no token that begins or ends a text",))
    inside = real & (np.cumsum(real, axis=1) > 1)
    begins = int((np.isin(ids, list(begin - end)) & inside).sum())
    ending = np.isin(ids, list(end))
    more_follows = real & (np.cumsum(real[:, ::-1], axis=1)[:, ::-1] > 1)
    ends = ending & more_follows & ~_tail(ending)
    cut = ends.any(axis=1) & real.all(axis=1) & ~ending[:, -1]
    if begins or 2 * int(cut.sum()) >= len(ids):
        return Checked(findings=(_without_boundaries(begins or int(ends.sum())),))
    if ends.any():
        count = int(ends.sum())
        ending_tokens = "1 token that ends a text lies" if count == 1 else f"{count:,} tokens that end a text lie"
        return Checked(notes=(f"{ending_tokens} inside rows: as it seems, turns of a conversation",))
    return Checked()


def _tail(ending: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Slots from which on a row holds nothing but such tokens: padding with the end-of-text token."""
    return np.logical_and.accumulate(ending[:, ::-1], axis=1)[:, ::-1]


def _without_boundaries(count: int) -> Finding:
    return Finding(
        code="HM602",
        what="rows without boundaries that look like several documents: nothing says where one starts, so nothing can "
        "isolate them",
        size=float(count),
        unit="begins or ends of a text inside rows",
        where="the batch",
        way_out="Unless these are turns of long conversations, pack whole documents and let position_ids restart: "
        "TRL's packing_strategy='bfd' in place of 'wrapped', DataCollatorWithFlattening, or hermetic.plan_rows",
    )


def contradiction(error: Exception) -> Finding:
    """Arguments that say different things about where documents start."""
    return Finding(
        code="HM603",
        what=f"the call's boundaries cannot be read: {error}",
        size=1.0,
        unit="contradiction",
        where="the batch",
        way_out="Pass one of them, such as position_ids that restart with each document",
    )
