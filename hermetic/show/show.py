"""``hermetic.show``: a row as coloured documents, and the mask under each backend's own reading.

Algorithm: the subject is read into a row (:mod:`hermetic.show.subject`); each reader's cells are counted by kind in
blocks (:mod:`hermetic.show.masks`). Guarantee: what is drawn adds up to the True cells of each mask.
Price: ``O(tokens + blocks)``, and a number for each of FlexAttention's tiles, of which a row longer than 2**20 slots
has too many; no mask of all pairs is made but for rows that are drawn cell by cell.
"""

import os
from collections.abc import Iterator, Sequence
from typing import Any, Final

from hermetic.errors import AuditError
from hermetic.show.masks import Ground, ReadAs, Rule, block_for, flex_picture, picture_of
from hermetic.show.picture import MAX_CELLS, MaskPicture, RowPicture
from hermetic.show.subject import Row, row_of

TRUTH: Final = "boundaries"
BACKENDS: Final = ("causal", "flex", "transformers_mask", "transformers_flash", "edges", "numbers", "column")
"""What can be drawn beside the boundaries' own mask."""

MAX_TILED: Final = 1 << 20
"""Slots of the longest row whose tiles are counted: there are 8,192 of them a side."""


def show(
    subject: Any,
    *,
    row: int = 0,
    window: int | None = None,
    chunk: int | None = None,
    causal: bool = True,
    backends: Sequence[str] | None = None,
    tokenizer: str | os.PathLike[str] | None = None,
) -> RowPicture:
    """Draw a row: its documents, what stands in each slot, and which tokens each token may read.

    Args:
        subject: lengths of documents, ``Boundaries``, a ``PackedBatch``, a mapping of model inputs, the path of a
            file of a batch, or of a folder that ``hermetic pack`` made.
        row: which row, from 0.
        window: a token sees itself and the ``window - 1`` tokens before it (causal only).
        chunk: a token sees its own chunk of so many tokens only, counted from its document's start.
        causal: a token sees no later token.
        backends: which masks to draw beside that of the boundaries: ``causal``, ``flex``; of model inputs also
            ``transformers_mask``, ``transformers_flash``, ``edges``, ``numbers`` and ``column``. By default all that
            apply, the last three only where they are wrong.
        tokenizer: folder or hub id of a tokenizer, to show texts instead of ids.

    Returns:
        A picture that shows itself in a terminal (``rich.print``) and in a notebook, and writes SVG, PNG and JSON.

    Raises:
        AuditError: the subject cannot be shown, or options do not fit it or each other.
        BoundariesError: the lengths are none.

    Example:
        >>> picture = show([3, 5], backends=["causal"])
        >>> picture.mask("boundaries").total("own"), picture.mask("causal").total("leak")
        (21, 15)
    """
    rule = _rule(causal=causal, window=window, chunk=chunk)
    chosen = _chosen(backends)
    found = row_of(subject, row, tokenizer)
    ground = Ground(lengths=found.lengths, real=found.real, rule=rule, block=block_for(len(found.real)))
    drawn = list(_pictures(found, ground, chosen, asked=backends is not None))
    masks = tuple(one for one in drawn if isinstance(one, MaskPicture))
    texts = _texts(found)
    _require_all(backends, masks, found)
    return RowPicture(
        subject=found.subject,
        row=found.row,
        num_rows=found.num_rows,
        causal=causal,
        window=window,
        chunk=chunk,
        documents=found.documents(),
        document_ids=found.document_ids,
        positions=found.positions,
        ids=found.ids,
        texts=texts,
        labels=found.labels,
        masks=masks,
        notes=(
            *found.notes,
            *(one for one in drawn if isinstance(one, str)),
            *([_why_no_texts(found)] if tokenizer is not None and texts is None else []),
        ),
    )


def _rule(*, causal: bool, window: int | None, chunk: int | None) -> Rule:
    for name, value in (("window", window), ("chunk", chunk)):
        if value is not None and (type(value) is not int or value < 1):
            raise AuditError(f"{name} is {value!r}, expected a whole number of at least 1 token, or None for no {name}")
    if window is not None and not causal:
        raise AuditError(
            f"window is {window} with causal=False; a window counts tokens before the current one, so that it needs "
            "causal=True"
        )
    return Rule(causal=causal, window=window, chunk=chunk)


def _chosen(backends: Sequence[str] | None) -> frozenset[str]:
    unknown = sorted(set(backends or ()) - {*BACKENDS, TRUTH})
    if unknown or isinstance(backends, str):
        raise AuditError(f"backends is {backends!r}, expected some of {', '.join(BACKENDS)}")
    return frozenset(BACKENDS if backends is None else backends)


def _require_all(backends: Sequence[str] | None, masks: Sequence[MaskPicture], row: Row) -> None:
    missing = sorted(set(backends or ()) - {mask.name for mask in masks})
    if missing:
        raise AuditError(
            f"{row.subject} cannot be drawn as {', '.join(missing)}, for it holds nothing that those readers look at, "
            "or they fail on it; expected model inputs with what they read. Leave backends out to see all that apply"
        )


def _pictures(row: Row, ground: Ground, chosen: frozenset[str], *, asked: bool) -> Iterator[MaskPicture | str]:
    rule = ground.rule
    yield picture_of(
        ground,
        ReadAs(name=TRUTH, title="As it should be", says=_truth_says(rule), pattern=ground.right),
    )
    if "causal" in chosen:
        pattern = ground.cut((ground.num_slots,))
        yield picture_of(
            ground, ReadAs(name="causal", title=_plain_title(rule), says=_plain_says(rule), pattern=pattern)
        )
    if "flex" in chosen and ground.num_slots > MAX_TILED:
        yield f"FlexAttention is not drawn: its tiles are counted for rows of up to {MAX_TILED:,} slots"
    elif "flex" in chosen:
        yield flex_picture(ground, title="FlexAttention", says=_flex_says(ground))
    if row.inputs is not None:
        yield from _readers(row, ground, chosen, asked=asked)


def _readers(row: Row, ground: Ground, chosen: frozenset[str], *, asked: bool) -> Iterator[MaskPicture | str]:
    from hermetic.show.inputs import ALWAYS_DRAWN, readers_of

    for reading in readers_of(row, ground):
        if isinstance(reading, str):
            yield reading
        elif reading.name in chosen:
            drawn = picture_of(ground, reading)
            if asked or reading.name in ALWAYS_DRAWN or not drawn.is_right:
                yield drawn


def _truth_says(rule: Rule) -> str:
    past = "itself and earlier tokens" if rule.causal else "every token"
    limits = [
        *([] if rule.window is None else [f"at most {rule.window} of them"]),
        *([] if rule.chunk is None else [f"in its chunk of {rule.chunk}"]),
    ]
    return f"A token reads {past} of its own document{''.join(f', {limit}' for limit in limits)}."


def _plain_title(rule: Rule) -> str:
    return "Plain causal mask" if rule.causal else "No mask"


def _plain_says(rule: Rule) -> str:
    kept = [f"the {name}" for name, value in (("window", rule.window), ("chunk", rule.chunk)) if value is not None]
    but = f", but for {' and '.join(kept)}" if kept else ""
    return f"Nobody tells where documents start, so the row is read as one{but}."


def _flex_says(ground: Ground) -> str:
    strong, faint = (
        ("with a thick frame", "with a dashed one") if ground.block == 1 else ("in strong colours", "in faint ones")
    )
    return f"Told the documents: tiles {strong} are computed whole, {faint} cell by cell, others are skipped."


def _why_no_texts(row: Row) -> str:
    """What became of the tokenizer that was named."""
    if row.ids is None:
        return "the tokenizer is not used: there are no tokens here that have a text"
    return (
        f"the tokenizer is not used: texts are shown of rows of up to {MAX_CELLS} slots, and this one has "
        f"{len(row.ids):,}. hermetic inspect --show 1 --tokenizer shows those of a packed folder"
    )


def _texts(row: Row) -> tuple[str, ...] | None:
    """Texts of tokens for a row whose every slot is drawn."""
    if row.tokenizer is None or row.ids is None or len(row.ids) > MAX_CELLS:
        return None
    from hermetic.data.show import texts_of

    texts: list[str] = []
    start = 0
    for run in row.runs:
        texts += [text for text, _ in texts_of(row.tokenizer, row.ids[start : start + run.length].tolist())]
        start += run.length
    return tuple(texts)
