"""Floor 3: attention inside each document of a packed row, behind one function.

``packed_attention`` attends and ``available_backends`` says what this machine can run. ``reference`` defines
what is right; every other backend is compared with it, in values and in gradients.
"""

from hermetic.attention.api import BACKENDS, packed_attention
from hermetic.attention.available import BackendStatus, available_backends

__all__ = ["BACKENDS", "BackendStatus", "available_backends", "packed_attention"]
