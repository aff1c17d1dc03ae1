"""The same boundaries in the words of others: kernels, models and masks that do not know ``Boundaries``.

Algorithm: renames and O(tokens) rearrangements, all pure, a module for each of those who read them. Guarantee:
nothing is guessed, on the way out or back; a dialect that cannot hold what the boundaries say is an error, or
its docstring says what it drops. Where a batch has a padded tail, the tail is exactly one more segment here,
for kernels must be told of every slot; on the way back, ``num_tokens`` says where it starts. Price: the dense
masks take T * T cells and are therefore capped.
"""

from hermetic.batch.dialects.dense import MAX_DENSE_SLOTS, additive_mask, boundaries_from_mask, dense_mask
from hermetic.batch.dialects.flash import FlashKwargs, boundaries_from_flash_kwargs, flash_kwargs
from hermetic.batch.dialects.jax import jax_segments, rows_from_jax_segments
from hermetic.batch.dialects.labels import shift_labels
from hermetic.batch.dialects.mamba import mamba_seq_idx, rows_from_mamba_seq_idx
from hermetic.batch.dialects.megatron import boundaries_from_packed_seq_params, packed_seq_kwargs, padded_index
from hermetic.batch.dialects.rows import rows_from_segment_ids, segment_ids
from hermetic.batch.dialects.stacked import boundaries_from_stacked_cu_seqlens, stacked_cu_seqlens
from hermetic.batch.dialects.trl import rows_from_trl_seq_lengths, trl_seq_lengths
from hermetic.batch.dialects.xformers import boundaries_from_xformers, xformers_seqlens

__all__ = [
    "MAX_DENSE_SLOTS",
    "FlashKwargs",
    "additive_mask",
    "boundaries_from_flash_kwargs",
    "boundaries_from_mask",
    "boundaries_from_packed_seq_params",
    "boundaries_from_stacked_cu_seqlens",
    "boundaries_from_xformers",
    "dense_mask",
    "flash_kwargs",
    "jax_segments",
    "mamba_seq_idx",
    "packed_seq_kwargs",
    "padded_index",
    "rows_from_jax_segments",
    "rows_from_mamba_seq_idx",
    "rows_from_segment_ids",
    "rows_from_trl_seq_lengths",
    "segment_ids",
    "shift_labels",
    "stacked_cu_seqlens",
    "trl_seq_lengths",
    "xformers_seqlens",
]
