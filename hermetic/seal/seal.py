"""Seal a model: make it treat each packed document as if it were alone, whatever its caller passes.

Algorithm: the model's attention implementation becomes hermetic's (``interface``), and a forward pre-hook
turns whatever says where documents start into boundaries for that forward pass (``door``, ``channel``). Then
the sealed model is measured on a few tokens (``trial``); a model that still leaks, or whose packed documents
differ from the same documents alone, is given back as it was, with an error that names the module.
Guarantee: a model that ``seal`` returns isolated its documents exactly: gradients across seams were 0.0.
``unseal`` restores configuration and hooks exactly; parameters are never touched.
Price: a handful of passes over 17 tokens at sealing; afterwards one copy of the position ids to the host per
forward pass.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from hermetic.attention import BACKENDS, available_backends
from hermetic.errors import BackendError, MissingDependencyError, SealError
from hermetic.seal.channel import Ticket
from hermetic.seal.checkpointing import stop_carrying
from hermetic.seal.door import Close, Door, original_of, settings_of
from hermetic.seal.judging import dtype_in_use, precision_of_trial
from hermetic.seal.measure import evaluation
from hermetic.seal.mixers import Dtypes, Mixers, dtypes_of
from hermetic.seal.sharded import refuse_sharded
from hermetic.seal.trial import LONGER, Measured, Trial
from hermetic.seal.unpack import Unpacked, remove_all

Model = TypeVar("Model", bound=nn.Module)

_FITTINGS = "_hermetic_fittings"
"""Attribute of the outermost transformers model inside a sealed one; gone after ``unseal``."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SealedModule:
    """One token mixer of a sealed model: how it is kept inside documents, and what that costs."""

    name: str
    kind: str
    how: str
    """``"interface"``: through hermetic's attention. ``"unpack"``: run document by document, as padded batches."""
    causal: bool | None = None
    """The pattern inside a document, of attention through the interface; ``None`` for other modules."""
    window: int | None = None
    chunk: int | None = None
    reason: str | None = None
    """Why a module is unpacked: what kept it from going through the interface."""
    padding_share: float = 0.0
    """Pads among the slots that an unpacked module has run on since it was sealed."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SealReport:
    """What was sealed and how, and what the check measured."""

    backend: str
    original: tuple[tuple[str, str | None], ...]
    """Each transformers model inside, by module name, and the attention implementation it had before."""
    modules: tuple[SealedModule, ...]
    """The modules that mix tokens, in the order in which the model holds them."""
    native: bool
    """The model's own kernels keep documents apart, by the boundaries that the seal gives them."""
    judged_in: str
    """The dtype in which the seal looked for what has to be unpacked: ``float32`` also for a model of low precision,
    whose own roundings may hide it, unless the model or the backend cannot run in float32."""
    leak: float
    """Largest gradient across a seam in the check; exactly 0.0."""
    equivalence: float
    """Largest logit difference between a packed document and the same document alone."""
    noise_floor: float
    """Largest logit difference that rounding alone may make on this model and dtype."""


@dataclass(kw_only=True, slots=True)
class _Fittings:
    """All that sealing put into a model, for taking it out again; copied along with the model."""

    doors: list[tuple[nn.Module, Door]]
    handles: list[RemovableHandle]
    mixers: dict[int, Unpacked] = field(default_factory=dict)
    report: SealReport | None = None


@torch.inference_mode(mode=False)  # the trial takes gradients
def seal(model: Model, *, backend: str = "sdpa") -> Model:
    """Make a transformers model watertight against packing; returns the same object.

    Works on the model itself or on a wrapper around it (PEFT). From then on the model takes packed rows in
    any of these forms: ``document_ids``, ``cu_seq_lens_q``, or ``position_ids`` that restart; with or without
    an all-ones ``attention_mask``, with ``use_cache`` left alone, one row or several. Rows of one document
    and generation run exactly as before. Labels at seams are masked out.

    Seal after wrapping: the seal sees only what a wrapper hands on, and PEFT's prompt tuning, for one, adds
    tokens and drops the positions. Sealing such a wrapper is refused.

    Args:
        model: a transformers model, or a module that holds one. Sealing it again replaces the first seal.
        backend: the attention backend of packed rows, one of ``hermetic.attention.BACKENDS``.

    Raises:
        SealError: the model mixes tokens in a way that cannot be sealed, or is part of a model that is sealed; it is
            left as it was.
        BackendError: there is no such backend, or it cannot run where the model is.
    """
    refuse_sharded(model)
    _refuse_unusable(backend, model)
    inner = _transformers_models(model)
    if not inner:
        raise SealError(
            f"{type(model).__name__} holds no transformers model; expected a PreTrainedModel or a module around "
            "one. In other models call hermetic.packed_attention in the attention layers"
        )
    unseal(model)
    _refuse_part_of_a_sealed_model(model)
    _refuse_batch_statistics(model)
    with evaluation(model):
        trial = Trial(model)
        with torch.no_grad():
            trial.as_one_document()  # a model that cannot run alone is not blamed for packing
        precision = precision_of_trial(trial, backend)
        dtypes = dtypes_of(trial)
        with precision.entered(), torch.no_grad():
            alone = trial.as_one_document()
    fittings = _install([module for _, module in inner], backend)
    try:
        with evaluation(model):
            with precision.entered():
                _keep_what_one_document_gets(trial, alone, fittings)
                measured = _made_watertight(trial, fittings, dtypes)
                measured = _made_watertight_from_afar(model, fittings, dtypes) or measured
            if precision.is_raised:
                measured = replace(trial.measure(), visited=measured.visited)
                _forget_padding(fittings)
            with torch.no_grad():
                trial.as_one_document()  # a model that keeps state between calls (RecurrentGemma) keeps none of a graph
    except BaseException:
        unseal(model)
        raise
    fittings.report = SealReport(
        backend=backend,
        original=tuple((name, door.settings[0][1]) for (name, _), (_, door) in zip(inner, fittings.doors, strict=True)),
        modules=tuple(_sealed_modules(model, measured.visited, fittings)),
        native=fittings.doors[0][1].native,
        judged_in=str(precision.dtype).removeprefix("torch."),
        leak=measured.leak,
        equivalence=measured.equivalence,
        noise_floor=measured.noise_floor,
    )
    return model


def unseal(model: Model) -> Model:
    """Undo ``seal`` exactly: hooks and configuration are as they were. Unsealed models are left alone."""
    for module in model.modules():
        fittings = vars(module).get(_FITTINGS)
        if isinstance(fittings, _Fittings):
            for handle in fittings.handles:
                handle.remove()
            for owner, door in fittings.doors:
                door.restore(owner.config)
            remove_all(fittings.mixers)
            stop_carrying(model)
            delattr(module, _FITTINGS)
    return model


def seal_report(model: nn.Module) -> SealReport:
    """What was sealed and how, module by module.

    Raises:
        SealError: the model is not sealed.
    """
    for module in model.modules():
        fittings = vars(module).get(_FITTINGS)
        if isinstance(fittings, _Fittings) and fittings.report is not None:
            now = {module.name: module for module in _sealed_modules(model, {}, fittings)}
            modules = tuple(now.get(module.name, module) for module in fittings.report.modules)
            return replace(fittings.report, modules=modules)
    raise SealError(
        f"{type(model).__name__} is not sealed, so there is nothing to report; call hermetic.seal(model) first"
    )


def is_sealed(model: nn.Module) -> bool:
    """Whether this model, or one inside it, is sealed."""
    return any(_FITTINGS in vars(module) for module in model.modules())


def _refuse_unusable(backend: str, model: nn.Module) -> None:
    """A backend that cannot run at all where the model is, in its dtype, is refused before anything is touched."""
    if backend not in BACKENDS:
        raise BackendError(f"backend is {backend!r}; expected one of {', '.join(map(repr, BACKENDS))}")
    found = dtype_in_use(model)
    if found is None:
        return
    device, dtype = found
    status = available_backends(device)[backend]
    if dtype not in status.backward:
        raise BackendError(
            f"backend {backend!r} cannot train a model in {dtype} on {device}: {status.why_not}. Choose another one "
            "from hermetic.available_backends(); to train in mixed precision, seal under that torch.autocast"
        )


def _refuse_part_of_a_sealed_model(model: nn.Module) -> None:
    """Two seals over one configuration cannot both be undone."""
    for name, module in model.named_modules():
        if any(isinstance(hook, Door) for hook in module._forward_pre_hooks.values()):  # noqa: SLF001 - hooks have no public list
            raise SealError(
                f"{name or 'the model'} ({type(module).__name__}) is part of a model that is sealed already; use it as "
                "it is, or call hermetic.unseal on that whole model first"
            )


def _refuse_batch_statistics(model: nn.Module) -> None:
    for name, module in model.named_modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):  # noqa: SLF001 - the base of all kinds of batch norm
            raise SealError(
                f"{name} ({type(module).__name__}) takes its statistics over all tokens of a batch in training, so "
                "documents reach each other whatever their boundaries; expected a norm of each token, as LayerNorm"
            )


def _transformers_models(model: nn.Module) -> list[tuple[str, nn.Module]]:
    try:
        from transformers import PreTrainedModel
    except ImportError as error:
        raise MissingDependencyError(
            "sealing needs transformers, which is not installed; pip install 'hermetic[hf]'"
        ) from error
    return [(name, module) for name, module in model.named_modules() if isinstance(module, PreTrainedModel)]


def _keep_what_one_document_gets(trial: Trial, alone: torch.Tensor, fittings: _Fittings) -> None:
    """Leave a model its own attention if it computes something else under another name of it.

    Falcon, and models that choose keys (DeepSeek V3.2), ask for the implementation by name and go another way
    under any name but PyTorch's.
    """
    if trial.is_as(alone):
        return
    for owner, door in fittings.doors:
        door.leave_attention(owner.config)
    if not trial.is_as(alone):
        raise SealError(
            f"{type(trial.model).__name__} gives other logits for one document after it was prepared for sealing than "
            "before; expected the same. It may keep state between calls: train this model on padded rows"
        )


def _made_watertight(trial: Trial, fittings: _Fittings, dtypes: Dtypes) -> Measured:
    """Mend what leaks, from what costs nothing to what always works, until the model passes its trial.

    The attention interface alone, and with it the modules that number documents by their tokens or scale positions by
    their lengths; then the boundaries for kernels of the model's own; then each mixing module unpacked; at last the
    whole model inside its head.
    """
    numbering = trial.numbering()
    _for_all(fittings, "numbering", numbering)
    _for_all(fittings, "masks", not trial.minds_a_mask_of_ones())
    mixers = Mixers(trial, fittings.doors[0][0], lambda module: _original_around(fittings, module), dtypes)
    fittings.mixers = mixers.installed
    refusal: SealError | None = None
    if numbering.by_token:
        mixers.restore_positions()
    for mend in (Mixers.uncouple_lengths, _natively, _unpacked, Mixers.unpack_whole):
        _for_all(fittings, "native", mend is _natively)
        mend(mixers)
        _for_all(fittings, "carries", bool(mixers.installed))
        try:
            measured = trial.measure()
        except SealError as error:
            refusal = refusal or error
        else:
            _forget_padding(fittings)
            return measured
    assert refusal is not None  # noqa: S101 - the loop returns or refuses
    raise refusal


def _made_watertight_from_afar(model: nn.Module, fittings: _Fittings, dtypes: Dtypes) -> Measured | None:
    """Look again with longer documents, and mend with those; ``None`` where there is nothing to mend."""
    trial = Trial(model, LONGER)
    if not trial.has_positions_for(max(LONGER)):
        return None
    if not trial.leaks():
        _forget_padding(fittings)
        return None
    if not trial.has_positions_for(sum(LONGER)):
        return trial.measure()  # refuses: modules cannot be asked without a run over all tokens as one document
    remove_all(fittings.mixers)
    return _made_watertight(trial, fittings, dtypes)


def _forget_padding(fittings: _Fittings) -> None:
    """That of the trial is nobody's."""
    for unpacked in fittings.mixers.values():
        unpacked.forget_padding()


def _for_all(fittings: _Fittings, attribute: str, value: Any) -> None:
    for _, door in fittings.doors:
        setattr(door, attribute, value)


def _natively(mixers: Mixers) -> None:
    """Leave the modules as they are: the doors give them their boundaries."""


def _unpacked(mixers: Mixers) -> None:
    mixers.unpack_mixers()
    mixers.restore_positions()
    mixers.uncouple_lengths()


def _original_around(fittings: _Fittings, module: nn.Module) -> str:
    """The attention implementation, before the seal, of the innermost transformers model around a module."""
    around = [door for owner, door in fittings.doors if any(child is module for child in owner.modules())]
    return original_of(around[-1].settings[0][1])


def _install(models: list[nn.Module], backend: str) -> _Fittings:
    # Read every setting before changing one: models inside each other share configurations.
    doors = [(module, Door(backend, settings_of(module.config))) for module in models]
    fittings = _Fittings(doors=doors, handles=[])
    for module, door in doors:
        door.install(module.config)
        fittings.handles.append(module.register_forward_pre_hook(door, with_kwargs=True))
        fittings.handles.append(module.register_forward_hook(Close(), always_call=True))
    setattr(models[0], _FITTINGS, fittings)
    return fittings


def _sealed_modules(model: nn.Module, visited: dict[int, Ticket], fittings: _Fittings) -> Iterator[SealedModule]:
    unpacked = {id(found.module): found for found in fittings.mixers.values()}
    for name, module in model.named_modules():
        kind = type(module).__name__
        if id(module) in unpacked:
            found = unpacked[id(module)]
            yield SealedModule(
                name=name, kind=kind, how="unpack", reason=found.reason, padding_share=found.padding_share
            )
        elif id(module) in visited:
            ticket = visited[id(module)]
            yield SealedModule(
                name=name, kind=kind, how="interface", causal=ticket.causal, window=ticket.window, chunk=ticket.chunk
            )
