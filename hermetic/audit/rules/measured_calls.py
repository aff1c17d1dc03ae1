"""Topic 1, found by running: what in a call turned isolation off, or never turned it on. Told beside the leak."""

from typing import Final

from hermetic.audit.rule import Rule
from hermetic.audit.rules.measured_examples import BY_POSITIONS, of, run

RULES: Final = (
    Rule(
        code="HM101",
        name="mask-of-ones",
        what="An attention_mask of nothing but ones is passed next to positions that restart.",
        why="transformers looks for packed documents only when no mask is given, so a mask that masks nothing switches "
        "isolation off; tokenizers and padding collators add one unasked. In a tiny Llama with documents of 3 and 5 "
        "tokens it moves the second one's logits by 4.3; without it they are right to 1e-6. Of 193 model types, none "
        "is sound with it in all of its attention implementations.",
        bad=run("""\
import torch

import hermetic
from hermetic.atlas import build_tiny

model = build_tiny("llama")


def forward(batch):
    ones = torch.ones_like(batch.input_ids[None])
    return model(**batch.model_inputs(), attention_mask=ones).logits


report = hermetic.probe(forward)
"""),
        good=BY_POSITIONS,
        fix="Leave the mask out, or call hermetic.seal(model), which ignores it.",
        sources=("huggingface/transformers#46634", "leaks/all_ones_mask.py", "docs/atlas.md"),
    ),
    Rule(
        code="HM102",
        name="cache-in-training",
        what="The model builds a cache during training: use_cache was left at its default.",
        why="When there is a cache, transformers does not look for packed documents, and use_cache is true by default, "
        "even in training: a tiny Llama's second document moves by 4.3 logits. The Trainer of transformers turns the "
        "cache off; in your own loop you have to. Of 193 model types, 5 are sound with it.",
        bad=run("""\
import hermetic
from hermetic.atlas import build_tiny

model = build_tiny("llama")


def forward(batch):
    return model(
        input_ids=batch.input_ids[None],
        position_ids=batch.boundaries.position_ids[None],
    ).logits


report = hermetic.probe(forward)
"""),
        good=BY_POSITIONS,
        fix="Pass use_cache=False, or set model.config.use_cache = False, or call hermetic.seal(model).",
        sources=(
            "huggingface/transformers#39194",
            "huggingface/transformers#42586",
            "leaks/default_cache.py",
            "docs/atlas.md",
        ),
    ),
    Rule(
        code="HM103",
        name="document-numbers-in-the-mask",
        what="A 2-D attention_mask holds the number of each token's document: 1 1 1 2 2.",
        why="transformers turns a 2-D mask into booleans, so 1 and 2 both mean that a token may be seen, and the row "
        "is one document: 4.3 logits in a tiny Llama. Attention functions that were patched to read the numbers are no "
        "longer called.",
        bad=run("""\
import hermetic
from hermetic.atlas import build_tiny

model = build_tiny("llama")


def forward(batch):
    numbers = batch.boundaries.document_ids[None] + 1
    return model(**batch.model_inputs(), attention_mask=numbers).logits


report = hermetic.probe(forward)
"""),
        good=run("""\
import hermetic
from hermetic.atlas import build_tiny

model = hermetic.seal(build_tiny("llama"))


def forward(batch):
    numbers = batch.boundaries.document_ids[None]
    return model(input_ids=batch.input_ids[None], document_ids=numbers).logits


report = hermetic.probe(forward)
"""),
        fix="Pass the numbers as document_ids to a sealed model, or positions that restart and no mask.",
        sources=("axolotl-ai-cloud/axolotl#3796", "hiyouga/LlamaFactory#8919", "leaks/document_numbers_in_mask.py"),
    ),
    Rule(
        code="HM106",
        name="cache-handed-in",
        what="The call is given a cache: past_key_values, or an adapter's prefix, which is one.",
        why="When there is a cache, transformers does not look for packed documents, whatever use_cache says. PEFT's "
        "prefix tuning moves the next document's logits by 3.8 without a warning; LoRA is exact.",
        bad=run("""\
from peft import PrefixTuningConfig, TaskType, get_peft_model

import hermetic
from hermetic.atlas import build_tiny

prefix = PrefixTuningConfig(
    task_type=TaskType.CAUSAL_LM, num_virtual_tokens=2
)
model = get_peft_model(build_tiny("llama"), prefix)

report = hermetic.probe(model)
"""),
        good=run("""\
from peft import LoraConfig, TaskType, get_peft_model

import hermetic
from hermetic.atlas import build_tiny

lora = LoraConfig(task_type=TaskType.CAUSAL_LM, target_modules=["q_proj"])
model = get_peft_model(build_tiny("llama"), lora)

report = hermetic.probe(model)
"""),
        fix="Leave the cache out. Among adapters, choose one that works inside the layers, such as LoRA.",
        sources=("huggingface/peft#1093", "leaks/prefix_tuning.py"),
    ),
    Rule(
        code="HM107",
        name="no-boundaries-in-the-call",
        what="Nothing in the call says where documents start, and no module is given positions.",
        why="What the call does not say, the model cannot know: to it the row is one document. Mamba's forward takes "
        "no positions at all, and in the example documents move each other's logits by 7.1.",
        bad=run(
            of('build_tiny("mamba")')
            + """

def forward(batch):
    return model(input_ids=batch.input_ids[None], use_cache=False).logits


report = hermetic.probe(forward, lengths=(5, 7, 4))
"""
        ),
        good=run(
            of('hermetic.seal(build_tiny("mamba"))')
            + """

def forward(batch):
    return model(**batch.model_inputs()).logits


report = hermetic.probe(forward, lengths=(5, 7, 4))
"""
        ),
        fix="Call hermetic.seal(model), and pass batch.model_inputs().",
        sources=("Lightning-AI/litgpt#620", "huggingface/transformers#32937", "docs/atlas.md"),
    ),
    Rule(
        code="HM108",
        name="boundaries-unread",
        what="Boundaries are passed, but nothing reads them: without them the logits are the same, bit for bit.",
        why="The arguments are right, but they are handed down to where nothing takes them, or **kwargs swallows them. "
        "cu_seq_lens_q reaches flash attention only: on sdpa the next document moved by 4.8 logits.",
        bad=run("""\
import hermetic
from hermetic.atlas import build_tiny

model = build_tiny("llama")  # sdpa


def forward(batch):
    inputs = batch.model_inputs()
    # cu_seq_lens_q is to say where documents start
    del inputs["position_ids"]
    return model(**inputs).logits


report = hermetic.probe(forward)
"""),
        good=run("""\
import hermetic
from hermetic.atlas import build_tiny

model = hermetic.seal(build_tiny("llama"))


def forward(batch):
    inputs = batch.model_inputs()
    del inputs["position_ids"]
    return model(**inputs).logits


report = hermetic.probe(forward)
"""),
        fix="Call hermetic.seal(model), which reads them with any attention implementation, or install the kernels "
        "that do.",
        sources=(
            "areal-project/AReaL#1442",
            "NVIDIA-NeMo/RL#2105",
            "huggingface/transformers#39997",
            "mosaicml/llm-foundry#839",
            "leaks/edges_unread.py",
        ),
    ),
    Rule(
        code="HM109",
        name="mask-added-as-ones",
        what="A mask of booleans, or of ones and zeros, over pairs of tokens is added to the scores of attention.",
        why="True becomes +1 and False +0: a nudge, not a wall. The same 4-D mask isolates on sdpa, but on eager "
        "attention it lets documents move by 3.1 and 2.3 logits; as floats, by 2.3 on sdpa too.",
        bad=run("""\
import hermetic
from hermetic.atlas import build_tiny
from hermetic.batch.dialects import dense_mask

model = build_tiny("llama", attn_implementation="eager")


def forward(batch):
    mask = dense_mask(batch.boundaries)[None, None]  # booleans
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
import torch

import hermetic
from hermetic.atlas import build_tiny
from hermetic.batch.dialects import additive_mask

model = build_tiny("llama", attn_implementation="eager")


def forward(batch):
    # 0, and the lowest number
    mask = additive_mask(batch.boundaries, dtype=torch.float32)
    positions = batch.boundaries.position_ids[None]
    return model(
        input_ids=batch.input_ids[None],
        attention_mask=mask,
        position_ids=positions,
        use_cache=False,
    ).logits


report = hermetic.probe(forward)
"""),
        fix="Pass 0 where a token may be seen and the lowest number of the dtype elsewhere, as "
        "hermetic.batch.dialects.additive_mask does; or pass booleans on sdpa; or call hermetic.seal(model).",
        sources=(
            "huggingface/transformers#41443",
            "huggingface/transformers#46507",
            "leaks/boolean_mask_on_eager.py",
        ),
    ),
    Rule(
        code="HM110",
        name="boundaries-of-other-documents",
        what="Boundaries arrive, but not those of the documents: one too many, one too few, or one in the wrong place.",
        why="Guessed boundaries miss whatever the guess does not cover. If a document is taken to start where "
        "positions fall, documents of one token are missed: leaks/lone_tokens.py leaks 3.3 logits that way. TRL's "
        "collator, given rows without seq_lengths, made the edges 0, 5, 7 out of documents of 3, 2 and 2 tokens.",
        bad=run("""\
import torch

import hermetic
from hermetic.atlas import build_tiny

model = hermetic.seal(build_tiny("llama"))


def forward(batch):
    # 0 after 0 does not fall
    starts = (
        batch.boundaries.position_ids.diff() < 0
    ).nonzero().flatten() + 1
    edges = torch.tensor(
        [0, *starts.tolist(), batch.num_slots], dtype=torch.int32
    )
    return model(
        input_ids=batch.input_ids[None],
        cu_seq_lens_q=edges,
        cu_seq_lens_k=edges,
    ).logits


report = hermetic.probe(forward, lengths=(5, 1, 7, 4))
"""),
        good=run("""\
import hermetic
from hermetic.atlas import build_tiny

model = hermetic.seal(build_tiny("llama"))


def forward(batch):
    edges = batch.boundaries.cu_seqlens
    return model(
        input_ids=batch.input_ids[None],
        cu_seq_lens_q=edges,
        cu_seq_lens_k=edges,
    ).logits


report = hermetic.probe(forward, lengths=(5, 1, 7, 4))
"""),
        fix="Make the boundaries from the lengths, as hermetic.collate does. They begin with 0, each edge is the first "
        "token of the next document, and the last edge is the number of tokens.",
        sources=("modelscope/ms-swift#9903", "huggingface/trl#3705", "leaks/lone_tokens.py"),
    ),
)
