"""How large each field of a tiny model's configuration is: rules by name, and settings for what no rule gets.

A configuration says what its fields mean only by their names, so names are what the rules read; the first rule
that matches counts. ``SETTINGS`` holds what is left, each entry with its reason.
"""

import re
from typing import Any

VOCABULARY = 128
"""Token ids of a tiny model; byte-level ones have a few more."""

HEAD_DIM = 16
"""Width of an attention head."""

_HIDDEN, _HEADS = 64, 4
_FEW = 4  # a window or a chunk that the documents of the atlas are longer than

SIZES: tuple[tuple[re.Pattern[str], int], ...] = tuple(
    (re.compile(pattern), size)
    for pattern, size in (
        (r"^vocab_size|_vocab_size$", VOCABULARY),
        (r"position_embeddings$|^n_positions$|^n_ctx$|max_(target_|source_)?(seq_len|positions)$|^rel_extent$", 128),
        (r"window(_size|_len)?$|^local_attention$|chunk(_size|_length)$|block_size$|^sliding_window_size$", _FEW),
        (r"^index_topk$|^index_topk_blocks$|max_patch_length$", _FEW),
        (r"experts_per_tok$|^(moe_)?(top_?k|k)(_experts)?$", 2),
        (r"^n_group$|n_groups$", 2),
        (r"^topk_group$", 1),
        (r"shared_experts?$|first_k_dense_replace$|^num_dense_layers$|^prefix_dense", 1),
        (r"experts$|^zero_expert_num$", 4),
        (r"(rope|nope)_head_dim$|^rotary_dim$", 8),
        (r"state_size$|d_state$", 8),
        (r"rank$", 8),
        (r"head_dim$|dim_head$|d_head$|kv_channels$|head_size$", HEAD_DIM),
        (r"mamba_(n|num)_heads$|mamba_heads$", 2 * _HIDDEN // HEAD_DIM),
        (r"kv_heads$|key_value_heads$|num_key_heads$|kv_n_heads$|^index_n_heads$", 2),
        (r"heads(_per_layer)?$|^n_head$", _HEADS),
        (r"d_ssm$", 2 * _HIDDEN),
        (r"per_layer_input$", 8),
        (r"intermediate|ffn|feed_forward_size|^n_inner$|^d_inner$|^dff$|^dim_ff$|mid_dim$", 48),
        (r"hidden_size|^d_model$|^n_embd$|proj_dim$|embedding_size$|embed_dim$|^hidden_dim$", _HIDDEN),
        (r"period$|interval$|pattern$|every_n_layers$|layer_group_size$|sparse_step$", 2),
        (r"layer_offset$|^n_layers_per_", 1),
    )
)
"""Patterns of field names and the most that a field so named is; smaller defaults stay, and so does 0."""

LAYERS = re.compile(r"^(num_(hidden_)?|n_|(num_)?(decoder|encoder)_)?layers?$|^depth$")
"""Fields that count the layers of a stack."""

LAYER_NUMBERS = re.compile(r"(indices|idxs?|layer_ids|layers)$")
"""Fields that list some layers by number."""

SPECIAL_TOKENS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
"""Inside the vocabulary. Other special tokens, such as placeholders of images, stay where they are: outside of it."""

ALWAYS: dict[str, Any] = {"is_decoder": True, "is_encoder_decoder": False, "add_cross_attention": False}
"""An encoder is a causal language model only when it is told so."""

UNSTATED = {"head_dim": HEAD_DIM, "num_key_value_heads": _HEADS, "num_experts_per_tok": 2, "n_routed_experts": 4}
"""Fields that some configurations leave at ``None`` and their models need."""

_LOCAL_AND_GLOBAL = ["sliding_attention", "full_attention"]

SETTINGS: dict[str, dict[str, Any]] = {
    # All layers of the default are of one kind; the released ones alternate.
    "bamba": {"attn_layer_indices": [1]},
    # Encoder and decoder hand the global transformer cross_attn_k = 2 heads' worth of their own width; bytes have
    # 260 ids, and the default table of hashed byte groups has half a million rows.
    "blt": {"vocab_size": 260, "encoder_hash_byte_group_vocab": 32},
    "blt_local_encoder": {"vocab_size": 260, "hidden_size": 32},
    "blt_local_decoder": {"vocab_size": 260, "hidden_size": 32},
    "blt_patcher": {"vocab_size": 260},
    # The default states no rotary base for the layer types that it has; windows are in the released ones.
    "cohere_compass_text": {
        "layer_types": _LOCAL_AND_GLOBAL,
        "rope_parameters": {kind: {"rope_type": "default", "rope_theta": 1e4} for kind in _LOCAL_AND_GLOBAL},
    },
    # The model reads a rotary base that its own configuration lacks, and clips by a bound that is None by default.
    "dbrx": {"attn_config": {"kv_n_heads": 2, "rope_theta": 1e4, "clip_qkv": 8.0}},
    # By default a compressed token stands for more tokens than a document of the atlas has.
    "deepseek_v4": {"compress_rates": {"compressed_sparse_attention": 2, "heavily_compressed_attention": 4}},
    # Input, recurrent and output layers add up to all layers.
    "dory": {
        "num_hidden_layers": 3,
        "n_input_layers": 1,
        "n_output_layers": 1,
        "layer_types": [*_LOCAL_AND_GLOBAL, "sliding_attention"],
    },
    # The default names no experts.
    "dots1": {"n_shared_experts": 1},
    # The sizes of windowed layers are in no field.
    "dots3_note_text": {
        "sliding_window": _FEW,
        **{f"swa_num_{which}_heads": _HEADS for which in ("attention", "key_value")},
        **{f"swa_{which}_lora_rank": 8 for which in ("q", "kv")},
        "swa_head_dim": HEAD_DIM,
        "swa_qk_nope_head_dim": 8,
        "swa_v_head_dim": HEAD_DIM,
    },
    # The last two layers share keys and values of the first two, one for each kind.
    "gemma3n_text": {
        "num_hidden_layers": 4,
        "num_kv_shared_layers": 2,
        "layer_types": _LOCAL_AND_GLOBAL * 2,
        "activation_sparsity_pattern": [0.95, 0.0, 0.0, 0.0],
    },
    # Full attention has a head width of its own, in no field.
    "gemma4_text": {"global_head_dim": 32},
    "gemma4_unified_text": {"global_head_dim": 32},
    # Kinds of layers are nested in a list of counts.
    "gpt_neo": {"attention_types": [[["global", "local"], 1]]},
    # All layers of the default are of one kind; the released ones alternate.
    "granitemoehybrid": {"layer_types": ["linear_attention", "full_attention"]},
    # The layers that loop lie inside the stack.
    "inkling2_loop_text": {
        "num_hidden_layers": 4,
        "layer_types": ["hybrid_sliding", "hybrid"] * 2,
        "loop_layer_index_start": 1,
        "loop_layer_index_end": 3,
        "loop_num_passes": 2,
    },
    # All layers of the default are of one kind; the released ones alternate.
    "lfm2": {"layer_types": ["conv", "full_attention"]},
    # The default names no layer types.
    "lfm2_moe": {"layer_types": ["conv", "full_attention"]},
    # This one's head_dim is the rotary part of a head.
    "longcat_flash": {"head_dim": 8},
    # Heads fill twice the hidden size.
    "mamba2": {"num_heads": 2 * _HIDDEN // HEAD_DIM},
    # All layers of the default are of one kind; the released ones alternate.
    "minimax_m3_vl_text": {"layer_types": ["full_attention", "minimax_m3_sparse"]},
    # A row of token ids is one codebook.
    "musicgen_decoder": {"num_codebooks": 1},
    "musicgen_melody_decoder": {"num_codebooks": 1},
    # The indexer that full attention needs is off in the default; with it, layer 1 gets its n-gram embedding.
    "qwen4_exp_text": {
        "ple_layer_ids": [1],
        "eos_token_id": 2,
        "indexer_n_heads": 2,
        "indexer_kv_heads": 1,
        "indexer_head_dim": HEAD_DIM,
        "indexer_budget": _FEW,
        "indexer_compress_ratio": 2,
        "ngram_vocab_size_base": 31,
        "split_ngram_parts": 1,
        "make_ngram_vocab_size_divisible_by": 1,
    },
    # The default has a pattern of three layers, and not one entry for each layer.
    "recurrent_gemma": {"num_hidden_layers": 3},
    # Axial positions factor the default sizes.
    "reformer": {"axial_pos_embds": False, "num_buckets": 2},
    # Adapters need a language.
    "xmod": {"default_language": "en_XX"},
    # Hybrid layers share one transformer block, which takes two of them to tie.
    "zamba": {"num_hidden_layers": 4, "layers_block_type": ["linear_attention", "hybrid"] * 2},
    # All layers of the default are of one kind; the configuration has another.
    "zaya": {"layer_types": ["hybrid", "hybrid_sliding"], "sliding_window": _FEW},
}
"""By ``model_type`` of a configuration, outer or inner."""
