"""Models in wrappers are probed, or refused by name with the way out; no probe waits for another process."""

import pytest
import torch
from models import packed, tiny
from peft import LoraConfig, PromptTuningConfig, get_peft_model
from rank_helpers import on_ranks
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.nn.parallel import DataParallel, DistributedDataParallel

import hermetic
from hermetic.errors import ProbeError
from hermetic.probe import probe_call

LENGTHS = (6, 5, 4)


def fsdp2(model):
    for layer in model.base_model.layers if hasattr(model.base_model, "layers") else model.base_model.decoder.layers:
        fully_shard(layer)
    fully_shard(model)
    return model


def fsdp1(model):
    return FullyShardedDataParallel(model, device_id=torch.device("cpu"))


def lora(model):
    adapted = get_peft_model(model, LoraConfig(task_type="CAUSAL_LM", target_modules=["q_proj", "v_proj"]))
    for name, parameter in adapted.named_parameters():
        if "lora_B" in name:
            nn.init.normal_(parameter, std=0.2)
    return adapted.eval()


@pytest.fixture
def process_group(tmp_path):
    store = torch.distributed.FileStore(str(tmp_path / "store"), 1)
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.usefixtures("process_group")
@pytest.mark.filterwarnings("ignore:FSDP is switching to use", "ignore:FSDP2-wrapped module .* returned a view")
@pytest.mark.parametrize("wrap", [lora, DataParallel, DistributedDataParallel, fsdp2, fsdp1])
def test_in_one_process_a_wrapped_model_is_measured_by_every_instrument(wrap):
    sound = hermetic.probe(wrap(tiny("llama")), lengths=LENGTHS)
    leaking = hermetic.probe(wrap(tiny("opt")), lengths=LENGTHS)

    assert (sound.verdict, leaking.verdict) == ("sealed", "leak")
    for report in (sound, leaking):
        assert report.not_run == ()
        assert report.gradient_equivalence is not None
        assert report.targets.trained == report.targets.expected


def test_prompt_tuning_drops_what_says_where_documents_start_and_leaks():
    prompt = PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=3)
    model = get_peft_model(tiny("llama"), prompt).eval()

    with pytest.warns(UserWarning, match="Position ids are not supported"):
        report = hermetic.probe(model, lengths=LENGTHS)

    assert report.verdict == "leak"


@pytest.mark.slow  # torch.compile once for every instrument's hooks
@pytest.mark.filterwarnings("ignore:Using .torch.compile.module", "ignore:The .grad attribute of a Tensor that is not")
def test_a_compiled_model_is_measured_by_every_instrument():
    for name, verdict in (("llama", "sealed"), ("opt", "leak")):
        report = hermetic.probe(torch.compile(tiny(name), backend="eager"), lengths=LENGTHS)
        assert (report.verdict, report.not_run) == (verdict, ())


def probe_in_the_first_of_two(rank, folder):
    """The other process takes part in nothing but wrapping: a probe that needed it would wait for ever."""
    copied, leaking = (DistributedDataParallel(tiny(name)) for name in ("llama", "opt"))
    sharded = fsdp2(tiny("llama"))
    if rank:
        return
    inputs = packed(LENGTHS).model_inputs()
    found = [
        hermetic.probe(copied, lengths=LENGTHS).verdict,
        hermetic.probe(leaking, lengths=LENGTHS).verdict,
        refusal(lambda: hermetic.probe(sharded)),
        refusal(lambda: probe_call(sharded, (), inputs)),
        refusal(lambda: hermetic.probe(lambda batch: sharded(**batch.model_inputs()).logits)),
        refusal(lambda: hermetic.probe(lambda batch: copied(**batch.model_inputs()).logits)),
    ]
    (folder / "found").write_text("\n".join(found))


def refusal(probe):
    with pytest.raises(ProbeError) as caught:
        probe()
    return str(caught.value)


@pytest.mark.slow
def test_of_two_processes_one_probes_alone_what_is_copied_and_refuses_what_is_sharded(tmp_path):
    on_ranks(probe_in_the_first_of_two, tmp_path)

    copied, leaking, *refused, in_a_function = (tmp_path / "found").read_text().splitlines()
    assert (copied, leaking) == ("sealed", "leak")
    assert len(refused) == 3
    assert all("sharded over 2 processes" in one and "Probe it before it is sharded" in one for one in refused)
    assert "Call model.module in the function" in in_a_function
