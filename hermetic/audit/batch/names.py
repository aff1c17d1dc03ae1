"""What the tensors of a batch are called, stack by stack, and what each one is.

Guarantee: a name that stands here has one meaning; every other name is left alone. Price: none.
"""

from typing import Final

TOKENS: Final = ("input_ids", "tokens", "inputs")
"""Token ids: transformers; Megatron and torchtune; MaxText."""

LABELS: Final = ("labels",)
SHIFTED_LABELS: Final = ("shift_labels", "targets")
"""The next token beside the current one."""

POSITIONS: Final = ("position_ids", "input_pos", "positions", "inputs_position")

EDGES: Final = ("cu_seq_lens_q", "cu_seq_lens_k", "cu_seqlens", "cu_seqlens_q", "cu_seqlens_k", "cu_seqlens_kv")
PADDED_EDGES: Final = {
    "cu_seqlens_padded": "cu_seqlens",
    "cu_seqlens_q_padded": "cu_seqlens_q",
    "cu_seqlens_kv_padded": "cu_seqlens_kv",
}
"""Edges that count slots, and the edges in real tokens that they are the room of (Megatron, Transformer Engine)."""

LONGEST: Final = {
    "max_length_q": "cu_seq_lens_q",
    "max_length_k": "cu_seq_lens_k",
    "max_seqlen": "cu_seqlens",
    "max_seqlen_q": "cu_seqlens_q",
    "max_seqlen_k": "cu_seqlens_k",
    "max_seqlen_kv": "cu_seqlens_kv",
}
"""The longest document as a kernel is told it, and the edges that it is of."""

NUMBERS: Final = (
    "document_ids", "seq_idx", "segment_ids", "sequence_ids", "inputs_segmentation", "targets_segmentation",
)  # fmt: skip
"""The number of each token's document."""

LENGTHS: Final = ("seq_lengths", "seq_lens")
MASK: Final = "attention_mask"
LOSS_MASK: Final = "loss_mask"
"""Megatron's: 0 where the label beside it carries no loss."""

FLASH: Final = ("cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k")
"""transformers hands these to flash attention, all of them or none."""

OTHERS: Final = ("loss_mask", "completion_mask", "assistant_masks", "token_type_ids", "special_tokens_mask")
"""Per token as well, and silent about boundaries."""

DECODER: Final = ("decoder_input_ids",)
"""Beside these, ``labels`` are of another row than ``input_ids``."""

PAST: Final = "past_key_values"
"""What was read before: then a mask is longer than the tokens, and positions go on."""

PER_TOKEN: Final = (*TOKENS, *LABELS, *SHIFTED_LABELS, *POSITIONS, *NUMBERS, MASK, *OTHERS)
EDGE_LIKE: Final = (*EDGES, *PADDED_EDGES, *LENGTHS)
SETTINGS: Final = (*LONGEST, "use_cache")
KNOWN: Final = frozenset((*PER_TOKEN, *EDGE_LIKE, *DECODER))
WHOLE_NUMBERS: Final = KNOWN - {MASK, *OTHERS}
"""Names whose values have to be integers; masks may be booleans or numbers."""
