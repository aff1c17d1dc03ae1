"""Floor 6: what packing does to every causal language model of transformers, measured on tiny ones."""

from hermetic.atlas.page import page, require_place, write_page
from hermetic.atlas.render import render
from hermetic.atlas.survey import Row, Survey, survey
from hermetic.atlas.tiny import build_tiny, model_types

__all__ = ["Row", "Survey", "build_tiny", "model_types", "page", "render", "require_place", "survey", "write_page"]
