"""Sealed models under FSDP2: sharding them layer by layer, and refusing what would hang or leak.

Algorithm: every layer that transformers can checkpoint is sharded on its own, and what is left with the root. A module
that runs document by document is never cut: it runs once for each group of documents of similar length, and ranks,
which hold other documents, would ask for the shards inside it a different number of times.
Guarantee: a model that ``shard_sealed`` returns was sealed alike on all ranks, and none of its shards is gathered more
often on one rank than on another. ``check_sharded`` looks for the same in a model that was sharded by hand.
Price: one exchange of eight bytes between the ranks, once.

Sealing before sharding is the way: it needs no other rank. After ``fully_shard`` it works as well, as long as all ranks
seal at the same time and the model computes in float32 or more; in low precision the seal cannot be judged, and
``hermetic.seal`` refuses. A model that is sharded before it has weights (on the meta device) is therefore sealed once
they are loaded. A model in the older ``FullyShardedDataParallel`` has to be sealed before it is wrapped.
"""

import hashlib
from collections.abc import Iterator
from typing import Any, TypeVar

import torch
import torch.distributed
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import CheckpointWrapper
from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel, fully_shard

import hermetic
from hermetic.errors import MissingDependencyError, SealError
from hermetic.integrations.distributed import device_of
from hermetic.seal import is_sealed
from hermetic.seal.unpack import is_unpacked

Model = TypeVar("Model", bound=nn.Module)

_KEEP_ACTIVATIONS = {"use_reentrant": False}


def shard_sealed(model: Model, *, checkpointing: bool = False, **options: Any) -> Model:
    """Shard a sealed model over the ranks with ``torch.distributed.fsdp.fully_shard``, layer by layer.

    Every rank calls this, with the same model.

    Args:
        model: Sealed, not yet sharded.
        checkpointing: Run layers again in the backward pass instead of keeping their activations, by
            transformers' own way, which carries the boundaries along.
        **options: As ``fully_shard`` takes them, for every layer: ``mesh``, ``mp_policy``,
            ``reshard_after_forward``, ``offload_policy``.

    Returns:
        The same object. Its optimizer is to be made afterwards.

    Raises:
        SealError: The model is not sealed, is sharded already, or as ``check_sharded``.
        MissingDependencyError: If transformers is not installed.
    """
    _require_sealed(model)
    if any(isinstance(module, FSDPModule) for module in model.modules()):
        raise SealError(
            f"{type(model).__name__} is sharded already, expected a sealed model that is whole; call "
            f"hermetic.integrations.fsdp.check_sharded on it instead"
        )
    if checkpointing:
        _enable_checkpointing(model)
    for layer in list(_layers(model)):
        fully_shard(layer, **options)
    fully_shard(model, **options)
    check_sharded(model)
    return model


def check_sharded(model: nn.Module) -> None:
    """Refuse a sharded model whose ranks would wait for each other for ever, or whose documents would meet.

    Every rank calls this, after sealing and sharding, in whichever order.

    Raises:
        SealError: The model is not sealed; a module that runs document by document has shards inside, or
            torch's checkpoint wrapper around it; or ranks sealed it differently.
    """
    _require_sealed(model)
    objection = next(_objections(model), None)
    if objection is not None:
        raise SealError(objection)
    _require_same_everywhere(model)


def _require_sealed(model: nn.Module) -> None:
    if not is_sealed(model):
        raise SealError(
            f"{type(model).__name__} is not sealed, so packed documents would reach each other; call "
            f"hermetic.seal(model) before sharding it"
        )


def _enable_checkpointing(model: nn.Module) -> None:
    enable: Any = getattr(model, "gradient_checkpointing_enable", None)
    if enable is None:
        raise SealError(
            f"{type(model).__name__} has no gradient_checkpointing_enable, expected a transformers model, whose own "
            f"checkpointing carries boundaries; or pass checkpointing=False"
        )
    enable(gradient_checkpointing_kwargs=dict(_KEEP_ACTIVATIONS))


def _layers(model: nn.Module) -> Iterator[nn.Module]:
    """What is sharded on its own: layers, or what is around them and runs document by document."""
    try:
        from transformers.modeling_layers import GradientCheckpointingLayer
    except ImportError as error:
        raise MissingDependencyError(
            "sharding by layers needs transformers, which is not installed; pip install 'hermetic[hf]'"
        ) from error
    for child in model.children():
        if is_unpacked(child) or isinstance(child, GradientCheckpointingLayer):
            yield child
        else:
            yield from _layers(child)


def _objections(model: nn.Module) -> Iterator[str]:
    for name, module in model.named_modules():
        if isinstance(module, CheckpointWrapper):
            yield from _checkpointed_wrongly(name, module)
        if is_unpacked(module):
            yield from _sharded_inside(name, module)


def _checkpointed_wrongly(name: str, wrapper: nn.Module) -> Iterator[str]:
    for inner, module in wrapper.named_modules():
        if is_unpacked(module):
            yield (
                f"{name or 'the model'} is in torch's checkpoint wrapper, which runs {inner} "
                f"({type(module).__name__}) again in the backward pass without its boundaries; expected "
                f"model.gradient_checkpointing_enable(), or shard_sealed(model, checkpointing=True)"
            )


def _sharded_inside(name: str, unpacked: nn.Module) -> Iterator[str]:
    for inner, module in unpacked.named_modules():
        if module is not unpacked and isinstance(module, FSDPModule | FullyShardedDataParallel):
            yield (
                f"{name}.{inner} is sharded inside of {name} ({type(unpacked).__name__}), which runs once for each "
                f"group of documents of similar length, so ranks would gather its shards a different number of times "
                f"and wait for ever; expected {name} or a module around it to be sharded as a whole"
            )


def _require_same_everywhere(model: nn.Module) -> None:
    if not torch.distributed.is_initialized() or torch.distributed.get_world_size() == 1:
        return
    report = hermetic.seal_report(model)
    mine = (report.backend, report.native, tuple((module.name, module.how) for module in report.modules))
    digest = int.from_bytes(hashlib.sha256(repr(mine).encode()).digest()[:8], "little", signed=True)
    sent = torch.tensor([digest], device=device_of(None))
    found = [torch.empty_like(sent) for _ in range(torch.distributed.get_world_size())]
    torch.distributed.all_gather(found, sent)
    unlike = [rank for rank, theirs in enumerate(found) if not torch.equal(theirs, found[0])]
    if unlike:
        raise SealError(
            f"ranks {unlike} sealed {type(model).__name__} otherwise than rank 0, and rank "
            f"{torch.distributed.get_rank()} as {mine}; expected the same model, weights and backend on all ranks"
        )
