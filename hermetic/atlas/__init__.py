"""Floor 6: what packing does to every causal language model of transformers, measured on tiny ones."""

from hermetic.atlas.named import as_tiny, tiny_by_name
from hermetic.atlas.page import page, require_place, write_page
from hermetic.atlas.render import render
from hermetic.atlas.survey import Row, Survey, survey
from hermetic.atlas.tiny import build_tiny, model_types

__all__ = [
    "Row",
    "Survey",
    "as_tiny",
    "build_tiny",
    "model_types",
    "page",
    "render",
    "require_place",
    "survey",
    "tiny_by_name",
    "write_page",
]
