"""What shards of a sealed model would hang or leak is refused by name, and each refusal is shown to be needed."""

import copy
import json
import signal

import pytest
import ranks_cases
import torch
import torch.distributed
from rank_helpers import on_ranks
from ranks_cases import batches_of, inputs
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import apply_activation_checkpointing
from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecisionPolicy, fully_shard
from torch.distributed.fsdp.wrap import ModuleWrapPolicy

import hermetic
from hermetic.errors import SealError
from hermetic.integrations.fsdp import check_sharded, shard_sealed


def refusal(function, *arguments):
    try:
        function(*arguments)
    except SealError as error:
        return str(error)
    return None


def layer_types(model):
    return tuple({type(layer) for layer in model.model.layers})


def sharded_inside(model):
    """Sealed, and cut inside of the delta rule, which runs document by document."""
    fully_shard(model.model.layers[0].linear_attn.out_proj)
    return fully_shard(model)


def wrapped_by_torch(model):
    kinds = layer_types(model)
    apply_activation_checkpointing(model, check_fn=lambda module: isinstance(module, kinds))
    return fully_shard(model)


def sharded_as(*, stored=torch.float32, computed=None):
    """Each layer sharded, then the rest."""
    model = ranks_cases.build_tiny("llama").to(stored)
    policy = MixedPrecisionPolicy(param_dtype=computed)
    for layer in model.model.layers:
        fully_shard(layer, mp_policy=policy)
    return fully_shard(model, mp_policy=policy)


def wrapped_in_flat_parameters(model, **options):
    policy = ModuleWrapPolicy(set(layer_types(model)))
    return FullyShardedDataParallel(model, auto_wrap_policy=policy, device_id=torch.device("cpu"), **options)


def sealed_otherwise(rank, llama):
    hermetic.unseal(llama)
    return hermetic.seal(llama, backend=("sdpa", "reference")[rank])


def refusals(rank, folder):
    llama = hermetic.seal(ranks_cases.plain("llama"))
    hybrid = hermetic.seal(ranks_cases.plain("qwen3_5"))
    (batch,) = batches_of([[0, 1, 2]])
    wrapped = wrapped_by_torch(copy.deepcopy(hybrid))
    mixed = shard_sealed(copy.deepcopy(hybrid).float(), mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16))
    whole = shard_sealed(copy.deepcopy(hybrid))
    found = {
        "inside": refusal(check_sharded, sharded_inside(copy.deepcopy(hybrid))),
        "wrapper": refusal(check_sharded, wrapped),
        "wrapper, run": refusal(lambda: wrapped(**inputs(batch)).logits.sum().backward()),
        "twice": refusal(shard_sealed, whole),
        "policy of low precision": refusal(lambda: hermetic.seal(sharded_as(computed=torch.bfloat16))),
        "weights of low precision": refusal(lambda: hermetic.seal(sharded_as(stored=torch.bfloat16))),
        "policy of float32": refusal(
            lambda: hermetic.seal(sharded_as(stored=torch.bfloat16, computed=torch.float32)),
        ),
        "flat": refusal(lambda: hermetic.seal(wrapped_in_flat_parameters(ranks_cases.plain("llama")))),
        "flat, inside": refusal(
            lambda: hermetic.seal(wrapped_in_flat_parameters(ranks_cases.plain("llama"), use_orig_params=True).module)
        ),
        "mixed precision": mixed(**inputs(batch)).logits.dtype == torch.bfloat16,
        "sharded": [name for name, module in whole.named_modules() if hasattr(module, "unshard")],
        "otherwise": refusal(shard_sealed, sealed_otherwise(rank, llama)),
    }
    (folder / f"rank{rank}.json").write_text(json.dumps(found))


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranks")
    on_ranks(refusals, folder)
    first, second = (json.loads((folder / f"rank{rank}.json").read_text()) for rank in range(2))
    assert {name: bool(value) for name, value in first.items()} == {name: bool(value) for name, value in second.items()}
    return first


@pytest.mark.slow
def test_each_layer_is_sharded_on_its_own_and_nothing_inside(found):
    assert found["sharded"] == ["", "model.layers.0", "model.layers.1"]


@pytest.mark.slow
def test_shards_inside_a_module_that_runs_document_by_document_are_refused(found):
    assert "model.layers.0.linear_attn.out_proj is sharded inside of model.layers.0.linear_attn" in found["inside"]


@pytest.mark.slow
def test_torchs_checkpoint_wrapper_around_such_a_module_is_refused_and_would_fail_in_the_backward_pass(found):
    assert "runs linear_attn (Qwen3_5GatedDeltaNet) again in the backward pass" in found["wrapper"].replace(
        "_checkpoint_wrapped_module.", ""
    )
    assert "without its boundaries" in found["wrapper, run"]


@pytest.mark.slow
def test_a_model_that_was_sealed_before_runs_in_mixed_precision_and_is_not_sealed_afterwards(found):
    assert found["mixed precision"] is True
    for name in ("policy of low precision", "weights of low precision"):
        assert found[name].startswith(
            "FSDPLlamaForCausalLM is sharded by fully_shard and computes in torch.bfloat16; a seal is judged in float32"
        )
        assert "shard_sealed(hermetic.seal(model), mp_policy=...)" in found[name]
    assert found["policy of float32"] is None


@pytest.mark.slow
def test_a_model_in_flat_parameters_is_refused_by_the_name_of_its_wrapper(found):
    way_out = "expected the model before it is wrapped: FullyShardedDataParallel(hermetic.seal(model), ...)"
    for name, where in (("flat", "FullyShardedDataParallel,"), ("flat, inside", " at model.layers.0,")):
        assert "is wrapped in FullyShardedDataParallel" in found[name]
        assert where in found[name]
        assert way_out in found[name]


@pytest.mark.slow
def test_a_model_is_sharded_once_and_by_ranks_that_sealed_it_alike(found):
    assert "is sharded already" in found["twice"]
    assert "ranks [1] sealed LlamaForCausalLM otherwise than rank 0" in found["otherwise"].replace("FSDP", "")


def run_sharded_inside(rank, _folder):
    """Ranks whose documents make groups of different number; one that waits for ever is ended by its alarm."""
    model = sharded_inside(hermetic.seal(ranks_cases.plain("qwen3_5")))
    lengths = ([40, 1, 10, 5], [6, 6])[rank]
    batch = hermetic.collate([{"input_ids": [7] * length} for length in lengths])
    torch.distributed.barrier()
    signal.alarm(20)
    model(**inputs(batch)).logits.sum().backward()


@pytest.mark.slow
def test_shards_inside_a_module_that_runs_document_by_document_would_fail_on_ranks_with_other_documents(tmp_path):
    with pytest.raises((torch.multiprocessing.ProcessRaisedException, torch.multiprocessing.ProcessExitedException)):
        on_ranks(run_sharded_inside, tmp_path)


@pytest.fixture
def one_rank(tmp_path):
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/meeting", rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.filterwarnings("ignore:FSDP is switching to use `NO_SHARD`:UserWarning")
@pytest.mark.usefixtures("one_rank")
def test_what_a_seal_cannot_be_measured_on_is_refused_on_one_rank_as_on_two():
    with pytest.raises(SealError, match=r"is wrapped in FullyShardedDataParallel, which keeps weights in one flat"):
        hermetic.seal(wrapped_in_flat_parameters(ranks_cases.plain("llama")))
    with pytest.raises(SealError, match=r"is sharded by fully_shard and computes in torch\.bfloat16"):
        hermetic.seal(sharded_as(computed=torch.bfloat16))


def test_a_model_that_is_not_sealed_is_neither_sharded_nor_passed():
    model = ranks_cases.plain("llama")
    for function in (shard_sealed, check_sharded):
        with pytest.raises(SealError, match="LlamaForCausalLM is not sealed, so packed documents would reach"):
            function(model)


def test_a_module_without_transformers_own_checkpointing_is_refused_when_asked_for_it():
    around = torch.nn.Sequential(hermetic.seal(ranks_cases.plain("llama")))
    with pytest.raises(SealError, match="Sequential has no gradient_checkpointing_enable, expected"):
        shard_sealed(around, checkpointing=True)
