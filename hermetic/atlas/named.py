"""A type's name in the place of a model: ``llama`` for a tiny random llama, told apart from folders and hub ids.

Guarantee: a folder of that name wins; what has no owner before a slash is never looked up on the hub.
"""

import difflib
import os
from dataclasses import replace
from pathlib import Path

from torch import nn

from hermetic.atlas.tiny import build_tiny, model_types
from hermetic.errors import AtlasError
from hermetic.probe import LeakReport


def tiny_by_name(name: str, *, attention: str | None = None) -> nn.Module | None:
    """A tiny random model where ``name`` is a bare model type; ``None`` where it is a path or a hub id.

    Args:
        name: such as ``llama``, ``./model`` or ``owner/model``.
        attention: attention implementation, as transformers names it.

    Raises:
        AtlasError: it is neither, or a model of this type cannot be built or run here.

    Example:
        >>> type(tiny_by_name("llama")).__name__
        'LlamaForCausalLM'
        >>> tiny_by_name("owner/model") is None
        True
    """
    if os.sep in name or "/" in name or name.startswith("~") or Path(name).exists():
        return None
    known = model_types()
    if name not in known:
        near = difflib.get_close_matches(name, known, n=3)
        closest = f"; closest: {', '.join(near)}" if near else ""
        raise AtlasError(
            f"{name!r} is no folder here and no model type; expected a folder, a hub id with its owner (owner/model), "
            f"or one of hermetic.atlas.model_types(){closest}"
        )
    return build_tiny(name, attn_implementation=attention)


def as_tiny(report: LeakReport, name: str) -> LeakReport:
    """The report of a model from ``tiny_by_name``, which says what was probed."""
    note = (
        f"{name} is a model type here, not a folder: a tiny model of it with random weights was probed. That measures "
        "the architecture as transformers builds it; give a folder or owner/model for a model of your own"
    )
    return replace(report, subject=f"a tiny random {name} ({report.subject})", note=(*report.note, note))
