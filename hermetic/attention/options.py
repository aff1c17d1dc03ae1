"""What every attention backend is told besides queries, keys and values."""

from dataclasses import dataclass

import torch


@dataclass(frozen=True, kw_only=True, slots=True)
class AttentionOptions:
    """The meaning of one attention call, the same for all backends.

    Positions count from the start of each document, so neither ``window`` nor ``chunk`` ever sees a seam.
    """

    causal: bool
    """A token sees itself and earlier tokens only."""
    window: int | None
    """A token sees itself and the ``window - 1`` tokens before it; ``None`` means no limit."""
    chunk: int | None
    """A token sees only tokens of its own chunk of this many tokens; ``None`` means one chunk."""
    scale: float
    """Factor on the dot products."""
    softcap: float | None
    """Logits become ``softcap * tanh(logits / softcap)``; ``None`` means no cap."""
    sinks: torch.Tensor | None
    """``[H]``: one more logit per head in each softmax, which takes weight and gives no value."""
    dropout: float
    """Probability with which an attention weight is dropped; 0.0 outside of training."""
