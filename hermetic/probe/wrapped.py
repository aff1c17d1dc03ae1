"""Models inside of what trains them on several devices or compiles them.

DistributedDataParallel and DataParallel only add communication, so the module inside is what is probed, and no other
process has to take part. A model that is sharded over several processes (FSDP, ZeRO-3, tensor parallelism) runs only
where all of them run it: a probe in one would wait for the others for ever, so it is refused. Sharded over a single
process it is probed like any other.
"""

import inspect
from collections.abc import Mapping

import torch
from torch import nn
from torch.nn.parallel import DataParallel, DistributedDataParallel

from hermetic.errors import ProbeError


def undistributed(model: nn.Module) -> nn.Module:
    """The module inside of what only copies it to several devices.

    Raises:
        ProbeError: it is sharded over several processes.
    """
    while isinstance(model, (DistributedDataParallel, DataParallel)) or type(model).__name__ == "DeepSpeedEngine":
        model = model.get_submodule("module")
    require_whole(model)
    return model


def unwrapped(model: nn.Module) -> nn.Module:
    """The module inside of what trains it on several devices or compiles it."""
    while True:
        # torch.compile's wrapper has no class that is public; the name is, through the keys of its state_dict
        inside = getattr(model, "_orig_mod", None)
        if isinstance(model, (DistributedDataParallel, DataParallel)):
            inside = model.module
        if not isinstance(inside, nn.Module):
            return model
        model = inside


def sharding_processes(model: nn.Module) -> int:
    """Over how many processes parts of the model are spread; 1 for a model that one process has whole."""
    distributed = torch.distributed.is_available() and torch.distributed.is_initialized()
    if not distributed or torch.distributed.get_world_size() == 1:
        return 1
    sharded = any(hasattr(p, "placements") or hasattr(p, "ds_id") for p in model.parameters())
    sharded = sharded or any(type(inner).__name__ == "FullyShardedDataParallel" for inner in model.modules())
    return torch.distributed.get_world_size() if sharded else 1


def require_whole(model: nn.Module) -> None:
    """Refuse a model of which other processes have parts.

    Raises:
        ProbeError: it is sharded.
    """
    processes = sharding_processes(model)
    if processes > 1:
        raise ProbeError(
            f"{type(model).__name__} is sharded over {processes} processes, which all have to run it together, and a "
            "probe in one of them would wait for ever; expected a whole model. Probe it before it is sharded, or a "
            "smaller one of the same architecture in one process"
        )


def require_alone(model: nn.Module) -> None:
    """Refuse what communicates with other processes whenever it is called.

    Raises:
        ProbeError: it is sharded, or wrapped in DistributedDataParallel, over several processes.
    """
    require_whole(model)
    if isinstance(model, DistributedDataParallel) and torch.distributed.get_world_size() > 1:
        raise ProbeError(
            "the function calls DistributedDataParallel, which sends buffers to other processes at each call, and a "
            "probe in one of them would wait for ever; expected the module inside. Call model.module in the function"
        )


def parameters_of(model: nn.Module) -> Mapping[str, inspect.Parameter]:
    """What the forward of a model takes, by the names of the module inside where a wrapper passes all on."""
    inside = getattr(model, "_orig_mod", None)  # torch.compile
    if type(model).__name__ == "FullyShardedDataParallel":
        inside = model.module
    return inspect.signature(model.forward).parameters if not isinstance(inside, nn.Module) else parameters_of(inside)


def local(values: torch.Tensor) -> torch.Tensor:
    """This process's part of a tensor that may be sharded."""
    to_local = getattr(values, "to_local", None)
    return values if to_local is None else to_local()
