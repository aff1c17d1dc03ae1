"""For the tests of attention, seal and probe: tiny models of many families, and the ways in which callers call them.

Weight matrices have a standard deviation of 0.2: with the usual 0.02 a leak moves logits by little and looks small.
"""

from collections.abc import Callable

import torch
import transformers
from torch import nn

from hermetic.atlas import build_tiny
from hermetic.batch import PackedBatch, collate

transformers.logging.set_verbosity_error()

LENGTHS = (11, 6, 1, 13, 5)
"""Two rows of 18 slots without padding; three documents reach beyond a window of 4, one is a single token."""

_SIZES = {
    "vocab_size": 97,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_WINDOWED = {"sliding_window": 4, "layer_types": ["sliding_attention", "full_attention"]}
_FAMILIES: dict[str, tuple[str, str, dict]] = {
    "llama": ("LlamaForCausalLM", "LlamaConfig", {}),
    "mistral": ("MistralForCausalLM", "MistralConfig", {"sliding_window": 4}),
    "qwen3": ("Qwen3ForCausalLM", "Qwen3Config", {"head_dim": 8}),
    "gemma3": ("Gemma3ForCausalLM", "Gemma3TextConfig", {"head_dim": 8, **_WINDOWED}),
    "gemma2": ("Gemma2ForCausalLM", "Gemma2Config", {"head_dim": 8, "sliding_window": 4}),
    "phi3": ("Phi3ForCausalLM", "Phi3Config", {}),
    "llama4": (
        "Llama4ForCausalLM",
        "Llama4TextConfig",
        {
            "head_dim": 8,
            "attention_chunk_size": 4,
            "intermediate_size_mlp": 48,
            "num_local_experts": 2,
            "layer_types": ["chunked_attention", "full_attention"],
            "no_rope_layers": [1, 0],
            "attn_temperature_tuning": False,
        },
    ),
    "gpt_oss": (
        "GptOssForCausalLM",
        "GptOssConfig",
        {"head_dim": 8, "num_local_experts": 2, "num_experts_per_tok": 1, **_WINDOWED},
    ),
    "mixtral": ("MixtralForCausalLM", "MixtralConfig", {"num_local_experts": 4, "num_experts_per_tok": 2}),
    "lfm2": ("Lfm2ForCausalLM", "Lfm2Config", {"layer_types": ["conv", "full_attention"]}),
    "qwen3_5": (
        "Qwen3_5ForCausalLM",
        "Qwen3_5TextConfig",
        {
            "head_dim": 8,
            "linear_num_key_heads": 2,
            "linear_num_value_heads": 2,
            "linear_key_head_dim": 8,
            "linear_value_head_dim": 8,
            "layer_types": ["linear_attention", "full_attention"],
        },
    ),
}
_OTHERS: dict[str, tuple[str, str, dict]] = {
    "gpt2": (
        "GPT2LMHeadModel",
        "GPT2Config",
        {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 128, "bos_token_id": 1, "eos_token_id": 2},
    ),
    "bloom": ("BloomForCausalLM", "BloomConfig", {"hidden_size": 32, "n_layer": 2, "n_head": 4}),
    "bert": (
        "BertForMaskedLM",
        "BertConfig",
        {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48},
    ),
    "mamba": ("MambaForCausalLM", "MambaConfig", {"hidden_size": 32, "num_hidden_layers": 2}),
}

SEALABLE = ("llama", "mistral", "qwen3", "gemma3", "gpt2", "phi3", "llama4")
"""Dense families with plain, windowed and chunked layers, rotary and learned positions."""

UNPACKED = ("lfm2", "qwen3_5", "mamba", "bamba", "bloom", "gemma2")
"""Families with a convolution, a delta rule, a scan, two kinds of mixers, biases by distance, and a soft cap."""

MORE_UNPACKED = (
    "jamba",
    "nemotron_h",
    "mamba2",
    "falcon_mamba",
    "minimax",
    "mpt",
    "xglm",
    "qwen3_next",
    "olmo_hybrid",
    "recurrent_gemma",
    "zamba",
    "rwkv",
    "xlstm",
    "falcon",
    "inkling_text",
    "deepseek_v32",
)
"""Types of ``hermetic.atlas`` of which some modules, or the whole model inside its head, run document by document."""


def config_of(name: str, **changes):
    if name in _FAMILIES:
        _, config, own = _FAMILIES[name]
        settings = {**_SIZES, **own, **changes}
    else:
        _, config, own = _OTHERS[name]
        settings = {"vocab_size": 97, **own, **changes}
    return getattr(transformers, config)(**settings)


def built(name: str, config, *, seed: int = 0, implementation: str | None = None) -> nn.Module:
    """A model of this family from ``config``, in evaluation mode."""
    torch.manual_seed(seed)
    family = (_FAMILIES | _OTHERS)[name][0]
    model = getattr(transformers, family)._from_config(config, attn_implementation=implementation)
    for parameter in model.parameters():
        if parameter.ndim > 1:
            nn.init.normal_(parameter, std=0.2)
    return model.eval()


def tiny(name: str, *, seed: int = 0, implementation: str | None = None, **changes) -> nn.Module:
    """A model of two layers and 32 features; ``changes`` go to its configuration.

    Other names are the atlas's, whose models have 64 features and take no changes.
    """
    if name not in _FAMILIES | _OTHERS and not changes:
        return build_tiny(name, attn_implementation=implementation, seed=seed)
    return built(name, config_of(name, **changes), seed=seed, implementation=implementation)


def packed(lengths=LENGTHS, *, seed: int = 0, vocabulary: int = 97, **options) -> PackedBatch:
    """Documents of random tokens, all supervised."""
    generator = torch.Generator().manual_seed(seed)
    draw = [torch.randint(3, vocabulary, (length,), generator=generator) for length in lengths]
    return collate([{"input_ids": ids} for ids in draw], **options)


# The ways to call a model on packed rows. Each takes a batch and gives the model's keyword arguments.


def with_ones(batch: PackedBatch) -> dict:
    row = batch.input_ids[None]
    positions = batch.boundaries.position_ids[None].to(row.device)
    return {"input_ids": row, "position_ids": positions, "attention_mask": torch.ones_like(row), "use_cache": False}


def with_default_cache(batch: PackedBatch) -> dict:
    return {name: value for name, value in with_positions(batch).items() if name != "use_cache"}


def with_positions(batch: PackedBatch) -> dict:
    row = batch.input_ids[None]
    return {"input_ids": row, "position_ids": batch.boundaries.position_ids[None].to(row.device), "use_cache": False}


def with_edges(batch: PackedBatch) -> dict:
    return {"input_ids": batch.input_ids[None], "cu_seq_lens_q": batch.boundaries.cu_seqlens, "use_cache": False}


def with_document_ids(batch: PackedBatch) -> dict:
    return {"input_ids": batch.input_ids[None], "document_ids": batch.boundaries.document_ids, "use_cache": False}


def with_two_rows(batch: PackedBatch) -> dict:
    """Two rows where a document ends in the middle of the stream, else one; everything else left at its default."""
    half, odd = divmod(batch.num_slots, 2)
    rows = 2 if not odd and half in batch.boundaries.cu_seqlens.tolist() else 1
    row = batch.input_ids.view(rows, -1)
    positions = batch.boundaries.position_ids.view(rows, -1).to(row.device)
    return {"input_ids": row, "position_ids": positions, "attention_mask": torch.ones_like(row)}


CALLS: dict[str, Callable[[PackedBatch], dict]] = {
    "all_ones_mask": with_ones,
    "default_cache": with_default_cache,
    "two_rows": with_two_rows,
    "only_position_ids": with_positions,
    "only_cu_seq_lens": with_edges,
    "document_ids": with_document_ids,
}


def calling(model: nn.Module, call: str) -> Callable[[PackedBatch], torch.Tensor]:
    """The model as the probe takes it, called in one of the ways of ``CALLS``."""

    def forward(batch: PackedBatch) -> torch.Tensor:
        logits = model(**CALLS[call](batch)).logits
        return logits.reshape(-1, logits.shape[-1])

    return forward


def alone(model: nn.Module, batch: PackedBatch) -> list[torch.Tensor]:
    """Logits of each document, run by itself as a row of its own."""
    with torch.no_grad():
        return [model(input_ids=ids[None], use_cache=False).logits[0] for ids in batch.unpack(batch.input_ids)]


def token_loss(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Sum over supervised tokens of rows of logits ``[B, S, V]`` and unshifted labels ``[B, S]``."""
    return nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), reduction="sum")


def alone_gradients(model: nn.Module, batch: PackedBatch) -> torch.Tensor:
    """Of the summed token loss of a step on each document as a row of its own."""
    for ids, labels in zip(batch.unpack(batch.input_ids), batch.unpack(batch.labels), strict=True):
        token_loss(model(input_ids=ids[None], use_cache=False).logits, labels[None]).backward()
    return gradients_of(model)


def without_dropout(model: nn.Module) -> nn.Module:
    """The same model; for two runs in training mode to be the same computation."""
    for module in model.modules():
        for name, value in list(vars(module).items()):
            if isinstance(value, float) and ("drop" in name or isinstance(module, nn.Dropout)):
                setattr(module, name, 0.0)
    return model


def padded(batch: PackedBatch) -> dict:
    """The same documents as right-padded rows: ``input_ids``, ``attention_mask``, ``position_ids``, ``labels``."""

    def rows(parts, blank):
        return nn.utils.rnn.pad_sequence(parts, batch_first=True, padding_value=blank)

    ids = batch.unpack(batch.input_ids)
    return {
        "input_ids": rows(ids, 0),
        "attention_mask": rows([torch.ones_like(part) for part in ids], 0),
        "position_ids": rows([torch.arange(len(part)) for part in ids], 0),
        "labels": rows(batch.unpack(batch.labels), -100),
    }


def gradients_of(model: nn.Module) -> torch.Tensor:
    """All parameter gradients as one vector; takes them away."""
    parts = [p.grad.flatten() for p in model.parameters() if p.grad is not None]
    model.zero_grad(set_to_none=True)
    return torch.cat(parts)


def padded_gradients(model: nn.Module, batch: PackedBatch) -> torch.Tensor:
    """Of the summed token loss of a step on right-padded rows."""
    inputs = padded(batch)
    labels = inputs.pop("labels")
    token_loss(model(**inputs, use_cache=False).logits, labels).backward()
    return gradients_of(model)


def packed_gradients(model: nn.Module, batch: PackedBatch, call: str = "default_cache") -> torch.Tensor:
    """Of the summed token loss of a step on packed rows."""
    token_loss(calling(model, call)(batch)[None], batch.labels[None]).backward()
    return gradients_of(model)


def relative_difference(a: torch.Tensor, b: torch.Tensor) -> float:
    return float(torch.linalg.vector_norm(a - b) / torch.linalg.vector_norm(b))
