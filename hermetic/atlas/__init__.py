"""Floor 6: what packing does to every causal language model of transformers, measured on tiny ones."""

from hermetic.atlas.render import page, render
from hermetic.atlas.survey import Row, Survey, survey
from hermetic.atlas.tiny import build_tiny, model_types

__all__ = ["Row", "Survey", "build_tiny", "model_types", "page", "render", "survey"]
