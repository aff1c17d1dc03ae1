"""Values that every floor shares. Nothing here imports anything heavy."""

from typing import Final

IGNORE_INDEX: Final = -100
"""The label of a token that carries no loss (Hugging Face's and PyTorch's convention)."""

TAIL_DOCUMENT_ID: Final = -1
"""The document id of a padded tail token: it belongs to no document."""

INT32_MAX: Final = 2**31 - 1
"""Kernels index tokens with 32-bit integers; a batch may not hold more tokens than this."""
