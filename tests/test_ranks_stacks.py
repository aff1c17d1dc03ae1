"""DeepSpeed engines and Megatron-core batches: against what they document, and against themselves where installed.

Those that need the real packages are marked ``stacks`` and fail without them.
"""

import importlib.util
import json
import os
import runpy
import subprocess
import sys
from dataclasses import dataclass, make_dataclass
from pathlib import Path

import pytest
import torch
import torch.distributed
from hypothesis import given, settings
from hypothesis import strategies as st
from rank_helpers import on_ranks
from test_loss_values import A, B, batch_of

import hermetic
from hermetic.batch import Boundaries
from hermetic.batch.dialects import boundaries_from_packed_seq_params
from hermetic.data import PackedDataset
from hermetic.errors import BatchError, MissingDependencyError, SealError, TrainError
from hermetic.integrations.deepspeed import engine_step, initialize_sealed, leaf_modules
from hermetic.integrations.megatron import megatron_batch, megatron_batches, token_loss_of
from hermetic.seal.measure import FLOOR_FACTOR

EDGES = [f"cu_seqlens_{what}" for what in ("q", "kv", "q_padded", "kv_padded")]
Params = make_dataclass("Params", ["qkv_format", "max_seqlen_q", "max_seqlen_kv", *EDGES])
"""The fields of Megatron-core's PackedSeqParams that are filled."""

EXAMPLES = Path(__file__).parents[1] / "examples" / "ranks"


# Megatron-core


def conversation():
    """Documents 5, 6, 7 and 8, 9, of which 7 and 9 are supervised."""
    documents = [{"input_ids": [5, 6, 7], "loss_mask": [0, 0, 1]}, {"input_ids": [8, 9], "loss_mask": [0, 1]}]
    return hermetic.collate(documents)


def test_a_micro_batch_of_five_tokens_has_the_next_tokens_as_labels_and_a_mask_of_what_is_supervised():
    made = megatron_batch(conversation(), Params)

    assert made.tokens.tolist() == [[5, 6, 7, 8, 9]]
    assert made.labels.tolist() == [[0, 7, 0, 9, 0]]
    assert made.loss_mask.tolist() == [[0, 1, 0, 1, 0]]
    assert made.position_ids.tolist() == [[0, 1, 2, 0, 1]]
    assert made.packed_seq_params.cu_seqlens_q.tolist() == [0, 3, 5]
    assert made.packed_seq_params.max_seqlen_q == 3
    assert made.kwargs["attention_mask"] is None


def test_two_context_parallel_ranks_get_documents_of_four_slots_and_a_tail_that_is_one_more():
    made = megatron_batch(conversation(), Params, context_parallel=2, num_slots=12, pad_token_id=1)

    assert made.tokens.tolist() == [[5, 6, 7, 1, 8, 9, 1, 1, 1, 1, 1, 1]]
    assert made.labels.tolist() == [[0, 7, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0]]
    assert made.position_ids.tolist() == [[0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3]]
    assert made.packed_seq_params.cu_seqlens_q.tolist() == [0, 3, 5, 9]
    assert made.packed_seq_params.cu_seqlens_q_padded.tolist() == [0, 4, 8, 12]


@settings(max_examples=50)
@given(
    lengths=st.lists(st.integers(0, 7), min_size=1, max_size=6).filter(any),
    context_parallel=st.integers(1, 3),
    pad_each_to=st.integers(1, 5),
)
def test_every_supervised_pair_of_a_document_is_there_once_however_it_is_padded(lengths, context_parallel, pad_each_to):
    documents = [{"input_ids": list(range(10 * i, 10 * i + length))} for i, length in enumerate(lengths)]
    batch = hermetic.collate(documents)
    made = megatron_batch(batch, Params, context_parallel=context_parallel, pad_each_to=pad_each_to)
    supervised = made.loss_mask[0] > 0
    pairs = list(zip(made.tokens[0][supervised].tolist(), made.labels[0][supervised].tolist(), strict=True))

    assert pairs == [(token, token + 1) for one in documents for token in one["input_ids"][:-1]]
    assert boundaries_from_packed_seq_params(made.packed_seq_params) == Boundaries.from_lengths(
        [length for length in lengths if length]
    )


def test_a_batch_without_tokens_and_a_mask_of_another_batch_are_refused():
    with pytest.raises(BatchError, match="the batch has no tokens"):
        megatron_batch(hermetic.collate([{"input_ids": []}]), Params)
    with pytest.raises(BatchError, match=r"losses have shape \[1, 3\] and loss_mask \[1, 2\], expected the same"):
        token_loss_of(torch.zeros(1, 3), torch.zeros(1, 2))


def packed_folder(folder):
    from hermetic.data import pack_sources
    from hermetic.demo.conversations import write_conversations

    tokenizer = Path(hermetic.__file__).parent / "demo" / "tokenizer"
    write_conversations(folder / "chats.jsonl", count=20, seed=0)
    pack_sources(folder / "chats.jsonl", folder / "rows", tokenizer=tokenizer, capacity=512)
    return folder / "rows"


def test_the_rows_of_a_packed_folder_are_micro_batches_with_every_supervised_token(tmp_path):
    rows = PackedDataset(packed_folder(tmp_path))
    made = list(megatron_batches(rows, Params, num_slots=512))

    assert len(made) == len(rows) > 1
    for row, batch in zip(rows, made, strict=True):
        assert batch.tokens.shape == (1, 512)
        assert int(batch.loss_mask.sum()) == int((row["labels"] != -100).sum()) > 0
        length = len(row["input_ids"])
        read = boundaries_from_packed_seq_params(batch.packed_seq_params, num_tokens=length)
        assert list(read.document_lengths) == row["seq_lengths"].tolist()


# DeepSpeed


@dataclass
class Engine:
    """What is documented of DeepSpeed's engine and used here."""

    accumulated: int = 2
    gradient_average: bool = True
    data_parallel_group: object = None

    def gradient_accumulation_steps(self):
        return self.accumulated


def test_an_engines_loss_is_divided_by_so_much_less_as_the_engine_divides_it():
    engine = Engine(accumulated=3)
    step = engine_step(engine, [batch_of(A), batch_of(B)])

    assert step.denominator == 6 / 3
    assert [batch.num_supervised_tokens for batch in step.batches] == [2, 4, 0]


def test_more_micro_batches_than_the_engine_accumulates_and_added_gradients_are_refused():
    with pytest.raises(TrainError, match="the step has 2 micro-batches on this rank, but the engine steps after 1"):
        engine_step(Engine(accumulated=1), [batch_of(A), batch_of(B)])
    with pytest.raises(TrainError, match="the engine adds gradients over ranks"):
        engine_step(Engine(gradient_average=False), [batch_of(A)])


def tiny(model_type):
    from hermetic.atlas import build_tiny

    return build_tiny(model_type)


def test_the_layers_around_modules_that_run_document_by_document_are_leaves():
    assert leaf_modules(hermetic.seal(tiny("qwen3_5"))) == ["model.layers.0"]
    assert leaf_modules(hermetic.seal(tiny("llama"))) == []


def test_an_engine_is_made_of_sealed_models_only_and_with_deepspeed_only(monkeypatch):
    model = tiny("llama")
    with pytest.raises(SealError, match="LlamaForCausalLM is not sealed"):
        initialize_sealed(model)
    monkeypatch.setitem(sys.modules, "deepspeed", None)
    with pytest.raises(MissingDependencyError, match="pip install deepspeed"):
        initialize_sealed(hermetic.seal(model))


# examples


def train_example(rank, folder, name):
    sys.path.insert(0, str(EXAMPLES))
    losses = runpy.run_path(str(EXAMPLES / name))["train"]()
    (folder / f"{name}{rank}").write_text(repr(losses))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ddp.py", "fsdp2.py"])
def test_an_example_trains_on_two_ranks(tmp_path, name):
    on_ranks(train_example, tmp_path, name)
    first, second = ((tmp_path / f"{name}{rank}").read_text() for rank in range(2))
    losses = [float(loss) for loss in first.strip("[]").split(",")]

    assert first == second
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] < losses[0] - 0.05


def under_torchrun(name, **environment):
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    return subprocess.run(
        [*launcher, str(EXAMPLES / name)],
        env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(EXAMPLES.parents[1])} | environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


@pytest.mark.slow
def test_the_example_of_a_plain_loop_runs_under_torchrun():
    finished = under_torchrun("ddp.py")

    assert finished.returncode == 0, finished.stderr
    assert finished.stdout.splitlines()[-1].endswith("on 2 ranks")


def test_every_example_is_short_and_run_here():
    scripts = sorted(EXAMPLES.glob("*.py"))

    assert [script.name for script in scripts] == ["ddp.py", "fsdp2.py", "zero3.py"]
    assert max(len(script.read_text(encoding="utf-8").splitlines()) for script in scripts) <= 60


# the real packages


def require(package, install):
    if importlib.util.find_spec(package) is None:
        pytest.fail(f"this test needs {package}: {install}", pytrace=False)


@pytest.mark.slow
@pytest.mark.stacks
def test_the_example_of_zero_3_runs_under_torchrun():
    require("deepspeed", "pip install deepspeed")
    finished = under_torchrun("zero3.py", DS_ACCELERATOR="cpu")

    assert finished.returncode == 0, finished.stderr
    assert finished.stdout.splitlines()[-1].endswith("on 2 ranks")


def whole_gradients(model, whole):
    """Of one process, with all documents in one batch."""
    hermetic.packed_loss(model(**whole.model_inputs()).logits, whole).backward()
    found = {name: parameter.grad.clone() for name, parameter in model.named_parameters()}
    model.zero_grad()
    return found


def furthest(found, right):
    return max(float((found[name] - one).abs().max() / one.abs().max()) for name, one in right.items())


def engine_gradients(rank, folder, stage, model_type):
    place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": 2, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": 0}
    os.environ |= {name: str(value) for name, value in place.items()} | {"DS_ACCELERATOR": "cpu"}
    import deepspeed
    from deepspeed.utils import safe_get_full_grad

    deepspeed.init_distributed("gloo", auto_mpi_discovery=False)
    documents = [{"input_ids": torch.arange(length) % 50 + 3} for length in (5, 30, 70, 4, 6, 6)]
    whole = hermetic.collate(documents)
    model = hermetic.seal(tiny(model_type))
    exact = whole_gradients(hermetic.seal(tiny(model_type).double()), whole)
    floor = furthest(whole_gradients(model, whole), exact)
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 2,
        "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 0},
        "zero_allow_untested_optimizer": True,
    }
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    engine, *_ = initialize_sealed(model, optimizer=optimizer, config=config)
    parts = ([documents[:3], documents[3:4]], [documents[4:]])[rank]
    step = engine_step(engine, [hermetic.collate(part) for part in parts])
    for batch in step.batches:
        inputs = {name: value for name, value in batch.model_inputs().items() if name != "labels"}
        engine.backward(step.loss(engine(**inputs).logits, batch))
        if batch is step.batches[-1]:
            found = {name: safe_get_full_grad(parameter) for name, parameter in engine.module.named_parameters()}
        engine.step()
    (folder / f"rank{rank}.json").write_text(json.dumps({"apart": furthest(found, exact), "floor": floor}))


@pytest.mark.slow
@pytest.mark.stacks
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize(("stage", "model_type"), [(2, "llama"), (3, "llama"), (3, "qwen3_5")])
def test_the_gradients_of_an_engine_are_those_of_one_process_but_for_float32s_own_rounding(tmp_path, stage, model_type):
    require("deepspeed", "pip install deepspeed")
    on_ranks(engine_gradients, tmp_path, stage, model_type)

    for rank in range(2):
        found = json.loads((tmp_path / f"rank{rank}.json").read_text())
        # Against float64: runs in float32 share roundings, and ZeRO-3 moves those of the delta rule's decay by 8e-6
        # even with one document on each rank and no seal. A step divided by twice too much would be off by a half.
        assert 0 < found["floor"] < 1e-3
        assert found["apart"] < FLOOR_FACTOR * found["floor"]


class PackedCore(torch.nn.Module):
    """Megatron's core attention, by hermetic's."""

    def __init__(self, *_args, **_kwargs):
        super().__init__()

    def forward(self, query, key, value, attention_mask, *, packed_seq_params, **_):
        assert attention_mask is None
        boundaries = Boundaries.from_cu_seqlens(packed_seq_params.cu_seqlens_q_padded)
        return hermetic.packed_attention(query, key, value, boundaries).flatten(1)


def megatron_model():
    from megatron.core import parallel_state
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.models.gpt.gpt_model import GPTModel
    from megatron.core.transformer.transformer_config import TransformerConfig

    parallel_state.initialize_model_parallel()
    layers = get_gpt_layer_local_spec()
    layers.submodules.self_attention.submodules.core_attention = PackedCore
    config = TransformerConfig(
        num_layers=2,
        hidden_size=32,
        num_attention_heads=4,
        use_cpu_initialization=True,
        attention_dropout=0.0,
        hidden_dropout=0.0,
        calculate_per_token_loss=True,
        gradient_accumulation_fusion=False,
        init_method=lambda weight: torch.nn.init.normal_(weight, std=0.3),
    )
    return GPTModel(config, layers, vocab_size=64, max_sequence_length=64, position_embedding_type="rope")


@pytest.mark.slow
@pytest.mark.stacks
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("layout", [{}, {"context_parallel": 2, "num_slots": 24}, {"num_slots": 40}])
def test_megatrons_own_model_gives_packed_documents_the_losses_and_gradients_that_they_have_alone(
    tmp_path, monkeypatch, layout
):
    require("megatron.core", "pip install megatron-core")
    from megatron.core import parallel_state
    from megatron.core.packed_seq_params import PackedSeqParams

    monkeypatch.setattr(torch.cuda, "current_device", lambda: torch.device("cpu"))  # its rotary table asks for one
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/meeting", rank=0, world_size=1)
    try:
        model = megatron_model()
        documents = [
            {"input_ids": torch.arange(3, 3 + length), "loss_mask": torch.arange(length) > 1} for length in (5, 3, 7, 1)
        ]
        packed = megatron_batch(hermetic.collate(documents), PackedSeqParams, **layout)
        alone = [megatron_batch(hermetic.collate([one]), PackedSeqParams) for one in documents]
        total, number, _ = token_loss_of(model(**packed.kwargs), packed.loss_mask)
        parts = [token_loss_of(model(**one.kwargs), one.loss_mask) for one in alone]
        parameters = list(model.parameters())
        found = torch.autograd.grad(total, parameters)
        right = torch.autograd.grad(sum(part[0] for part in parts), parameters)
    finally:
        parallel_state.destroy_model_parallel()
        torch.distributed.destroy_process_group()

    assert int(number) == sum(int(part[1]) for part in parts) == 9
    assert total.item() == pytest.approx(sum(part[0].item() for part in parts), rel=1e-6)
    for ours, theirs in zip(found, right, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-5 * float(theirs.abs().max()))
