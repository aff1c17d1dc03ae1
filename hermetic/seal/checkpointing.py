"""Boundaries for layers that gradient checkpointing runs again in the backward pass.

transformers runs a checkpointed layer through the function that it keeps as ``_gradient_checkpointing_func``.
A sealed model has ``Carrying`` around it: what is checkpointed then holds the boundaries of its own forward by
value, and opens that forward again when it is run again, in whatever thread, whatever other batch has gone
through the model in between. This holds for both kinds of checkpointing.
"""

from collections.abc import Callable
from typing import Any

from torch import nn

from hermetic.seal.channel import PackedForward, outside_graphs, packed_forward, reopened

_ATTRIBUTE = "_gradient_checkpointing_func"


class Carrying:
    """A checkpointing function that takes the boundaries along."""

    def __init__(self, checkpoint: Callable[..., Any]) -> None:
        """Stand in for ``checkpoint``."""
        self.checkpoint = checkpoint

    @outside_graphs
    def __call__(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Checkpoint ``function`` together with the boundaries of the forward that is open now."""
        return self.checkpoint(_Reopening(function, packed_forward()), *args, **kwargs)


class _Reopening:
    def __init__(self, function: Callable[..., Any], packed: PackedForward | None) -> None:
        self.function = function
        self.packed = packed

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        with reopened(self.packed):
            return self.function(*args, **kwargs)


def carry_boundaries(model: nn.Module) -> None:
    """Put ``Carrying`` around every checkpointing function of a model that has none yet."""
    for module in model.modules():
        found = vars(module).get(_ATTRIBUTE)
        if found is not None and not isinstance(found, Carrying):
            setattr(module, _ATTRIBUTE, Carrying(found))


def stop_carrying(model: nn.Module) -> None:
    """Take every ``Carrying`` out again."""
    for module in model.modules():
        found = vars(module).get(_ATTRIBUTE)
        if isinstance(found, Carrying):
            setattr(module, _ATTRIBUTE, found.checkpoint)
