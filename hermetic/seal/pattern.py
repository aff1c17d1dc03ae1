"""Which tokens of its own document a layer lets a token see: found out by asking its mask function.

transformers describes each kind of layer by a function ``(batch, head, query, key) -> bool`` over plain
indices. It is evaluated at the places where the known patterns differ (around the layer's local size and its
multiples, and at the document's ends) and compared with each of them.
Guarantee: a function that agrees with no known pattern is refused, never approximated.
Price: a few thousand evaluations per kind of layer and forward pass, in one tensor operation on the device, and
one synchronization for their result.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

from hermetic.attention.reference import allowed
from hermetic.errors import SealError

_MAX_POINTS = 64

MaskFunction = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


@dataclass(frozen=True, kw_only=True, slots=True)
class Pattern:
    """What a layer lets a token see inside its document."""

    causal: bool = True
    window: int | None = None
    chunk: int | None = None


def recognise(mask_function: MaskFunction, *, local_size: int | None, longest: int, device: torch.device) -> Pattern:
    """Name the pattern of ``mask_function`` for documents of up to ``longest`` tokens.

    Raises:
        SealError: the function is none of causal, causal with a window, causal in chunks, or bidirectional.
    """
    local_size = local_size or None  # some configurations write "no window" as 0
    points = torch.tensor(_points(local_size, longest), device=device)
    query, key = points[:, None], points[None, :]
    zero = torch.zeros_like(query)
    asked = torch.as_tensor(mask_function(zero, zero, query, key), device=device)
    asked = asked.expand(len(points), len(points))
    for pattern in _candidates(local_size):
        known = allowed(query, key, causal=pattern.causal, window=pattern.window, chunk=pattern.chunk)
        if torch.equal(asked, known):
            return pattern
    raise SealError(
        f"a layer's mask function (local size {local_size}) is none of: causal, causal with a window, causal in "
        "chunks, bidirectional. Packed rows cannot be given to it; train this model on padded rows"
    )


def _points(local_size: int | None, longest: int) -> list[int]:
    """Indices where patterns differ: both ends, and both sides of each multiple of the local size."""
    points = {0, 1, 2, longest // 2, longest - 2, longest - 1}
    if local_size is not None:
        for multiple in range(local_size, longest + 1, local_size):
            points |= {multiple - 1, multiple, multiple + 1}
            if len(points) >= _MAX_POINTS:
                break
    return sorted(point for point in points if 0 <= point < longest)


def _candidates(local_size: int | None) -> Iterator[Pattern]:
    yield Pattern()
    if local_size is not None:
        yield Pattern(window=local_size)
        yield Pattern(chunk=local_size)
    yield Pattern(causal=False)
