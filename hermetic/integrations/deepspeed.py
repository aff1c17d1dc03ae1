"""Sealed models under DeepSpeed's ZeRO: engines that gather shards evenly, and steps that weigh what they should.

Algorithm: ZeRO-3 gathers the parameters of each submodule when it is called. A module that runs document by document
calls its submodules once for each group of documents of similar length, and ranks hold other documents, so the layer
around such a module is made a leaf: DeepSpeed then gathers its parameters once, around all of it. (With the module
itself as the leaf, DeepSpeed 0.19.8 failed in the backward pass of Qwen3.5, sealed or not.) A step is agreed on as in
``hermetic.integrations.distributed``; since the engine divides each loss by ``gradient_accumulation_steps`` and
averages over ranks, the step is divided by so much less.
Guarantee: but for rounding, the gradients of an engine's step are those of one process with all documents, for ZeRO
stages 2 and 3.
Price: as ``hermetic.integrations.distributed``; the parameters of a leaf are in memory together.
"""

from collections.abc import Sequence
from dataclasses import replace
from importlib import import_module
from typing import Any

from torch import nn

from hermetic.batch import PackedBatch
from hermetic.errors import MissingDependencyError, SealError, TrainError
from hermetic.integrations.distributed import RankStep, rank_step
from hermetic.loss import Reduction
from hermetic.seal import is_sealed
from hermetic.seal.unpack import is_unpacked


def initialize_sealed(model: nn.Module, **arguments: Any) -> tuple[Any, Any, Any, Any]:
    """``deepspeed.initialize`` for a sealed model.

    Args:
        model: Sealed, and whole: ZeRO-3's ``zero.Init`` has not cut it yet. It is sealed in the dtype that it has, and
            ``hermetic.seal`` judges it in float32.
        **arguments: As ``deepspeed.initialize`` takes them: ``config``, ``model_parameters``, ``optimizer``.

    Returns:
        As ``deepspeed.initialize``: engine, optimizer, loader, scheduler.

    Raises:
        SealError: The model is not sealed.
        MissingDependencyError: DeepSpeed is not installed.
    """
    if not is_sealed(model):
        raise SealError(
            f"{type(model).__name__} is not sealed, so packed documents would reach each other; call "
            f"hermetic.seal(model) before the engine is made"
        )
    deepspeed = _deepspeed()
    names = leaf_modules(model)
    if names:
        deepspeed.utils.set_z3_leaf_modules_by_name(model, names)
    made: tuple[Any, Any, Any, Any] = deepspeed.initialize(model=model, **arguments)
    return made


def leaf_modules(model: nn.Module) -> list[str]:
    """What ZeRO-3 has to take as leaves in a sealed model: the layers that hold a module run document by document.

    Returns:
        Names of modules, none inside another; a module that no layer of transformers' is around stands for itself.
    """
    names: list[str] = []
    unpacked = [name for name, module in model.named_modules() if is_unpacked(module)]
    for name in unpacked:
        if not any(name == outer or name.startswith(f"{outer}.") for outer in names):
            names.append(_layer_around(model, name))
    return names


def _layer_around(model: nn.Module, name: str) -> str:
    from transformers.modeling_layers import GradientCheckpointingLayer

    parts = name.split(".")
    around = [".".join(parts[:end]) for end in range(len(parts) + 1)]
    layers = [one for one in around if isinstance(model.get_submodule(one), GradientCheckpointingLayer)]
    return layers[0] if layers else name


def engine_step(engine: Any, batches: Sequence[PackedBatch], *, reduction: Reduction = "token") -> RankStep:
    """Agree with the other ranks on one optimizer step of an engine. Every rank calls this once for each step.

    The loop is ``for batch in step.batches: engine.backward(step.loss(engine(...).logits, batch)); engine.step()``.
    What ``engine.backward`` is given sums, averaged over micro-batches and ranks, to the loss of the step.

    Args:
        engine: Of ``deepspeed.initialize``.
        batches: This rank's micro-batches, at most ``gradient_accumulation_steps``; blank ones are added up to it.
        reduction: As in ``hermetic.packed_loss``.

    Returns:
        The step.

    Raises:
        TrainError: There are more micro-batches than the engine accumulates, or the engine adds gradients up.
        LossError: If the reduction is unknown.
    """
    accumulated = int(engine.gradient_accumulation_steps())
    if len(batches) > accumulated:
        raise TrainError(
            f"the step has {len(batches)} micro-batches on this rank, but the engine steps after "
            f"{accumulated}; expected at most that many: set gradient_accumulation_steps in DeepSpeed's configuration"
        )
    if not engine.gradient_average:
        raise TrainError(
            "the engine adds gradients over ranks (gradient_allreduce_op is 'sum'); expected 'mean', which is "
            "DeepSpeed's default"
        )
    step = rank_step(batches, reduction=reduction, group=engine.data_parallel_group, at_least=accumulated)
    return replace(step, averaged_over=step.averaged_over * accumulated)


def _deepspeed() -> Any:
    try:
        deepspeed: Any = import_module("deepspeed")
    except ImportError as error:
        raise MissingDependencyError(
            "DeepSpeed is not installed; pip install deepspeed, on a machine without GPUs with DS_ACCELERATOR=cpu set"
        ) from error
    return deepspeed
