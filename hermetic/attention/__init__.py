"""Floor 3: attention inside each document of a packed row, behind one function.

``packed_attention`` is the only public name. ``reference`` defines what is right; every other backend is
compared with it, in values and in gradients.
"""

from hermetic.attention.api import BACKENDS, packed_attention

__all__ = ["BACKENDS", "packed_attention"]
