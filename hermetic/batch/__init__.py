"""Rows of tokens and the one fact: where each document starts and ends."""

from hermetic.batch.boundaries import Boundaries
from hermetic.batch.collate import collate
from hermetic.batch.packed_batch import PackedBatch

__all__ = ["Boundaries", "PackedBatch", "collate"]
