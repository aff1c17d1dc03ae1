"""Models that are sharded already and cannot be sealed any more.

The trial copies a model's weights, takes gradients of single tensors, and runs models of low precision in float32. The
older of PyTorch's wrappers, ``FullyShardedDataParallel``, keeps weights as pieces of one flat tensor, where nothing of
this can be had; ``fully_shard`` allows it where weights are computed with in float32 or more. Sealed before, a model
runs under both. Guarantee: what is refused here is refused by the name of the wrapper, before the model is touched.
Price: weights under ``fully_shard`` are gathered once, group by group, for the dtype that they are computed with.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from hermetic.errors import SealError
from hermetic.seal.precision import LOW


def refuse_sharded(model: nn.Module) -> None:
    """Refuse a model whose shards cannot be judged; where ``fully_shard`` was used, all ranks call this.

    Raises:
        SealError: it is wrapped in ``FullyShardedDataParallel``, or computes in low precision under ``fully_shard``.
    """
    if not torch.distributed.is_available():
        return
    from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel

    for name, module in model.named_modules():
        where = f" at {name}" if name else ""
        if isinstance(module, FullyShardedDataParallel):
            raise SealError(
                f"{type(model).__name__} is wrapped in FullyShardedDataParallel{where}, which keeps weights in one "
                "flat tensor, so that a seal cannot be measured; expected the model before it is wrapped: "
                "FullyShardedDataParallel(hermetic.seal(model), ...)"
            )
        if isinstance(module, FSDPModule) and (low := next(_low_precision(module), None)) is not None:
            raise SealError(
                f"{type(model).__name__} is sharded by fully_shard{where} and computes in {low}; a seal is judged in "
                "float32, in which these shards cannot run; expected the model before it is sharded: "
                "hermetic.integrations.fsdp.shard_sealed(hermetic.seal(model), mp_policy=...)"
            )


def _low_precision(module: Any) -> Iterator[torch.dtype]:
    """The low precision, if it is one, that the weights of a sharded module are computed with, whatever stores them."""
    if any(parameter.is_meta for parameter in module.parameters()):
        return
    module.unshard()
    try:
        dtypes = [parameter.dtype for parameter in module.parameters() if _is_gathered(parameter)]
    finally:
        module.reshard()
    yield from (dtype for dtype in dtypes if dtype in LOW)


def _is_gathered(parameter: nn.Parameter) -> bool:
    return not hasattr(parameter, "full_tensor")
