"""Floor 6: what packing does to every causal language model of transformers, measured on tiny ones."""

from hermetic.atlas.tiny import build_tiny, model_types

__all__ = ["build_tiny", "model_types"]
