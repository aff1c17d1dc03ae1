"""Topic 2, found by running: positions, windows and lengths. No document reaches another; each is computed wrong."""

from typing import Final

from hermetic.audit.rule import Rule
from hermetic.audit.rules.measured_examples import BY_POSITIONS, run, sealed

RULES: Final = (
    Rule(
        code="HM201",
        name="positions-not-reset",
        what="Positions run on through the row instead of starting again with each document.",
        why="A model with learned positions is trained at positions where its documents never stand: under a right "
        "mask, GPT-2's logits were off by 4.1. Rotary positions are relative, so Llama's were right to 1e-6 and the "
        "mistake goes unseen; that is why the positions themselves are checked. Where there is no mask, transformers "
        "also finds documents by their positions.",
        bad=run("""\
import hermetic
from hermetic.atlas import build_tiny
from hermetic.batch.dialects import dense_mask

model = build_tiny("llama")


def forward(batch):
    mask = dense_mask(batch.boundaries)[None, None]
    return model(
        input_ids=batch.input_ids[None], attention_mask=mask, use_cache=False
    ).logits


report = hermetic.probe(forward)
"""),
        good=BY_POSITIONS,
        fix="Pass positions that restart, as hermetic.collate makes them, or none at all to a sealed model.",
        sources=("hiyouga/LlamaFactory#7318", "leaks/running_positions.py", "docs/atlas.md"),
    ),
    Rule(
        code="HM202",
        name="logits-of-another-context",
        what="A packed document's logits are not those of the same document alone, by more than rounding.",
        why="Training then computes something else than what is used later, where a document stands alone. RoBERTa "
        "counts positions from 2, flattening collators from 0: packed, the logits of the example are off by 5.7, and "
        "embeddings just get worse.",
        bad=run("""\
import torch

import hermetic
from hermetic.atlas import build_tiny
from hermetic.batch.dialects import additive_mask

model = build_tiny("roberta")


def forward(batch):
    row = batch.input_ids[None]
    if batch.boundaries.num_documents == 1:
        # left alone, the model counts from 2
        return model(input_ids=row, use_cache=False).logits
    mask = additive_mask(batch.boundaries, dtype=torch.float32)
    positions = batch.boundaries.position_ids[None]  # from 0
    return model(
        input_ids=row,
        attention_mask=mask,
        position_ids=positions,
        use_cache=False,
    ).logits


report = hermetic.probe(forward)
"""),
        good=sealed("roberta"),
        fix="Check positions, windows and chunk borders: each must count from the document's start, and from the "
        "number at which the model begins. hermetic.seal(model) works that out.",
        sources=(
            "huggingface/transformers#47496",
            "huggingface/transformers#47525",
            "leaks/roberta_positions.py",
        ),
    ),
    Rule(
        code="HM203",
        name="gradients-of-another-context",
        what="Parameter gradients of the packed batch are not the sum of those of its documents alone.",
        why="A right forward pass proves nothing about a kernel's backward pass, and only the backward pass trains. "
        "Kernels for packed rows have given NaN gradients where tensors were longer than cu_seqlens says, and "
        "convolutions wrong ones for documents shorter than their width. In the example, gradients are 10 % too large "
        "in every document but the first, and nothing else shows it.",
        bad=run("""\
import hermetic
from hermetic.atlas import build_tiny
from hermetic.testing.leaks import plant

model = hermetic.seal(build_tiny("llama"))
# stands for a kernel with a wrong backward pass
plant(model, "backward_own", size=0.1)

report = hermetic.probe(model)
"""),
        good=sealed("llama"),
        fix="Suspect the kernel's backward pass: compare with hermetic.seal(model, backend='reference'), and use "
        "another version or backend.",
        sources=(
            "pytorch/pytorch#186786",
            "fla-org/flash-linear-attention#1140",
            "NVIDIA/TransformerEngine#3331",
        ),
    ),
    Rule(
        code="HM204",
        name="depends-on-row-length",
        what="A document changes when another one of the row gets longer.",
        why="Rotary scaling by the longest position (dynamic NTK, longrope) rotates a short document as if it were "
        "long when a long one shares its row: off by 0.08 and 0.25 logits in tiny models. Noise that is scaled by the "
        "row's length and limits on experts' capacity do the same. No document's content reaches another.",
        bad=run("""\
import torch
from transformers import LlamaConfig, LlamaForCausalLM

import hermetic

torch.manual_seed(0)
model = LlamaForCausalLM(
    LlamaConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        initializer_range=0.2,
        max_position_embeddings=16,
        rope_parameters={
            "rope_type": "dynamic",
            "factor": 4.0,
            "rope_theta": 1e4,
        },
    )
).eval()

report = hermetic.probe(model, lengths=(30, 13, 6))
"""),
        good=run("""\
import torch
from transformers import LlamaConfig, LlamaForCausalLM

import hermetic

torch.manual_seed(0)
model = LlamaForCausalLM(
    LlamaConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        initializer_range=0.2,
        max_position_embeddings=16,
        rope_parameters={
            "rope_type": "dynamic",
            "factor": 4.0,
            "rope_theta": 1e4,
        },
    )
).eval()

report = hermetic.probe(hermetic.seal(model), lengths=(30, 13, 6))
"""),
        fix="Call hermetic.seal(model), which computes these frequencies for each document's length, or keep documents "
        "below the length at which the model rescales. If neither applies, look for whatever else the row shares.",
        sources=("QwenLM/Qwen#401", "ggml-org/llama.cpp#24875", "leaks/scaled_by_the_longest.py"),
    ),
    Rule(
        code="HM205",
        name="window-of-the-row",
        what="On the same inputs, a token mixer gives a document other outputs in the row than alone, from some token "
        "on.",
        why="A mask of your own has replaced the sliding window that the model would have applied, or chunks are "
        "counted from the row's start. Documents are isolated, and short ones never fill the window, so it goes "
        "unnoticed. One run was reported to start at a loss of 9.98 instead of 1.9.",
        bad=run("""\
import hermetic
from hermetic.atlas import build_tiny
from hermetic.batch.dialects import dense_mask

model = build_tiny("mistral")  # a window of 4


def forward(batch):
    mask = (
        dense_mask(batch.boundaries)[None, None]
        if batch.boundaries.num_documents > 1
        else None
    )
    positions = batch.boundaries.position_ids[None]
    return model(
        input_ids=batch.input_ids[None],
        attention_mask=mask,
        position_ids=positions,
        use_cache=False,
    ).logits


report = hermetic.probe(forward)
"""),
        good=run("""\
import hermetic
from hermetic.atlas import build_tiny
from hermetic.batch.dialects import dense_mask

model = build_tiny("mistral")


def forward(batch):
    mask = dense_mask(batch.boundaries, window=model.config.sliding_window)[
        None, None
    ]
    positions = batch.boundaries.position_ids[None]
    return model(
        input_ids=batch.input_ids[None],
        attention_mask=mask,
        position_ids=positions,
        use_cache=False,
    ).logits


report = hermetic.probe(forward)
"""),
        fix="Count windows and chunk borders from the document's first token and write them into the mask, or call "
        "hermetic.seal(model).",
        sources=(
            "axolotl-ai-cloud/axolotl#2449",
            "huggingface/transformers#32522",
            "huggingface/transformers#37351",
            "leaks/window_lost.py",
        ),
    ),
)
