"""Topic 1, found by running: what in a call turned isolation off, or never turned it on. Told beside the leak."""

from typing import Final

from hermetic.audit.rule import Rule
from hermetic.audit.rules.measured_examples import BY_POSITIONS, of, run

RULES: Final = (
    Rule(
        code="HM101",
        name="mask-of-ones",
        what="An attention_mask of nothing but ones is passed next to positions that restart.",
        why="transformers looks for packed documents only where no mask is given, so a mask that masks nothing turns "
        "isolation off; a tokenizer or a padding collator makes one by itself. In a tiny Llama with documents of 3 and "
        "5 tokens it moves the second one's logits by 4.3, and without it they are right to 1e-6. Of 193 types of "
        "models, none is sound with it in all of its attention implementations.",
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
        fix="Leave the mask out, or call hermetic.seal(model), which makes nothing of it.",
        sources=("huggingface/transformers#46634", "leaks/all_ones_mask.py", "docs/atlas.md"),
    ),
    Rule(
        code="HM102",
        name="cache-in-training",
        what="The model makes a cache while it trains: use_cache was left at the default of its configuration.",
        why="With a cache, transformers does not look for packed documents, and use_cache is true unless it is told "
        "otherwise, in training too: a tiny Llama's second document moves by 4.3 logits. transformers' own Trainer "
        "turns the cache off; a loop of one's own has to. Of 193 types of models, 5 are sound with it.",
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
        why="transformers makes booleans of a 2-D mask, so 1 and 2 both mean that the token may be seen, and the row "
        "is one document: 4.3 logits in a tiny Llama. Patched attention functions that read the numbers are no longer "
        "called.",
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
        what="The call is given a cache: past_key_values, or the prefix of an adapter, which is one.",
        why="With a cache, transformers does not look for packed documents, whatever use_cache says. PEFT's prefix "
        "tuning moves the next document's logits by 3.8 and says nothing; LoRA is exact.",
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
        fix="Leave the cache out. Of adapters, take one inside of the layers, such as LoRA.",
        sources=("huggingface/peft#1093", "leaks/prefix_tuning.py"),
    ),
    Rule(
        code="HM107",
        name="no-boundaries-in-the-call",
        what="Nothing in the call says where documents start, and no module is given positions.",
        why="What is not said cannot be kept apart: the row is one document to the model. Mamba's forward takes no "
        "positions at all, and the documents of the example move each other by 7.1 logits.",
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
        what="Boundaries are passed and read by nobody: without them the logits are the same to the bit.",
        why="The arguments are right and go from hand to hand down to where nobody takes them, or **kwargs swallows "
        "them. cu_seq_lens_q reaches flash attention only: on sdpa the next document moved by 4.8 logits.",
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
        fix="Call hermetic.seal(model), which reads them whatever the attention is, or install the kernels that do.",
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
        why="True becomes +1 and False +0: a nudge, not a wall. The same 4-D mask isolates on sdpa, and on eager "
        "attention it moves documents by 3.1 and 2.3 logits; as floats it moves them by 2.3 on sdpa too.",
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
        fix="Pass 0 where a token may be seen and the lowest number of the dtype where not, as "
        "hermetic.batch.dialects.additive_mask makes it; or booleans on sdpa; or call hermetic.seal(model).",
        sources=(
            "huggingface/transformers#41443",
            "huggingface/transformers#46507",
            "leaks/boolean_mask_on_eager.py",
        ),
    ),
    Rule(
        code="HM110",
        name="boundaries-of-other-documents",
        what="Boundaries arrive, and they are not those of the documents: an edge too many, too few or elsewhere.",
        why="Guessed boundaries miss what their rule does not see. A position that falls is no rule for documents of "
        "one token: leaks/lone_tokens.py moves 3.3 logits by it. TRL's collator, given rows without seq_lengths, made "
        "the edges 0, 5, 7 of documents of 3, 2 and 2 tokens.",
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
        fix="Carry the boundaries from the lengths, as hermetic.collate does. They start at 0, each edge is the first "
        "token of the next document, and the last one is the number of tokens.",
        sources=("modelscope/ms-swift#9903", "huggingface/trl#3705", "leaks/lone_tokens.py"),
    ),
)
