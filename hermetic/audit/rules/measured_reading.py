"""Topic 6, found by running: rows that cannot be run, and batches of which nobody can say where documents start."""

from typing import Final

from hermetic.audit.rule import Rule
from hermetic.audit.rules.measured_examples import run, sealed

_EXAMINED: Final = """\
import torch

from hermetic.atlas import build_tiny
from hermetic.doctor.examine import examine

END = 2
model = build_tiny("llama").train()
row = torch.tensor([[5, 6, 7, END, 8, 9, END]])
labels = torch.tensor([[-100, 6, 7, END, -100, 9, END]])
positions = torch.tensor([[0, 1, 2, 3, 0, 1, 2]])
batch = {
    "input_ids": row,
    "labels": labels,
    "position_ids": positions,
    "use_cache": False,
}

# what the doctor does with the first training batch
report = examine(model, (), batch)
"""

RULES: Final = (
    Rule(
        code="HM601",
        name="packed-rows-unsupported",
        what="The subject runs a document alone and fails on packed ones.",
        why="transformers refuses hybrids that are told the boundaries when the kernels that could reset their state "
        "are missing. That is right: with positions alone the same models run and leak, Bamba by 4.6 logits. Padded "
        "rows or a seal can train what this call cannot.",
        bad=run("""\
import hermetic
from hermetic.atlas import build_tiny

model = build_tiny("bamba")


def forward(batch):
    numbers = (
        batch.boundaries.document_ids[None]
        if batch.boundaries.num_documents > 1
        else None
    )
    return model(
        input_ids=batch.input_ids[None], seq_idx=numbers, use_cache=False
    ).logits


report = hermetic.probe(forward)
"""),
        good=sealed("bamba"),
        fix="Install the kernels that the error asks for, seal the model, or train on padded rows.",
        sources=("huggingface/transformers#44717", "huggingface/transformers#35861", "docs/atlas.md"),
    ),
    Rule(
        code="HM602",
        name="text-without-boundaries",
        what="Rows without boundaries look like several documents: texts begin or end inside of them.",
        why="Nothing says where a document starts, so nothing can isolate it: this is the oldest way to pack. An "
        "end-of-text token does not keep later tokens from looking past it; leaks/wrapped_rows.py moves the next "
        "document's logits by 5.0.",
        bad=run("""\
import torch

from hermetic.atlas import build_tiny
from hermetic.doctor.examine import examine

END = 2
model = build_tiny("llama").train()
# concatenated, and cut where a row is full
rows = torch.tensor([[5, 6, 7, END, 8, 9], [7, 5, END, 6, 6, 8]])

report = examine(
    model, (), {"input_ids": rows, "labels": rows, "use_cache": False}
)
"""),
        good=run(_EXAMINED),
        fix="Unless these are turns of long conversations, pack whole documents and let positions restart: TRL's "
        "packing_strategy='bfd' in place of 'wrapped', DataCollatorWithFlattening, or hermetic.plan_rows.",
        sources=(
            "huggingface/trl#1230",
            "huggingface/trl#805",
            "Lightning-AI/litgpt#620",
            "leaks/wrapped_rows.py",
        ),
    ),
    Rule(
        code="HM603",
        name="boundaries-unreadable",
        what="The call's own boundaries cannot be read, or contradict each other.",
        why="Each reader then sees other documents. From positions 3 4 5 0 1 2, one function of transformers reads two "
        "documents of 3 tokens; another reads the edges 3 and 6, which leave the first document out. Three-axis "
        "positions were read as a row three times as long, which ended in an illegal memory access.",
        bad=run("""\
import torch

from hermetic.atlas import build_tiny
from hermetic.doctor.examine import examine

model = build_tiny("llama").train()
row = torch.tensor([[5, 6, 7, 8, 9]])
# the first token is in no document
edges = torch.tensor([1, 3, 5], dtype=torch.int32)

report = examine(
    model,
    (),
    {
        "input_ids": row,
        "cu_seq_lens_q": edges,
        "cu_seq_lens_k": edges,
        "use_cache": False,
    },
)
"""),
        good=run(_EXAMINED),
        fix="Pass one kind of boundaries, such as position_ids that restart with each document.",
        sources=(
            "huggingface/transformers#44911",
            "huggingface/transformers#39814",
            "NVIDIA-NeMo/Megatron-Bridge#4400",
        ),
    ),
)
