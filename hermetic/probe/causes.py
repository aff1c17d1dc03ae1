"""What in a call lets documents reach each other: facts of the arguments that arrived, beside the leak itself.

Algorithm: the arguments of the outermost module that is fed the tokens are read. Two causes cannot be read off an
argument, for they lie in what the model makes of it; these are measured by calling it otherwise. A mask over pairs of
tokens is written as one that is added to scores: it is the cause if the leak is gone then. Boundaries are left out:
nobody has read them if the logits are the same to the bit.
Guarantee: each finding was seen or measured in this very call, none is told from a model's name. A sealed model makes
nothing of masks of ones and caches, so they are not held against it.
Price: only where something leaks: four forwards at most for a mask over pairs, and at most four for boundaries.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from hermetic.batch import Boundaries, PackedBatch
from hermetic.errors import BoundariesError, HermeticError
from hermetic.probe.instruments import with_documents_replaced
from hermetic.probe.observe import CACHES, Observation, named_arguments, restarts
from hermetic.probe.rebuild import BOUNDARY_ARGUMENTS, EDGES, IDS, LONGEST
from hermetic.probe.report import Finding
from hermetic.probe.subject import Subject
from hermetic.seal import is_sealed
from hermetic.seal.measure import FLOOR_FACTOR, FORWARD_FAILURES, largest_difference

Pair = tuple[int, int]
"""The document that is reached, and the one that reaches it."""


def causes(
    subject: Subject,
    batch: PackedBatch,
    observation: Observation | None,
    *,
    pair: Pair,
    noise_floor: float | None,
    in_a_module: bool,
) -> list[Finding]:
    """What in the call turned isolation off, or never turned it on.

    ``in_a_module``: a module that leaks was found. Where none was, none is blamed for what it does not read.
    """
    if observation is None or observation.outermost is None:
        return []
    found = _no_boundaries(observation) or _wrong_boundaries(observation, batch)
    if is_sealed(observation.outermost) or (found and found[0].code == "HM107"):
        return found
    noise = FLOOR_FACTOR * (noise_floor or 0.0)
    found += [*_two_dimensional_masks(observation), *_caches(observation)]
    found += _mask_of_another_kind(subject, batch, observation, pair, noise)
    return found if found or not in_a_module else _unread_boundaries(subject, batch, observation)


def _two_dimensional_masks(observation: Observation) -> list[Finding]:
    mask = observation.attention_mask
    if mask is not None and bool((mask > 1).any()):
        return [
            Finding(
                code="HM103",
                what="document numbers in a 2-D attention_mask: transformers makes booleans of them",
                size=float(mask.max()),
                unit="largest number",
                where="attention_mask",
                way_out="Pass document_ids to a sealed model",
            )
        ]
    if mask is not None and bool(mask.bool().all()):
        return [
            Finding(
                code="HM101",
                what="an all-ones attention_mask: transformers then looks for no packed documents",
                size=float(mask.numel()),
                unit="ones",
                where="attention_mask",
                way_out="Leave it out, or call hermetic.seal(model)",
            )
        ]
    return []


def _caches(observation: Observation) -> list[Finding]:
    found = []
    if observation.makes_cache:
        found.append(
            Finding(
                code="HM102",
                what="a cache: transformers then looks for no packed documents",
                size=1.0,
                unit="cache",
                where="use_cache",
                way_out="Pass use_cache=False, or call hermetic.seal(model)",
            )
        )
    if observation.given_cache:
        found.append(
            Finding(
                code="HM106",
                what="a cache was handed in: transformers then looks for no packed documents",
                size=1.0,
                unit="cache",
                where=next((name for name in CACHES if observation.arguments.get(name) is not None), CACHES[0]),
                way_out="Leave it out. Of adapters, take one inside of the layers, such as LoRA: a tuned "
                "prefix is a cache",
            )
        )
    return found


def _no_boundaries(observation: Observation) -> list[Finding]:
    """Neither positions nor any other tensor from which documents could be told."""
    arguments = observation.arguments
    tensors = {name: value for name, value in arguments.items() if isinstance(value, torch.Tensor)}
    mask = observation.attention_mask
    silent = {"input_ids", "input", "inputs_embeds", "labels"} | ({"attention_mask"} if _is_ones(mask) else set())
    said = [name for name in BOUNDARY_ARGUMENTS if arguments.get(name) is not None]
    if observation.positions is not None or said or not tensors or not tensors.keys() <= silent:
        return []
    given = ", ".join(name for name, value in arguments.items() if value is not None)
    return [
        Finding(
            code="HM107",
            what=f"nothing says where documents start: {type(observation.outermost).__name__} was given {given}, and "
            "no module was given positions",
            size=float(len(tensors)),
            unit="tensors, none of them boundaries",
            where="forward",
            way_out="Call hermetic.seal(model), and pass batch.model_inputs()",
        )
    ]


def _is_ones(mask: torch.Tensor | None) -> bool:
    return mask is not None and bool((mask == 1).all())


def _wrong_boundaries(observation: Observation, batch: PackedBatch) -> list[Finding]:
    """Boundaries that arrived and are not those of the documents."""
    edges = {int(edge) for edge in batch.boundaries.cu_seqlens}
    tokens = batch.boundaries.num_tokens
    for name in (*EDGES, *IDS):
        arrived = _edges_of(name, observation.arguments.get(name), tokens)
        wrong = sorted(arrived ^ edges) if arrived is not None else []
        if wrong:
            said = "an edge" if wrong[0] in arrived else "no edge"  # type: ignore[operator]  # it is not None
            return [
                Finding(
                    code="HM110",
                    what=f"{name} has other documents than the batch: {said} at token {wrong[0]}, and the batch's "
                    f"edges are {', '.join(map(str, sorted(edges)[:8]))}{', ...' if len(edges) > 8 else ''}",
                    size=float(len(wrong)),
                    unit="edges",
                    where=name,
                    way_out="Count again: starts at 0, each edge is the first token of the next document, and the last "
                    "one the number of tokens",
                )
            ]
    return []


def _edges_of(name: str, value: Any, tokens: int) -> set[int] | None:
    """The edges that an argument says, in a stream of so many tokens; ``None`` where it is about another layout."""
    if value is None:
        return None
    values = torch.as_tensor(value).detach().cpu()
    if values.ndim == 2 and len(values) > 1:  # several rows, which may count anew
        return None
    values = values.flatten()
    if name in EDGES:
        return set(values.tolist()) if int(values[-1]) <= tokens else None
    try:
        found = Boundaries.from_document_ids(_counted(values)) if len(values) == tokens else None
    except BoundariesError:
        return None
    return None if found is None else set(found.cu_seqlens.tolist())


def _counted(numbers: torch.Tensor) -> torch.Tensor:
    """Runs of equal numbers counted from 0."""
    return (numbers.diff(prepend=numbers[:1]) != 0).cumsum(0).to(torch.int32)


def _mask_of_another_kind(
    subject: Subject, batch: PackedBatch, observation: Observation, pair: Pair, noise: float
) -> list[Finding]:
    """A mask of booleans, or of ones and zeros, that is added to scores: written as numbers, it isolates."""
    mask = observation.arguments.get("attention_mask")
    if not isinstance(mask, torch.Tensor) or mask.ndim < 3 or not bool(((mask == 0) | (mask == 1)).all()):
        return []
    moved = _moved(subject, batch, pair)
    assert observation.outermost is not None  # noqa: S101 - causes asks of calls alone
    with _called_with(observation.outermost, {"attention_mask": _additive}):
        try:
            moved_under_numbers = _moved(subject, batch, pair)
        except (HermeticError, *FORWARD_FAILURES):
            return []
    if moved <= noise or moved_under_numbers > noise:
        return []
    kind = "booleans" if mask.dtype == torch.bool else "ones and zeros"
    return [
        Finding(
            code="HM109",
            what=f"a mask of {kind} over pairs of tokens is added to scores, so it blocks nothing",
            size=float(mask.numel()),
            unit=f"numbers of {mask.dtype}".replace("torch.", ""),
            where="attention_mask",
            way_out="Pass 0 where a token may see and the lowest number of the dtype where not: "
            "hermetic.batch.dialects.additive_mask",
        )
    ]


def _additive(mask: torch.Tensor) -> torch.Tensor:
    """0 for ones, and the lowest number for zeros."""
    dtype = mask.dtype if mask.is_floating_point() else torch.get_default_dtype()
    return torch.zeros_like(mask, dtype=dtype).masked_fill(mask == 0, torch.finfo(dtype).min)


def _moved(subject: Subject, batch: PackedBatch, pair: Pair) -> float:
    """How far the document that is reached moves when the other one is replaced."""
    reached, source = pair
    lengths = list(batch.boundaries.document_lengths)
    with torch.no_grad():
        before = subject.logits(batch).split(lengths)[reached]
        after = subject.logits(with_documents_replaced(batch, [source])).split(lengths)[reached]
    return largest_difference(before, after)


def _unread_boundaries(subject: Subject, batch: PackedBatch, observation: Observation) -> list[Finding]:
    """Boundaries that were passed and change nothing."""
    groups: list[Sequence[str]] = [(*EDGES, *LONGEST), *((name,) for name in IDS)]
    if observation.positions is None or restarts(observation.positions, batch):
        groups.append(("position_ids",))
    unread: list[str] = []
    for group in groups:
        given = [name for name in group if observation.arguments.get(name) is not None]
        if given and _same_without(subject, batch, observation, [*unread, *given]):
            unread += given
    if not unread:
        return []
    return [
        Finding(
            code="HM108",
            what=f"{', '.join(unread)}: passed and read by nobody, for the logits are the same to the bit without",
            size=float(len(unread)),
            unit="arguments",
            where=unread[0],
            way_out="Call hermetic.seal(model), which reads them, or install the kernels that do",
        )
    ]


def _same_without(subject: Subject, batch: PackedBatch, observation: Observation, names: Sequence[str]) -> bool:
    assert observation.outermost is not None  # noqa: S101 - causes asks of calls alone
    with torch.no_grad(), _called_with(observation.outermost, dict.fromkeys(names, _left_out)):
        try:
            return torch.equal(subject.logits(batch), subject.row(batch))
        except (HermeticError, *FORWARD_FAILURES):
            return False


@contextmanager
def _called_with(module: nn.Module, changes: Mapping[str, Callable[[Any], Any]]) -> Iterator[None]:
    """Some arguments of a module are changed for the duration; what becomes ``None`` is left out."""

    def change(
        module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        placed = named_arguments(module, args)
        named = placed | kwargs
        changed = {name: changes[name](value) if name in changes else value for name, value in named.items()}
        left = {name: value for name, value in changed.items() if value is not None or named[name] is None}
        return args[len(placed) :], left

    handle = module.register_forward_pre_hook(change, prepend=True, with_kwargs=True)
    try:
        yield
    finally:
        handle.remove()


def _left_out(_: Any) -> None:
    """What becomes of an argument that is not passed."""
