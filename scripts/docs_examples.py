"""An extension of Griffe, which reads docstrings for the reference: ``Example:`` begins a section of examples.

The house style heads one example in the singular. Griffe takes that for a box of Markdown, where the brackets of a list
are a link.
"""

import re
from typing import Any

import griffe


class Examples(griffe.Extension):
    """Heads examples as Griffe expects it."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Called for every module, class, function and attribute."""
        if obj.docstring is not None:
            obj.docstring.value = re.sub(r"^( *)Example:$", r"\1Examples:", obj.docstring.value, flags=re.MULTILINE)
