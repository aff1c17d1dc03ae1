"""What goes into a probe and what comes out; and that probing leaves no trace."""

import copy
import json
import sys

import pytest
import torch
import transformers
from models import alone, calling, packed, tiny
from rich.console import Console
from torch import nn

import hermetic
from hermetic.errors import LeakError, ProbeError
from hermetic.probe import instruments
from hermetic.probe.report import Finding, LayerReading, LeakReport, TargetReading
from hermetic.probe.subject import _device_of_callable, subject_from


@pytest.fixture(scope="module")
def model():
    return hermetic.seal(tiny("llama"))


@pytest.fixture(scope="module")
def leaking():
    return hermetic.probe(calling(tiny("llama"), "all_ones_mask"))


LOGITS_ONLY = ("swap", "gradient", "solo", "length-change", "causality")
"""The instruments that need no loss."""

RETURNS = {
    "[T, V]": lambda logits: logits[0],
    "[1, T, V]": lambda logits: logits,
    "logits with a tail": lambda logits: torch.cat([logits, logits], dim=1),
    "an output with logits": lambda logits: transformers.modeling_outputs.CausalLMOutput(logits=logits),
    "an output with hidden states": lambda logits: transformers.modeling_outputs.BaseModelOutput(
        last_hidden_state=logits
    ),
}


@pytest.mark.parametrize("kind", RETURNS)
def test_a_callable_may_return_any_of_these(model, kind):
    def forward(batch):
        return RETURNS[kind](calling(model, "document_ids")(batch)[None])

    report = hermetic.probe(forward)
    assert report.verdict == "sealed"
    assert report.subject.endswith("forward")
    assert report.instruments == LOGITS_ONLY


def test_a_model_a_base_model_and_a_callable_are_the_same_subject(model):
    for subject in (model, model.model, calling(model, "document_ids")):
        assert hermetic.probe(subject).verdict == "sealed"


def test_documents_may_be_given_with_labels(model):
    documents = [
        {"input_ids": [5, 6, 7, 8], "labels": [-100, -100, 7, 8]},
        {"input_ids": [9, 10, 11], "loss_mask": [0, 1, 1]},
        {"input_ids": [12]},
    ]
    report = hermetic.probe(model, documents=documents)

    assert report.verdict == "sealed"
    assert report.lengths == (4, 3, 1)
    assert report.gradient_equivalence is not None


def test_the_default_documents_depend_on_the_seed_and_on_nothing_else(model):
    torch.manual_seed(1)
    first = hermetic.probe(model, seed=7)
    torch.manual_seed(2)

    assert hermetic.probe(model, seed=7).to_dict() == first.to_dict()
    assert hermetic.probe(model, seed=8).to_dict() != first.to_dict()


@pytest.mark.parametrize("chosen", ["swap", ("solo",), ["gradient", "swap"]], ids=str)
def test_only_the_chosen_instruments_run(model, chosen):
    report = hermetic.probe(model, instruments=chosen)
    names = {chosen} if isinstance(chosen, str) else set(chosen)

    assert set(report.instruments) == names
    assert (report.influence is not None) == ("swap" in names)
    assert (report.gradients is not None) == ("gradient" in names)
    assert (report.equivalence is not None) == ("solo" in names)


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("as_callable", [False, True])
def test_probing_leaves_parameters_gradients_flags_hooks_and_randomness_as_they_were(training, as_callable):
    model = hermetic.seal(tiny("gpt2")).train(training)  # with dropout
    model.lm_head.train(not training)
    model.transformer.h[0].mlp.c_fc.weight.requires_grad_(False)
    model.transformer.h[1].mlp.c_fc.weight.grad = torch.full_like(model.transformer.h[1].mlp.c_fc.weight, 3.0)
    before = copy.deepcopy(model)
    gradients = {name: None if p.grad is None else p.grad.clone() for name, p in model.named_parameters()}
    torch.manual_seed(5)
    state = torch.get_rng_state()
    hermetic.probe(calling(model, "document_ids") if as_callable else model)

    assert torch.equal(torch.get_rng_state(), state)
    assert not nn.modules.module._has_any_global_hook()
    for (name, one), other in zip(model.named_parameters(), before.parameters(), strict=True):
        assert torch.equal(one, other)
        assert one.requires_grad == other.requires_grad
        assert (one.grad is None) == (gradients[name] is None)
        assert one.grad is None or torch.equal(one.grad, gradients[name])
    for one, other in zip(model.modules(), before.modules(), strict=True):
        assert one.training == other.training
        assert len(one._forward_hooks) == len(other._forward_hooks)
        assert len(one._forward_pre_hooks) == len(other._forward_pre_hooks)


def test_dropout_in_training_mode_is_not_taken_for_a_leak_or_a_distortion():
    model = hermetic.seal(tiny("gpt2")).train()
    torch.manual_seed(0)
    once, twice = (calling(model, "document_ids")(packed()) for _ in range(2))
    assert not torch.equal(once, twice)

    report = hermetic.probe(model)
    assert report.verdict == "sealed"
    assert float(report.influence.max()) == 0.0


def test_a_subject_without_gradients_is_probed_with_what_can_run(model):
    @torch.no_grad()
    def forward(batch):
        return calling(model, "document_ids")(batch)

    report = hermetic.probe(forward)
    assert report.verdict == "sealed"
    assert report.instruments == ("swap", "solo", "length-change", "causality")
    assert report.gradient_equivalence is None
    reasons = dict(report.not_run)
    assert set(reasons) == {"gradient", "targets", "weights"}
    assert "detached from the embeddings" in reasons["gradient"]
    assert "returns no loss; expected a model whose forward takes labels" in reasons["targets"]
    with pytest.raises(ProbeError, match=r"detached from the embeddings; run the model without torch.no_grad\(\)"):
        hermetic.probe(forward, instruments="gradient")


def without_embedding(batch):
    """Depends on the tokens of each document, embeds none."""
    one_hot = nn.functional.one_hot(batch.input_ids, 32).float()
    return torch.cat([part.cumsum(0) for part in one_hot.split(batch.boundaries.document_lengths)])


def test_a_subject_without_an_embedding_is_probed_by_what_needs_none():
    report = hermetic.probe(without_embedding)

    assert report.verdict == "sealed"
    assert report.instruments == ("swap", "solo", "length-change", "causality")
    assert "saw no torch.nn.Embedding" in dict(report.not_run)["gradient"]
    running_on = hermetic.probe(lambda batch: nn.functional.one_hot(batch.input_ids, 32).float().cumsum(0))
    assert running_on.verdict == "leak"
    assert running_on.findings[0].where == "outside of the modules that were seen"


def nan_at(token, *, only_packed=False):
    def forward(batch):
        logits = without_embedding(batch)
        if token < len(logits) and (batch.boundaries.num_documents > 1 or not only_packed):
            logits[token] = float("nan")
        return logits

    return forward


def raising(error):
    def forward(batch):
        if batch.num_slots != 3:
            raise error
        return without_embedding(batch)

    return forward


LONG = [{"input_ids": [1, 2, 3, 4]}, {"input_ids": [5, 6]}]


@pytest.mark.parametrize(
    ("subject", "options", "message"),
    [
        (7, {}, r"cannot probe a int; expected a torch module or a callable forward\(batch\) -> logits"),
        (without_embedding, {"instruments": "sonar"}, "instrument 'sonar' is unknown; expected some of swap, gradient"),
        (
            without_embedding,
            {"instruments": ()},
            "instruments is empty; expected some of swap, gradient, solo, .*, or None for all",
        ),
        (without_embedding, {"lengths": (9,)}, r"1 document\(s\) with tokens were given; expected at least 2"),
        (without_embedding, {"lengths": (9, 0)}, r"1 document\(s\) with tokens were given; expected at least 2"),
        (
            without_embedding,
            {"instruments": "gradient"},
            "saw no torch.nn.Embedding that was fed the batch's input_ids",
        ),
        (
            without_embedding,
            {"documents": [{"input_ids": [3, 3]}, {"input_ids": [3]}], "instruments": "swap"},
            "all tokens of the batch are 3, so no document can be replaced by another",
        ),
        (lambda batch: (without_embedding(batch),), {}, "returned a tuple, which has no .logits; expected a tensor"),
        (lambda batch: without_embedding(batch)[:2], {}, r"returned logits of shape \(2, 32\) for 11 tokens"),
        (
            lambda batch: without_embedding(batch).sum(-1),
            {},
            r"returned logits of shape \(\d+,\) for \d+ tokens; expected",
        ),
        (nan_at(3), {"documents": LONG}, "returned NaN or infinite logits at token 3 of 4; nothing can be measured"),
        (nan_at(5, only_packed=True), {"documents": LONG}, "returned NaN or infinite logits at token 5 of 6"),
        (raising(ValueError("no")), {}, r"failed on document 0 alone \(ValueError: no\); expected it to run before"),
        (lambda batch: batch.logits, {}, "AttributeError: 'PackedBatch' object has no attribute 'logits'"),
    ],
)
def test_what_cannot_be_probed_is_refused_with_the_reason(subject, options, message):
    with pytest.raises(ProbeError, match=message):
        hermetic.probe(subject, **options)


def test_a_callable_that_takes_no_batch_is_refused_with_its_own_error():
    with pytest.raises(
        ProbeError, match=r"failed on a batch of one document of 3 tokens \(TypeError: .*takes a hermetic.P"
    ):
        hermetic.probe(lambda: None)


class Plain(nn.Module):
    """A module of no library: no embeddings to ask for, few arguments, no transformers configuration."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(50, 50)

    def forward(self, input_ids, position_ids):
        return self.table(input_ids) + position_ids[..., None]


def test_any_torch_module_that_takes_some_of_the_model_inputs_can_be_probed():
    report = hermetic.probe(Plain())

    assert report.subject == "Plain"
    assert report.verdict == "sealed"
    assert report.instruments == LOGITS_ONLY


def test_parameter_gradients_are_compared_on_a_bounded_number_of_them(model, monkeypatch):
    monkeypatch.setattr(instruments, "MAX_COMPARED_PARAMETERS", 100)
    subject = subject_from(model, seed=0)
    compared = instruments._compared_parameters(subject)

    assert 0 < sum(parameter.numel() for parameter in compared) <= 100
    assert hermetic.probe(model).gradient_equivalence < 1e-5


def test_a_token_beyond_the_vocabulary_is_named_by_its_document(model):
    with pytest.raises(ProbeError, match=r"LlamaForCausalLM failed on document 1 alone \(IndexError"):
        hermetic.probe(model, documents=[{"input_ids": [1, 2]}, {"input_ids": [97, 3]}])


def test_a_probe_of_which_no_instrument_ran_is_never_sealed(monkeypatch):
    single_id = [{"input_ids": [3, 3, 3, 3]}, {"input_ids": [3, 3]}]
    report = hermetic.probe(without_embedding, documents=single_id)
    assert report.instruments == ("solo", "length-change")
    assert {name for name, _ in report.not_run} == {"swap", "gradient", "causality", "targets", "weights"}
    monkeypatch.setattr(sys.modules["hermetic.probe.probe"], "INSTRUMENTS", ("swap", "gradient", "solo"))

    linear = nn.Linear(32, 8)

    def without_backward(batch):  # which only the parameter gradients of solo need
        return WithoutBackward.apply(linear(without_embedding(batch)))

    with pytest.raises(
        ProbeError, match=r"no instrument could run: all tokens .* are 3.*no torch.nn.Embedding.*broken"
    ):
        hermetic.probe(without_backward, documents=single_id)


class WithoutBackward(torch.autograd.Function):
    @staticmethod
    def forward(_ctx, logits):
        return logits.clone()

    @staticmethod
    def backward(_ctx, _upstream):
        raise NotImplementedError("the backward of this kernel is broken")


def test_a_subject_that_remembers_its_last_call_cannot_be_probed():
    memory = [torch.zeros(32)]

    def remembering(batch):
        logits = without_embedding(batch) + memory[0]
        memory[0] = logits.mean(dim=0)
        return logits

    with pytest.raises(ProbeError, match=r"remembering gave other logits for the same batch .*keeps state"):
        hermetic.probe(remembering)


def test_a_subject_that_remembers_packed_documents_and_moves_those_alone_is_broken_and_not_leaking():
    memory = [0.0]

    def remembering(batch):
        if batch.boundaries.num_documents > 1:
            memory[0] = float(batch.input_ids.sum())
            return without_embedding(batch)
        return without_embedding(batch) + memory[0]

    with pytest.raises(ProbeError, match=r"remembering gave document 0 alone in a row of its own other logits"):
        hermetic.probe(remembering)


def test_logits_that_depend_on_nothing_prove_nothing():
    with pytest.raises(ProbeError, match=r"no logit moved, not even its own"):
        hermetic.probe(lambda batch: torch.zeros(batch.num_slots, 5), instruments="swap")
    with pytest.raises(ProbeError, match=r"changed the last token of each document and its own logits did not move"):
        hermetic.probe(lambda batch: torch.zeros(batch.num_slots, 5), instruments="causality")


def test_running_out_of_memory_is_not_blamed_on_packing():
    def forward(batch):
        if batch.boundaries.num_documents > 1:
            raise torch.OutOfMemoryError
        return without_embedding(batch)

    with pytest.raises(torch.OutOfMemoryError):
        hermetic.probe(forward)


def test_a_leak_raises_with_the_place_and_the_way_out(leaking):
    message = (
        r"verdict 'leak'. HM100 document \d reaches document \d \(model.layers.0.self_attn .*hermetic.seal\(model\)"
    )
    with pytest.raises(LeakError, match=message):
        leaking.raise_for_leaks()


def test_isolation_that_was_not_measured_is_no_isolation(model):
    report = hermetic.probe(hermetic.seal(model), instruments=("solo",))
    hermetic.unseal(model)

    assert report.verdict == "sealed"
    with pytest.raises(ProbeError, match=r"isolation was not measured, for only solo ran; expected swap or gradient"):
        report.raise_for_leaks()


def test_a_callable_is_run_where_its_modules_have_their_parameters():
    elsewhere = nn.Embedding(97, 8, device="meta")

    def forward(batch):
        return elsewhere(batch.input_ids)

    assert _device_of_callable(forward, seed=0).type == "meta"
    assert _device_of_callable(without_embedding, seed=0).type == "cpu"


def test_an_unsupported_subject_raises_and_a_sealed_one_does_not(model):
    hermetic.probe(model).raise_for_leaks()
    with pytest.raises(
        ProbeError, match=r"verdict 'unsupported'. HM601 .*runs a document alone and fails on packed ones"
    ):
        hermetic.probe(tiny("qwen3_5")).raise_for_leaks()


def test_json_holds_every_number_of_the_report(leaking):
    found = json.loads(leaking.to_json())

    assert found == leaking.to_dict()
    assert torch.equal(torch.tensor(found["influence"], dtype=torch.float64), leaking.influence)
    assert torch.equal(torch.tensor(found["gradients"], dtype=torch.float64), leaking.gradients)
    assert found["equivalence"] == leaking.equivalence.tolist()
    assert [finding["code"] for finding in found["findings"]] == ["HM100", "HM101"]
    assert set(found) == {field for field in LeakReport.__dataclass_fields__}  # noqa: C416 - a set of names


def a_report(**changes):
    fields = {
        "subject": "<script>alert(1)</script>",
        "verdict": "leak",
        "findings": (Finding(code="HM100", what="<b>x</b> & y", size=1.0, unit="logits", where="w", way_out="o"),),
        "lengths": (2, 3),
        "influence": torch.tensor([[0.0, 0.5], [0.0, 0.0]], dtype=torch.float64),
        "gradients": None,
        "equivalence": None,
        "gradient_equivalence": None,
        "noise_floor": None,
        "instruments": ("swap",),
        "not_run": (("gradient", "no <embedding>"),),
    }
    return LeakReport(**{**fields, **changes})


def test_html_appears_whole_or_not_at_all(tmp_path):
    path = tmp_path / "report.html"
    path.write_text("before")
    with pytest.raises(AttributeError):
        a_report(findings=("not a finding",)).to_html(path)
    assert path.read_text() == "before"

    a_report().to_html(str(path))
    assert [entry.name for entry in tmp_path.iterdir()] == ["report.html"]


def printed(report):
    console = Console(width=80, record=True, file=None, quiet=False)
    with console.capture() as captured:
        console.print(report)
    text = captured.get()
    assert all(len(line) <= 80 for line in text.splitlines())
    return text


def test_the_printed_report_shows_who_reaches_whom():
    text = printed(a_report(equivalence=torch.tensor([0.0, 0.25]), noise_floor=1e-6, gradient_equivalence=0.5))
    joined = " ".join(text.split())

    assert "<script>alert(1)</script>: leak" in text
    assert "0 (2 tokens)" in text
    assert "5.0e-01" in text
    assert "at most 2.5e-01 (noise floor 1.0e-06), parameter gradients by 5.0e-01 relative" in joined
    assert "gradient did not run: no <embedding>" in joined
    assert "HM100 <b>x</b> & y (1 logits) in w" in text


def test_the_printed_report_has_layers_with_bars_and_notes():
    layers = tuple(
        LayerReading(name=f"{'deep.' * 8}mixer{n}", kind="Mixer", influence=size, reach=reach)
        for n, (size, reach) in enumerate([(0.0, 0), (1e-6, 3), (1.0, None)])
    )
    lines = printed(a_report(layers=layers, note=("boundaries were [inferred]",))).splitlines()
    of_layers = [line for line in lines if ".mixer" in line]

    assert [line.count("█") for line in of_layers] == [0, 1, 12]
    assert [line.split()[-2:] for line in of_layers] == [["0", "nothing"], ["3", "tokens"], ["all", "tokens"]]
    assert "note: boundaries were [inferred]" in lines


def test_a_model_that_is_not_sealed_is_reported_with_the_call_that_the_verdict_is_about():
    model = hermetic.seal(tiny("llama"))
    as_it_is, sealed, by_call = (hermetic.probe(one) for one in (tiny("llama"), model, calling(model, "document_ids")))
    opt = hermetic.probe(tiny("opt"))

    assert (as_it_is.verdict, sealed.verdict, opt.verdict) == ("sealed", "sealed", "leak")
    assert (sealed.scope, by_call.scope) == (None, None)
    assert "Called otherwise it may leak" in as_it_is.scope
    assert opt.scope == "Probed as it is, not sealed, and called with positions that restart, no mask and no cache."
    assert json.loads(as_it_is.to_json())["scope"] == as_it_is.scope
    assert as_it_is.scope in " ".join(printed(as_it_is).split())
    assert "In this call no document reaches another" in printed(as_it_is)
    assert "In this call" not in printed(sealed)


def test_one_token_is_one_token_and_one_document_is_one_document_in_print():
    report = a_report(lengths=(1, 3), targets=TargetReading(expected=(0, 2), trained=(0, 2), across=(0,)))
    text = " ".join(printed(report).split())

    assert "0 (1 token)" in text
    assert "1 (3 tokens)" in text
    assert "1 document is trained to predict another's token" in text


def test_the_matrix_that_is_printed_is_the_one_that_leaks_and_marks_what_was_not_measured():
    gradients = torch.tensor([[9.0, 0.0, 1e-30], [0.0, 9.0, 0.0], [0.0, 0.0, 9.0]], dtype=torch.float64)
    measured = torch.tensor([[True, False, True], [True, True, False], [True, True, True]])
    report = a_report(lengths=(1, 1, 1), influence=torch.zeros(3, 3), gradients=gradients, gradients_measured=measured)
    text = printed(report)

    assert "document swapped; gradient" in text
    assert [line.split()[3:] for line in text.splitlines() if "token)" in line] == [
        ["·", "?", "1.0e-30"],
        ["0", "·", "?"],
        ["0", "0", "·"],
    ]


def test_a_matrix_too_wide_for_a_terminal_is_cut_and_says_so():
    text = printed(a_report(lengths=(1,) * 20, influence=torch.full((20, 20), 3e-300, dtype=torch.float64)))

    assert "(first 12 of 20)" in " ".join(text.split())
    assert "e-300 e-300" in " ".join(text.split())
    assert "…" not in text


def test_the_subject_of_a_report_runs_alone_as_it_always_did():
    model = tiny("llama")
    before = alone(model, packed())
    hermetic.probe(model)

    assert all(torch.equal(a, b) for a, b in zip(alone(model, packed()), before, strict=True))
