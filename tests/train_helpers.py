"""For the tests of training, the demo and the command line: tiny models in folders, and documents in files."""

import json
import random

import torch
import transformers
from data_helpers import DEMO_TOKENIZER, demo_tokenizer, write_jsonl
from torch import nn

from hermetic.data import open_packed, pack_sources

# As in tests/models.py: with the usual standard deviation of 0.02 a leak moves logits by little.
_STD = 0.2
_FAMILIES = {
    "llama": ("LlamaForCausalLM", "LlamaConfig", {"num_key_value_heads": 2, "intermediate_size": 48}),
    "gpt2": ("GPT2LMHeadModel", "GPT2Config", {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}),
    # ignores positions in its masks, so it leaks until it is sealed
    "gpt_oss": (
        "GptOssForCausalLM",
        "GptOssConfig",
        {"num_key_value_heads": 2, "intermediate_size": 48, "head_dim": 8, "num_local_experts": 2}
        | {"num_experts_per_tok": 1, "sliding_window": 4, "layer_types": ["sliding_attention", "full_attention"]},
    ),
    # a short convolution mixes tokens outside of attention, so this family leaks until it is sealed
    "lfm2": (
        "Lfm2ForCausalLM",
        "Lfm2Config",
        {"num_key_value_heads": 2, "intermediate_size": 48, "layer_types": ["conv", "full_attention"]},
    ),
    # its n-gram streams double the row, so this family cannot be sealed
    "prophetnet": (
        "ProphetNetForCausalLM",
        "ProphetNetConfig",
        {"num_decoder_layers": 1, "num_decoder_attention_heads": 4, "decoder_ffn_dim": 48, "dropout": 0.0}
        | {"attention_dropout": 0.0, "activation_dropout": 0.0, "is_decoder": True, "is_encoder_decoder": False}
        | {"add_cross_attention": False, "num_hidden_layers": None, "num_attention_heads": None},
    ),
}


def tiny_network(family="llama", **changes):
    """A model of two layers and 32 features over the demo's vocabulary."""
    name, config, own = _FAMILIES[family]
    tokenizer = demo_tokenizer()
    settings = {
        "vocab_size": len(tokenizer),
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "max_position_embeddings": 256,
        "bos_token_id": None,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
        **own,
        **changes,
    }
    settings = {key: value for key, value in settings.items() if value is not None or key == "bos_token_id"}
    torch.manual_seed(0)
    network = getattr(transformers, name)(getattr(transformers, config)(**settings))
    for parameter in network.parameters():
        if parameter.ndim > 1:
            nn.init.normal_(parameter, std=_STD)
    return network.eval()


def model_folder(folder, family="llama", **changes):
    """A saved tiny model with the demo's tokenizer."""
    save_quietly(tiny_network(family, **changes), folder)
    demo_tokenizer().save_pretrained(folder)
    return folder


def save_quietly(network, folder):
    transformers.utils.logging.disable_progress_bar()
    network.save_pretrained(folder)


def token_file(path, lengths, *, seed=0, supervised=0.6):
    """A JSONL file of documents of random tokens; about ``supervised`` of them carry a label."""
    draw = random.Random(seed)  # noqa: S311 - not cryptography
    records = []
    for length in lengths:
        ids = [draw.randrange(8, len(demo_tokenizer())) for _ in range(length)]
        records.append({"input_ids": ids, "loss_mask": [int(draw.random() < supervised) for _ in ids]})
    return write_jsonl(path, records)


def packed_folder(folder, lengths, *, capacity, **options):
    """Packed rows of such documents, opened."""
    folder.mkdir(parents=True, exist_ok=True)
    source = token_file(folder / "documents.jsonl", lengths, **options)
    pack_sources(source, folder / "packed", tokenizer=DEMO_TOKENIZER, capacity=capacity)
    return open_packed(folder / "packed")


def weights_of(network):
    return torch.cat([parameter.detach().flatten() for parameter in network.parameters()])


def largest_relative(found, expected):
    """Largest relative difference of two equally long series."""
    return max(abs(a - b) / abs(b) for a, b in zip(found, expected, strict=True))


def only_json(text):
    """The one JSON object that a text consists of."""
    value, end = json.JSONDecoder().raw_decode(text)
    assert text[end:].strip() == ""
    assert isinstance(value, dict)
    return value
