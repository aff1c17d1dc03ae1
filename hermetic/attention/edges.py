"""Where documents begin and end, as the variable-length kernels read it.

Guarantee: ``cu_seqlens`` is int32, starts at 0, rises strictly and ends at the number of tokens, so that no slot
lies outside of it and no document is empty; the longest document is a Python int, so that no kernel waits for the
device to tell it. Price: one copy of ``D + 1`` numbers to the device per batch, for all layers together.
"""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch


@dataclass(frozen=True, kw_only=True, slots=True)
class Edges:
    """The documents of one batch, those without tokens left out."""

    cu_seqlens: torch.Tensor
    """``[D + 1]`` int32."""
    max_seqlen: int
    """Tokens of the longest document, but at least 2.

    A maximum of 1 means decoding to flash-attn 2 and its copy in PyTorch. With grouped-query heads they then take
    a path whose softmax statistics lie in another order than the backward pass reads them. A larger maximum costs
    nothing here: the documents' lengths are in ``cu_seqlens``.
    """


def chunks(lengths: tuple[int, ...], chunk: int | None) -> tuple[int, ...]:
    """Cut each document into its chunks, which are documents as far as attention is concerned.

    Example:
        >>> chunks((3, 0, 5), 4)
        (3, 4, 1)
    """
    if chunk is None:
        return lengths
    return tuple(min(chunk, length - begin) for length in lengths for begin in range(0, length, chunk))


@lru_cache(maxsize=8)
def edges_of(lengths: tuple[int, ...], device: torch.device) -> Edges:
    """The edges of documents of these lengths, on this device; at least one of them has tokens.

    A pure function of its value, so remembering it cannot go stale; the tensor is never written to.

    Example:
        >>> edges_of((3, 0, 2), torch.device("cpu"))
        Edges(cu_seqlens=tensor([0, 3, 5], dtype=torch.int32), max_seqlen=3)
    """
    sizes = [length for length in lengths if length > 0]
    cu_seqlens = torch.from_numpy(np.cumsum([0, *sizes], dtype=np.int32))
    with torch.inference_mode(mode=False):  # autograd may save it for a later backward
        return Edges(cu_seqlens=cu_seqlens.to(device, copy=True), max_seqlen=max(2, *sizes))
