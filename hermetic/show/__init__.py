"""Rows drawn: documents, what stands in each slot, and the mask as each backend reads it."""

from hermetic.show.fragment import figure
from hermetic.show.picture import DocumentOfRow, MaskPicture, RowPicture, Tiles
from hermetic.show.show import BACKENDS, show

__all__ = ["BACKENDS", "DocumentOfRow", "MaskPicture", "RowPicture", "Tiles", "figure", "show"]
