"""Training an unpacked model: dropout, checkpointing of every kind, micro-batches in flight, threads, wrappers."""

import copy
import functools
import threading

import peft
import pytest
import torch
from models import (
    alone,
    alone_gradients,
    calling,
    gradients_of,
    packed,
    packed_gradients,
    relative_difference,
    tiny,
    token_loss,
    without_dropout,
)
from rank_helpers import on_ranks
from seal_helpers import (
    assert_isolated,
    assert_packed_is_alone,
    families,
    layers_of,
    names_unpacked,
    pair,
    sealed_and_plain,
)
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import CheckpointImpl, checkpoint_wrapper
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

import hermetic
from hermetic.errors import SealError
from hermetic.seal.channel import open_forward

# Sealing runs without gradients at first, where reentrant checkpointing warns that there are none.
pytestmark = pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad=True:UserWarning")

KINDS = {"reentrant": True, "non_reentrant": False}


BATCHES = packed((9, 4, 7), seed=1), packed((2, 12, 6), seed=2)


def training(name):
    """A sealed model and its plain twin in training mode, without dropout."""
    return tuple(without_dropout(copy.deepcopy(model)).train() for model in pair(name))


def checkpointed(model, kind):
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": KINDS[kind]})
    model.enable_input_require_grads()
    assert model.is_gradient_checkpointing
    return model


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", families("lfm2", "bloom", "gpt_oss", slow=("qwen3_5", "mamba", "bamba", "gemma2")))
def test_checkpointing_changes_no_bit_of_the_gradients_of_an_unpacked_model(name, kind):
    model, _ = training(name)
    expected = packed_gradients(model, packed())

    assert torch.equal(packed_gradients(checkpointed(model, kind), packed()), expected)


def in_flight(model, batches):
    """The gradients of several micro-batches: all forwards, then all backwards, in a thread of their own."""
    losses = [token_loss(calling(model, "all_ones_mask")(batch)[None], batch.labels[None]) for batch in batches]
    thread = threading.Thread(target=lambda: [loss.backward() for loss in losses])
    thread.start()
    thread.join()
    return gradients_of(model)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", families("lfm2", "mamba", "bloom", "gemma2"))
def test_two_micro_batches_in_flight_keep_their_own_boundaries_also_in_another_thread(name, kind):
    model, plain = training(name)
    expected = sum(alone_gradients(plain, batch) for batch in BATCHES)

    assert relative_difference(in_flight(checkpointed(model, kind), BATCHES), expected) <= 1e-4


def test_checkpointing_may_be_turned_on_before_sealing_and_off_and_on_again_in_another_kind():
    model, plain = training("lfm2")
    hermetic.unseal(model)
    hermetic.seal(checkpointed(model, "reentrant")).train()
    expected = sum(alone_gradients(plain, batch) for batch in BATCHES)

    assert relative_difference(in_flight(model, BATCHES), expected) <= 1e-4
    model.gradient_checkpointing_disable()
    assert relative_difference(in_flight(model, BATCHES), expected) <= 1e-4
    assert relative_difference(in_flight(checkpointed(model, "non_reentrant"), BATCHES), expected) <= 1e-4


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["lfm2", "bloom"])
def test_a_checkpointed_model_may_start_with_rows_of_one_document(name, kind):
    model, plain = training(name)
    row = torch.arange(3, 12)[None]

    def gradients(one):
        token_loss(one(input_ids=row, use_cache=False).logits, row).backward()
        return gradients_of(one)

    assert relative_difference(gradients(checkpointed(model, kind)), gradients(plain)) <= 1e-5


DROPPING = {
    "bloom": {"hidden_dropout": 0.1, "attention_dropout": 0.1},
    "qwen3_5": {"attention_dropout": 0.1},
    "gpt_oss": {"attention_dropout": 0.1},
    "xglm": {},  # drops a tenth by default
}


@pytest.mark.parametrize("name", families("bloom", slow=("qwen3_5", "gpt_oss", "xglm")))
def test_dropout_neither_breaks_the_seal_nor_differs_under_checkpointing_from_the_same_seed(name):
    model = hermetic.seal(tiny(name, **DROPPING[name])).train()
    assert_isolated(model)

    def gradients(seed):
        torch.manual_seed(seed)
        return packed_gradients(model, packed())

    stored, other = gradients(0), gradients(1)
    assert relative_difference(stored, other) > 1e-2
    for kind in KINDS:
        checkpointed(model, kind)
        assert torch.equal(gradients(0), stored)


def around(module, kind):
    """The user's own checkpoint around a module; all arguments go by position, for reentrant ones count only so."""
    inner = module.forward

    def run(names, *values):
        count = len(values) - len(names)
        return inner(*values[:count], **dict(zip(names, values[count:], strict=True)))

    def forward(*args, **named):
        body = functools.partial(run, tuple(named))
        return checkpoint(body, *args, *named.values(), use_reentrant=KINDS[kind])

    module.forward = forward


def with_own_checkpoints(model, where, kind, mixers):
    model.enable_input_require_grads()
    for module in layers_of(model) if where == "layer" else map(model.get_submodule, mixers):
        around(module, kind)
    return model


OWN = families("lfm2", slow=("mamba", "bloom", "gemma2"))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("where", ["layer", "mixer"])
@pytest.mark.parametrize("name", OWN)
def test_a_checkpoint_of_the_users_own_around_what_is_sealed_is_refused_in_the_backward_pass(name, where, kind):
    model, plain = training(name)
    with_own_checkpoints(model, where, kind, names_unpacked(model))
    with pytest.raises(SealError, match="is run again in the backward pass without its boundaries, by a kind of check"):
        packed_gradients(model, packed())

    assert open_forward() is None
    found = calling(model, "document_ids")(packed()).detach()
    assert float((found - torch.cat(alone(plain, packed()))).abs().max()) <= 1e-4


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("where", ["layer", "mixer"])
@pytest.mark.parametrize("name", OWN)
def test_a_checkpoint_of_the_users_own_that_is_there_at_sealing_is_sealed_with_the_model(name, where, kind):
    sealed, plain = training(name)
    model = with_own_checkpoints(copy.deepcopy(plain), where, kind, names_unpacked(sealed))
    hermetic.seal(model)

    assert relative_difference(packed_gradients(model, packed()), alone_gradients(plain, packed())) <= 1e-4


@pytest.mark.parametrize("implementation", CheckpointImpl)
def test_torchs_checkpoint_wrapper_is_refused_around_what_is_sealed_and_sealed_when_it_is_there_before(implementation):
    model, plain = training("lfm2")
    wrapped = copy.deepcopy(plain)
    for one in (model, wrapped):
        layers = layers_of(one)
        for index, layer in enumerate(layers):
            layers[index] = checkpoint_wrapper(layer, checkpoint_impl=implementation)
        one.enable_input_require_grads()
    expected = alone_gradients(plain, packed())

    with pytest.raises(SealError, match="without its boundaries"):
        packed_gradients(model, packed())
    assert relative_difference(packed_gradients(hermetic.seal(wrapped), packed()), expected) <= 1e-4


TARGETS = {
    "lfm2": ["in_proj", "q_proj"],
    "qwen3_5": ["in_proj_qkv", "q_proj"],
    "mamba": ["in_proj", "x_proj"],
    "bamba": ["in_proj", "q_proj"],
    "bloom": ["query_key_value"],
}


def in_lora(name, model):
    torch.manual_seed(1)
    # the usual zeros would make the adapter do nothing
    return peft.get_peft_model(
        model, peft.LoraConfig(r=2, target_modules=TARGETS[name], init_lora_weights=False, task_type="CAUSAL_LM")
    )


@pytest.mark.parametrize("name", families("lfm2", "bloom", slow=("qwen3_5", "mamba", "bamba")))
def test_lora_may_come_before_or_after_sealing(name):
    sealed, plain = (copy.deepcopy(model) for model in pair(name))
    after, before = in_lora(name, sealed), in_lora(name, plain)
    _, twin = sealed_and_plain(before)

    assert_packed_is_alone(after, twin)
    assert_packed_is_alone(hermetic.seal(copy.deepcopy(before)), twin)


@pytest.mark.parametrize("lengths", [(6, 6), (7, 5), (9, 3)])
def test_a_model_in_lora_of_which_everything_is_unpacked_has_the_loss_of_its_documents(lengths):
    torch.manual_seed(1)
    plain = peft.get_peft_model(
        tiny("glm_moe_dsa"), peft.LoraConfig(r=2, target_modules=["q_a_proj"], init_lora_weights=False)
    ).eval()
    sealed = hermetic.seal(copy.deepcopy(plain))
    batch = packed(lengths)
    losses = [
        token_loss(logits[None], ids[None])
        for logits, ids in zip(alone(plain, batch), batch.unpack(batch.input_ids), strict=True)
    ]
    expected = sum(losses) / sum(length - 1 for length in lengths)

    assert names_unpacked(sealed) == ["base_model.model.model"], "its head and its labels stay in the row"
    found = sealed(**batch.model_inputs()).loss.detach()
    assert abs(float(found) - float(expected)) <= 1e-5 * float(expected)


@pytest.mark.parametrize("name", families("lfm2", slow=("mamba", "bloom", "qwen3_5", "gpt_oss")))
def test_autocast_and_a_model_in_bfloat16_keep_documents_apart(name):
    sealed, plain = pair(name)

    class Autocast(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.model = sealed

        def forward(self, **inputs):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                return self.model(**inputs)

    for model in (Autocast(), hermetic.seal(copy.deepcopy(plain).bfloat16())):
        report = hermetic.probe(model)
        assert report.verdict == "sealed"
        assert float(report.influence.max()) == 0.0


def step_on_a_rank(rank, folder, name):
    model = hermetic.seal(without_dropout(tiny(name))).train()
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    parallel = DistributedDataParallel(model)
    token_loss(calling(parallel, "default_cache")(BATCHES[rank])[None], BATCHES[rank].labels[None]).backward()
    torch.save(gradients_of(model), folder / f"{rank}.pt")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["lfm2", "mamba", "bloom"])
def test_two_ranks_train_an_unpacked_model_on_what_each_of_their_documents_alone_gives(name, tmp_path):
    on_ranks(step_on_a_rank, tmp_path, name)
    expected = sum(alone_gradients(training(name)[1], batch) for batch in BATCHES) / 2

    for rank in range(2):
        assert relative_difference(torch.load(tmp_path / f"{rank}.pt"), expected) <= 1e-4
