"""Topics 1 to 3 of a configuration: whether documents of a row are kept apart, and computed as they are alone."""

from collections.abc import Iterator
from typing import Final

from hermetic.audit.finding import AuditFinding, Certainty
from hermetic.audit.rule import Example, Rule
from hermetic.audit.setup import UNKNOWN, Claim, Model, Setting, Setup, findings_in, holds
from hermetic.audit.stacks.families import Measured, measured, scales_by_length

_SOFT_PROMPTS: Final = {
    *("prefix_tuning", "prefix-tuning", "prompt_tuning", "prompt-tuning", "p_tuning", "p-tuning", "ptuning"),
    *("prefix", "prompt", "multitask_prompt_tuning"),
}


def _cuts(setup: Setup) -> Iterator[AuditFinding]:
    yield from findings_in(setup.cuts, "HM120")


def _untold(setup: Setup) -> Iterator[AuditFinding]:
    yield from findings_in(setup.untold, "HM121")


def _unread(setup: Setup) -> Iterator[AuditFinding]:
    yield from findings_in(setup.unread, "HM122")


def _asked_by_positions(setup: Setup) -> bool:
    """Whether it is left to the model to look for documents in positions or edges; a seal looks for it."""
    return _whole(setup) and setup.sealed is None and setup.told in {"positions", "edges"}


def _whole(setup: Setup) -> bool:
    return setup.layout in {"packed", "flattened"}


def _result(setup: Setup) -> tuple[Model, Measured] | None:
    """What was measured of the model; where it was given positions, as the atlas gives it."""
    if setup.model is None or setup.attention is None:
        return None
    result = measured(setup.model.type, setup.attention.kind)
    return None if result is None else (setup.model, result)


def _certainty(setup: Setup, model: Model, result: Measured) -> tuple[Certainty, str | None]:
    """Certain of the very version that was measured, and of a type that was read, not guessed."""
    installed = setup.versions.get("transformers")
    if not model.certain or (installed is not None and installed != result.transformers):
        return "likely", None
    if installed is None:
        return "depends on version", f"measured in transformers {result.transformers}"
    return "certain", None


def _leaks_by_attention(setup: Setup) -> Iterator[AuditFinding]:
    found = _result(setup)
    if found is None or not _asked_by_positions(setup) or found[1].verdict != "leak" or found[1].by_state:
        return
    model, result = found
    certainty, versions = _certainty(setup, model, result)
    yield Claim(
        what=f"{model.type} does not look at positions in {result.module}: called with positions that restart, "
        f"documents moved each other's logits, which are of about 10, by up to {result.size:g}",
        setting=model.setting,
        way_out="Seal the model with hermetic.seal, or train one document per row",
        certainty=certainty,
        versions=versions,
    ).finding("HM123")


def _carries_state(setup: Setup) -> Iterator[AuditFinding]:
    found = _result(setup)
    if found is None or not _whole(setup) or found[1].verdict != "leak" or not found[1].by_state or setup.sealed:
        return
    model, result = found  # a mask over pairs of tokens is nothing to a recurrence, either
    certainty, versions = _certainty(setup, model, result)
    told = "; kernels that are told of documents may keep them apart, if they are installed"
    if setup.told == "edges":
        certainty, versions = "likely", None
    if model.type in setup.mixers_patched and setup.mixers_patched_since is not None:
        patched = holds(setup.versions, setup.mixers_patched_since)
        if patched:
            return
        if patched is None:
            package, _, version = setup.mixers_patched_since
            certainty, versions = "depends on version", f"{package} < {version}"
    yield Claim(
        what=f"{model.type} carries state from one document into the next in {result.module}"
        + (told if setup.told == "edges" else ""),
        setting=model.setting,
        way_out="Seal the model with hermetic.seal, which runs such layers document by document",
        certainty=certainty,
        versions=versions,
    ).finding("HM320")


def _distorts(setup: Setup) -> Iterator[AuditFinding]:
    found = _result(setup)
    if found is None or not _asked_by_positions(setup) or found[1].verdict != "distortion":
        return
    model, result = found
    certainty, versions = _certainty(setup, model, result)
    yield Claim(
        what=f"{model.type} computes a document differently when it is packed",
        setting=model.setting,
        way_out="Seal the model with hermetic.seal",
        certainty=certainty,
        versions=versions,
    ).finding("HM221")


def _soft_prompts(setup: Setup) -> Iterator[AuditFinding]:
    adapter = setup.adapter
    if adapter is None or not setup.joined or not isinstance(adapter.value, str):
        return
    if adapter.value.lower().replace("-", "_") in {name.replace("-", "_") for name in _SOFT_PROMPTS}:
        yield Claim(
            what=f"{adapter.text} cannot be packed: prefixes come as a cache, which turns the search for documents "
            "off, and soft prompts drop the positions",
            setting=adapter,
            way_out="Train LoRA instead, or one document per row",
        ).finding("HM124")


def _cache(setup: Setup) -> Iterator[AuditFinding]:
    cache, attention = setup.cache, setup.attention
    if cache is None or cache.value is not True or attention is None or not _asked_by_positions(setup):
        return
    if attention.kind in {"sdpa", "eager", "flex"}:
        yield Claim(
            what="with a cache, transformers looks for no documents in positions",
            setting=cache,
            way_out="Set use_cache to false",
        ).finding("HM125")


def _scaled(setup: Setup) -> Iterator[AuditFinding]:
    if not setup.joined or setup.sealed:
        return
    model = setup.model
    asked = setup.rope
    scaling = asked.value if asked else None
    if isinstance(scaling, dict):
        scaling = scaling.get("rope_type", scaling.get("type"))
    setting: Setting | None = asked if scales_by_length(scaling) else None
    if setting is None and model is not None and model.rope is not None and scaling in {None, UNKNOWN}:
        setting, scaling = model.setting, model.rope
    if setting is not None:
        yield Claim(
            what=f"{scaling} scales positions by the longest one in the row, so a document beside a longer one is "
            "computed differently, once that one exceeds the model's original length",
            setting=setting,
            way_out="Seal the model with hermetic.seal, which scales each document by itself, or take yarn or linear",
            certainty="likely",
        ).finding("HM220")


RULES: Final = (
    Rule(
        code="HM120",
        name="documents-cut-and-joined",
        what="Documents are concatenated and cut wherever a row ends, and nothing says where one starts.",
        why="Each token sees the documents before it, a document that is cut loses its beginning, and the first token "
        "of one is the target of the last of another. With tiny documents of 3 and 5 tokens the logits of the second "
        "moved by 4.3; an end-of-text token between them changes nothing in that.",
        bad=Example(
            door="trl",
            file="train.yaml",
            text="model_name_or_path: Qwen/Qwen2.5-0.5B\ndataset_name: trl-lib/Capybara\nmax_length: 4096\n"
            "packing: true\npacking_strategy: wrapped\n",
        ),
        good=Example(
            door="trl",
            file="train.yaml",
            text="model_name_or_path: Qwen/Qwen2.5-0.5B\ndataset_name: trl-lib/Capybara\nmax_length: 4096\n"
            "packing: true\npacking_strategy: bfd_split\n",
        ),
        fix="Pack whole documents and hand over where they start: TRL's bfd strategies, or rows of hermetic pack.",
        sources=("huggingface/trl#1230", "huggingface/trl#805", "Lightning-AI/litgpt#620", "unslothai/unsloth#1207"),
        check=_cuts,
    ),
    Rule(
        code="HM121",
        name="packing-without-boundaries",
        what="Whole documents are laid end to end under a mask of ones, and attention is told of no boundary.",
        why="The loss falls all the same, and a model learns to answer from a stranger's text. The doctor measured it "
        "in LLaMA-Factory 0.9.5: with packing alone the documents of a row reach each other, with neat_packing not.",
        bad=Example(
            door="llamafactory",
            file="train.yaml",
            text="model_name_or_path: Qwen/Qwen2.5-0.5B\nstage: sft\nfinetuning_type: lora\ntemplate: qwen\n"
            "dataset: identity\ncutoff_len: 4096\npacking: true\n",
        ),
        good=Example(
            door="llamafactory",
            file="train.yaml",
            text="model_name_or_path: Qwen/Qwen2.5-0.5B\nstage: sft\nfinetuning_type: lora\ntemplate: qwen\n"
            "dataset: identity\ncutoff_len: 4096\nneat_packing: true\n",
        ),
        fix="Turn on the setting that isolates (neat_packing, pretrain_multipack_attn), or seal the model.",
        sources=("hiyouga/LlamaFactory#8277", "mosaicml/llm-foundry#839", "docs/doctor.md"),
        check=_untold,
    ),
    Rule(
        code="HM122",
        name="attention-ignores-boundaries",
        what="Boundaries are there, and this attention does not read them in this stack.",
        why="A mask with numbers of documents becomes a mask of ones, or positions are not handed over, without a "
        "word. On a tiny model an integer mask moved logits by 4.3 with sdpa.",
        bad=Example(
            door="axolotl",
            file="train.yaml",
            text="base_model: NousResearch/Llama-3.2-1B\nsequence_len: 4096\nsample_packing: true\n"
            "excess_length_strategy: raise\nmicro_batch_size: 1\n",
        ),
        good=Example(
            door="axolotl",
            file="train.yaml",
            text="base_model: NousResearch/Llama-3.2-1B\nsequence_len: 4096\nsample_packing: true\n"
            "excess_length_strategy: raise\nmicro_batch_size: 1\nattn_implementation: flash_attention_2\n",
        ),
        fix="Choose an attention that the stack hands boundaries to, or a version of the stack that does.",
        sources=(
            "axolotl-ai-cloud/axolotl#3796",
            "axolotl-ai-cloud/axolotl#449",
            "huggingface/trl#2834",
            "NVIDIA/Megatron-LM#2357",
        ),
        check=_unread,
    ),
    Rule(
        code="HM123",
        name="family-ignores-positions",
        what="This type of model does not look for documents in positions.",
        why="Called as it should be, its documents reach each other: GPT-OSS moved logits by 3.6, OPT by 3.4. The "
        "numbers come from the atlas, which says of which version of transformers; a fixed version is then found to "
        "be right.",
        bad=Example(
            door="trl",
            file="train.yaml",
            text="model_name_or_path: facebook/opt-125m\ndataset_name: trl-lib/Capybara\nmax_length: 1024\n"
            "packing: true\npacking_strategy: bfd_split\n",
        ),
        good=Example(
            door="trl",
            file="train.yaml",
            text="model_name_or_path: Qwen/Qwen3-0.6B\ndataset_name: trl-lib/Capybara\nmax_length: 1024\n"
            "packing: true\npacking_strategy: bfd_split\n",
        ),
        fix="Seal the model with hermetic.seal, hand over a mask over pairs of tokens, or do not pack.",
        sources=("huggingface/transformers#39997", "huggingface/transformers#32937", "docs/atlas.md"),
        check=_leaks_by_attention,
    ),
    Rule(
        code="HM124",
        name="soft-prompts-with-packing",
        what="An adapter of soft prompts is trained on packed rows.",
        why="Prefix tuning hands its prefix over as a cache, with which nothing looks for documents: logits moved by "
        "3.8 without a warning. Prompt tuning drops the positions: 2.7.",
        bad=Example(
            door="trl",
            file="train.yaml",
            text="model_name_or_path: Qwen/Qwen3-0.6B\ndataset_name: trl-lib/Capybara\nmax_length: 1024\n"
            "packing: true\npacking_strategy: bfd_split\npeft_type: PREFIX_TUNING\n",
        ),
        good=Example(
            door="trl",
            file="train.yaml",
            text="model_name_or_path: Qwen/Qwen3-0.6B\ndataset_name: trl-lib/Capybara\nmax_length: 1024\n"
            "packing: true\npacking_strategy: bfd_split\npeft_type: LORA\n",
        ),
        fix="Train LoRA, which is exact in packed rows, or one document per row.",
        sources=("huggingface/peft#1093", "docs/limits.md"),
        check=_soft_prompts,
    ),
    Rule(
        code="HM125",
        name="cache-while-training",
        what="use_cache is on, and documents are to be found in positions.",
        why="transformers looks for documents only where there is no cache; with one, every token sees the documents "
        "before it. On a tiny Llama logits moved by 4.3.",
        bad=Example(
            door="trl",
            file="train.yaml",
            text="model_name_or_path: Qwen/Qwen3-0.6B\ndataset_name: trl-lib/Capybara\nmax_length: 1024\n"
            "packing: true\npacking_strategy: bfd_split\nuse_cache: true\n",
        ),
        good=Example(
            door="trl",
            file="train.yaml",
            text="model_name_or_path: Qwen/Qwen3-0.6B\ndataset_name: trl-lib/Capybara\nmax_length: 1024\n"
            "packing: true\npacking_strategy: bfd_split\n",
        ),
        fix="Leave use_cache out: Trainer sets it to false.",
        sources=("huggingface/transformers#39194", "huggingface/transformers#42586"),
        check=_cache,
    ),
    Rule(
        code="HM220",
        name="positions-scaled-by-the-row",
        what="Rotary positions are scaled by the longest one in the row (dynamic NTK, longrope), and rows are packed.",
        why="A short document beside a long one is then computed differently than alone: logits moved by 0.25 with "
        "longrope and by 0.08 with dynamic NTK.",
        bad=Example(
            door="llamafactory",
            file="train.yaml",
            text="model_name_or_path: Qwen/Qwen2.5-0.5B\nstage: sft\ntemplate: qwen\ndataset: identity\n"
            "cutoff_len: 32768\nneat_packing: true\nrope_scaling: dynamic\n",
        ),
        good=Example(
            door="llamafactory",
            file="train.yaml",
            text="model_name_or_path: Qwen/Qwen2.5-0.5B\nstage: sft\ntemplate: qwen\ndataset: identity\n"
            "cutoff_len: 32768\nneat_packing: true\nrope_scaling: yarn\n",
        ),
        fix="Seal the model, which scales each document by itself, or take a scaling that does not look at lengths.",
        sources=("docs/limits.md", "docs/probe.md"),
        check=_scaled,
    ),
    Rule(
        code="HM221",
        name="family-computes-otherwise",
        what="This type of model computes a document differently when it is packed, though none reaches another.",
        why="What is trained is not what will be used: chunks, compression or sparse choices are counted from the "
        "start of the row. The atlas has how far logits moved.",
        bad=Example(
            door="trl",
            file="train.yaml",
            text="model_name_or_path: SmallDoge/Doge-20M\ndataset_name: trl-lib/Capybara\nmax_length: 1024\n"
            "packing: true\npacking_strategy: bfd_split\n",
        ),
        good=Example(
            door="trl",
            file="train.yaml",
            text="model_name_or_path: Qwen/Qwen3-0.6B\ndataset_name: trl-lib/Capybara\nmax_length: 1024\n"
            "packing: true\npacking_strategy: bfd_split\n",
        ),
        fix="Seal the model with hermetic.seal, or do not pack.",
        sources=("docs/atlas.md", "pytorch/torchtitan#4801"),
        check=_distorts,
    ),
    Rule(
        code="HM320",
        name="family-carries-state",
        what="This type of model has layers that carry state along the row: Mamba, gated delta net, short convolution.",
        why="Positions say nothing to such a layer, so a document begins in the state that the one before left. "
        "Qwen3.5 moved logits by 6.0, Mamba2 by 5.1, LFM2 by 3.1, and nothing warned.",
        bad=Example(
            door="trl",
            file="train.yaml",
            text="model_name_or_path: LiquidAI/LFM2-1.2B\ndataset_name: trl-lib/Capybara\nmax_length: 1024\n"
            "packing: true\npacking_strategy: bfd_split\n",
        ),
        good=Example(
            door="trl",
            file="train.yaml",
            text="model_name_or_path: LiquidAI/LFM2-1.2B\ndataset_name: trl-lib/Capybara\nmax_length: 1024\n"
            "packing: false\n",
        ),
        fix="Seal the model, which runs these layers document by document, or do not pack.",
        sources=(
            "huggingface/transformers#44717",
            "huggingface/transformers#46588",
            "modelscope/ms-swift#7981",
            "docs/atlas.md",
        ),
        check=_carries_state,
    ),
)
