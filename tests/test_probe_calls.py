"""A model is probed with the very arguments of a real call: what lets documents leak there does so in the probe."""

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings
from models import CALLS, calling, packed, padded, tiny
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import hermetic
from hermetic.batch import collate
from hermetic.batch.dialects import additive_mask, dense_mask, flash_kwargs
from hermetic.constants import IGNORE_INDEX
from hermetic.errors import BoundariesError, NoBoundariesError, NotPackedError, ProbeError
from hermetic.probe import calls, probe_call
from hermetic.probe.calls import read_call
from hermetic.probe.rebuild import rebuilt, slots_for

LENGTHS = (5, 6, 3, 4)
TWO_ROWS = torch.tensor([[0] * 5 + [1] * 6 + [2] * 3, [0] * 8 + [1] * 2 + [2] * 4])


def codes(report):
    return [finding.code for finding in report.findings]


class Anything(nn.Module):
    """Takes every argument there is; what it would make of them does not matter here."""

    def forward(self, input_ids, **kwargs):
        raise NotImplementedError


def documents_of(call):
    """The chosen documents as the probe packs them."""
    stream = call.ids.flatten()
    return collate([{"input_ids": stream[call.flat_slots(span)]} for span in call.spans])


def rebuilt_for(call, batch):
    """Named arguments of a call whose arguments are all named."""
    args, kwargs = rebuilt(call, batch, slots_for(call, batch), with_labels=True)
    assert args == []
    return kwargs


def equal(found, expected):
    if isinstance(expected, torch.Tensor):
        return found.dtype == expected.dtype and torch.equal(found, expected)
    return found == expected


# The ways of writing where documents start, and what else comes with a token. Each takes a batch.
WRITTEN = {
    "positions": lambda b: {"position_ids": b.boundaries.position_ids[None]},
    "positions_from_2": lambda b: {"position_ids": b.boundaries.position_ids[None] + 2},
    "planes": lambda b: {"position_ids": b.boundaries.position_ids.expand(3, 1, -1)},
    "document_ids": lambda b: {"document_ids": b.boundaries.document_ids},
    "seq_idx": lambda b: {"seq_idx": b.boundaries.document_ids[None]},
    "numbers": lambda b: {"attention_mask": b.boundaries.document_ids[None].long() + 1},
    "edges": lambda b: (
        flash_kwargs(b.boundaries, num_slots=b.num_slots) | {"position_ids": torch.arange(b.num_slots)[None]}
    ),
    "blocks": lambda b: {"attention_mask": dense_mask(b.boundaries)[None, None]},
    "one_mask": lambda b: {"attention_mask": dense_mask(b.boundaries)},
    "additive": lambda b: {"attention_mask": additive_mask(b.boundaries, dtype=torch.float32)},
}
BESIDE = {
    "nothing": lambda _: {},
    "ones": lambda b: {"attention_mask": torch.ones(1, b.num_slots, dtype=torch.bool)},
    "flags": lambda _: {"use_cache": None, "output_attentions": False, "mode": "train", "scale": torch.tensor(2.0)},
    "types": lambda b: {"token_type_ids": (b.input_ids % 2)[None], "bias": b.input_ids[None, :, None] / 7},
    "slots": lambda b: {"cache_position": torch.arange(b.num_slots)},
    "labels": lambda b: {"labels": b.labels[None]},
    "labelled_firsts": lambda b: {"labels": b.input_ids[None]},
    "shifted": lambda b: {"shift_labels": b.labels.roll(-1)[None]},
}


@pytest.mark.parametrize("beside", BESIDE)
@pytest.mark.parametrize("written", WRITTEN)
@settings(max_examples=5)
@given(lengths=st.lists(st.integers(2, 7), min_size=2, max_size=6))
def test_a_call_whose_documents_are_all_probed_is_rebuilt_as_it_was(written, beside, lengths):
    batch = packed(lengths)
    original = {"input_ids": batch.input_ids[None], **BESIDE[beside](batch), **WRITTEN[written](batch)}
    call = read_call(Anything(), (), original)
    assert [span.length for span in call.spans] == lengths
    found = rebuilt_for(call, batch)
    assert found.keys() == original.keys()
    assert [name for name in original if not equal(found[name], original[name])] == []


def test_rows_are_rebuilt_as_rows_of_equal_length():
    ids = torch.arange(100, 128).view(2, 14)
    rows = torch.tensor([[0] * 5 + [1] * 6 + [2] * 3, [0] * 8 + [1] * 6])
    call = read_call(Anything(), (), {"input_ids": ids[:, :14], "document_ids": rows, "labels": ids})
    found = rebuilt_for(call, documents_of(call))
    assert torch.equal(found["input_ids"], ids)
    assert torch.equal(found["document_ids"], rows)
    assert torch.equal(found["labels"], ids)

    many = torch.tensor([[0] * 3 + [1] * 3 + [2] * 2 + [3] * 6, [0] * 9 + [1] * 5])
    call = read_call(Anything(), (), {"input_ids": ids, "document_ids": many})
    found = rebuilt_for(call, documents_of(call))
    assert found["input_ids"].tolist() == [[100, 101, 102, 106, 107], [114, 115, 123, 124, 125]]
    assert found["document_ids"].tolist() == [[0, 0, 0, 1, 1], [0, 0, 1, 1, 1]]


def test_of_many_rows_two_that_hold_several_documents_are_probed():
    ids = torch.arange(40).view(5, 8)
    rows = torch.tensor([[0] * 8, [0] * 4 + [1] * 4, [0] * 8, [0] * 2 + [1] * 6, [0] * 8])
    call = read_call(Anything(), (), {"input_ids": ids, "document_ids": rows})
    assert [[(span.row, span.length) for span in row] for row in call.rows] == [[(1, 4), (1, 4)], [(3, 2), (3, 6)]]


def test_padding_is_rebuilt_as_padding():
    batch = packed((3, 4))
    pad = nn.functional.pad
    call = read_call(
        Anything(),
        (),
        {
            "input_ids": pad(batch.input_ids[None], (0, 5), value=9),
            "attention_mask": pad(torch.ones(1, 7, dtype=torch.int64), (0, 5)),
            "document_ids": pad(batch.boundaries.document_ids[None], (0, 5), value=-1),
            "labels": pad(batch.labels[None], (0, 5), value=IGNORE_INDEX),
            "token_type_ids": pad(torch.full((1, 7), 3), (0, 5)),
        },
    )
    found = rebuilt_for(call, documents_of(call))
    assert found["input_ids"].tolist() == [[*batch.input_ids.tolist(), 9, 9]]
    assert found["attention_mask"].tolist() == [[1] * 7 + [0] * 2]
    assert found["document_ids"].tolist() == [[0] * 3 + [1] * 4 + [-1] * 2]
    assert found["token_type_ids"].tolist() == [[3] * 7 + [0] * 2]
    assert found["labels"][0, 7:].tolist() == [IGNORE_INDEX] * 2


def test_documents_are_spread_over_the_batch():
    batch = packed([2] * 20)
    call = read_call(Anything(), (), CALLS["document_ids"](batch))
    assert [span.start for span in call.spans] == [0, 8, 16, 24, 32]


def test_a_longer_document_goes_on_where_the_caller_ends_and_a_lone_one_has_no_boundaries():
    batch = packed((3, 2))
    original = {
        "input_ids": batch.input_ids[None],
        "position_ids": batch.boundaries.position_ids[None] + 4,
        "seq_idx": batch.boundaries.document_ids[None],
        "attention_mask": dense_mask(batch.boundaries),
    }
    call = read_call(Anything(), (), original)
    longer = rebuilt_for(call, packed((5, 2)))
    assert longer["position_ids"].tolist() == [[4, 5, 6, 7, 8, 4, 5]]
    assert longer["seq_idx"].tolist() == [[0, 0, 0, 0, 0, 1, 1]]
    assert torch.equal(longer["attention_mask"], dense_mask(packed((5, 2)).boundaries))
    alone = rebuilt_for(call, collate([{"input_ids": batch.input_ids[3:]}]))
    assert sorted(alone) == ["attention_mask", "input_ids", "position_ids"]
    assert alone["position_ids"].tolist() == [[4, 5]]


@pytest.mark.parametrize("way", ["all_ones_mask", "two_rows", "only_cu_seq_lens", "only_position_ids"])
def test_the_verdict_is_that_of_the_caller_s_own_call(way):
    model, batch = tiny("llama", num_hidden_layers=1), packed()
    own = hermetic.probe(calling(model, way), documents=[{"input_ids": ids} for ids in batch.unpack(batch.input_ids)])
    found = probe_call(model, (), CALLS[way](batch))
    assert (found.verdict, codes(found), found.lengths) == (own.verdict, codes(own), own.lengths)
    assert found.findings[:1] == own.findings[:1]


@pytest.mark.parametrize("way", ["two_rows", "only_cu_seq_lens"])
def test_a_sealed_model_is_sealed_in_the_caller_s_own_call(way):
    assert probe_call(hermetic.seal(tiny("llama")), (), CALLS[way](packed())).verdict == "sealed"


def test_a_padded_mask_leaks_as_it_does_in_the_call_and_a_seal_stops_it():
    batch = packed()
    pad = nn.functional.pad
    original = {
        name: pad(value, (0, 4)) for name, value in CALLS["all_ones_mask"](batch).items() if name != "use_cache"
    }
    found = probe_call(tiny("llama"), (), original)
    assert found.verdict == "leak"
    assert {"swap", "gradient", "solo"} <= set(found.instruments)
    assert probe_call(hermetic.seal(tiny("llama")), (), original).verdict == "sealed"


def test_labels_on_first_tokens_are_a_leak_of_targets_unless_the_model_masks_them():
    batch = packed()
    good = CALLS["only_position_ids"](batch) | {"labels": batch.labels[None]}
    model = tiny("llama")
    assert probe_call(model, (), good).verdict == "sealed"
    found = probe_call(model, (), good | {"labels": batch.input_ids[None]})
    assert found.verdict == "leak"
    assert found.targets.across == (0, 1, 2, 3)
    assert probe_call(hermetic.seal(model), (), good | {"labels": batch.input_ids[None]}).verdict == "sealed"


def test_how_boundaries_were_found_is_said_unless_the_caller_said_them():
    batch = packed(LENGTHS)
    model = tiny("llama")
    ids = {"input_ids": batch.input_ids[None], "use_cache": False}
    notes = {way: probe_call(model, (), ids | WRITTEN[way](batch)).note for way in ("positions", "numbers", "blocks")}
    assert notes == {
        "positions": ("boundaries were inferred from position_ids",),
        "numbers": ("boundaries were inferred from the numbers in attention_mask",),
        "blocks": ("boundaries were inferred from the blocks of attention_mask",),
    }
    assert read_call(model, (), CALLS["document_ids"](batch)).notes == ()


def test_a_lone_document_of_a_stream_with_edges_is_probed_as_two_halves():
    batch = packed((5,))
    call = read_call(tiny("llama"), (), batch.model_inputs())
    assert [(span.start, span.length) for span in call.spans] == [(0, 3), (3, 2)]
    assert call.notes == ("the one document of the call was probed as two halves",)
    assert rebuilt_for(call, documents_of(call))["cu_seq_lens_q"].tolist() == [0, 3, 5]
    with pytest.raises(NotPackedError, match="one row of 1 tokens holds 1 document"):
        read_call(tiny("llama"), (), packed((1,)).model_inputs())


@pytest.mark.parametrize("tail", [0, 1])
def test_the_halves_of_a_lone_document_are_called_alike_also_with_a_tail_behind_it(tail):
    batch = hermetic.collate([{"input_ids": [5, 6, 7, 8, 9]}], pad_to=5 + tail)
    model = hermetic.seal(tiny("llama"))
    call = read_call(model, (), batch.model_inputs())
    assert [(span.start, span.length) for span in call.spans] == [(0, 3), (3, 2)]
    assert rebuilt_for(call, documents_of(call))["position_ids"].tolist() == [[0, 1, 2, 3, 4]]
    assert probe_call(model, (), batch.model_inputs()).verdict == "sealed"


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (padded(packed(LENGTHS)), NotPackedError, "each of 4 rows holds one document, padded to 6 tokens"),
        ({"input_ids": torch.ones(2, 4).long(), "document_ids": torch.zeros(2, 4)}, NotPackedError, "each of 2 rows"),
        ({"input_ids": torch.ones(1, 4).long()}, NoBoundariesError, "nothing says where documents start in 1 row"),
        (
            {"input_ids": torch.ones(2, 4).long(), "position_ids": torch.arange(4).expand(2, -1)},
            NoBoundariesError,
            r"in 2 row\(s\) of 4 tokens.*position_ids that restart",
        ),
        (
            {"input_ids": torch.ones(1, 4).long(), "attention_mask": torch.ones(4, 4).tril().bool()[None, None]},
            NoBoundariesError,
            "nothing says where",
        ),
        (
            {"inputs_embeds": torch.ones(1, 4, 8)},
            ProbeError,
            r"called with \['inputs_embeds'\].*none of them holds token",
        ),
        (
            {"input_ids": torch.ones(1, 4).long(), "document_ids": torch.tensor([0, 1, 0, 0])},
            BoundariesError,
            "comes back to document 0",
        ),
    ],
)
def test_a_call_that_is_not_packed_is_told_from_one_that_does_not_say(arguments, error, message):
    with pytest.raises(error, match=message) as caught:
        probe_call(tiny("llama"), (), arguments)
    assert type(caught.value) is error


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        (
            "pixel_values",
            torch.zeros(2, 3, 8, 8),
            r"'pixel_values' of shape \(2, 3, 8, 8\) has no axis of 1 x 18 tokens",
        ),
        ("past_key_values", object(), "'past_key_values' is a object, which cannot be made"),
    ],
)
def test_an_argument_that_cannot_be_made_for_other_documents_is_named(name, value, message):
    with pytest.raises(ProbeError, match=message):
        probe_call(tiny("llama"), (), CALLS["only_position_ids"](packed(LENGTHS)) | {name: value})


def test_positional_arguments_and_one_flat_stream_are_calls_too():
    class Flat(nn.Module):
        """Its tokens see nothing but themselves and, if told to, the stream's first token."""

        def __init__(self, *, leaks):
            super().__init__()
            self.embedding, self.head, self.leaks = nn.Embedding(97, 8), nn.Linear(8, 97), leaks

        def forward(self, tokens, document_ids):
            assert document_ids.shape == tokens.shape
            hidden = self.embedding(tokens)
            return self.head(hidden + hidden[:1] if self.leaks else hidden)

    batch = packed(LENGTHS)
    arguments = (batch.input_ids, batch.boundaries.document_ids)
    assert probe_call(Flat(leaks=False), arguments, {}).verdict == "sealed"
    assert probe_call(Flat(leaks=True), arguments, {}).verdict == "leak"


def test_the_model_is_left_as_it_was():
    model = tiny("llama", attention_dropout=0.3).train()
    frozen = model.model.embed_tokens.weight.requires_grad_(False)
    handle = model.register_forward_hook(lambda *_: None)
    inputs = packed(LENGTHS).model_inputs()
    model(**inputs).loss.backward()
    gradients = [None if p.grad is None else p.grad.clone() for p in model.parameters()]
    random, hooks = torch.get_rng_state(), [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules()]
    probe_call(model, (), inputs)
    for before, parameter in zip(gradients, model.parameters(), strict=True):
        assert (before is None) == (parameter.grad is None)
        assert before is None or torch.equal(before, parameter.grad)
    assert torch.equal(random, torch.get_rng_state())
    assert [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules()] == hooks
    assert all(module.training for module in model.modules())
    assert [p for p in model.parameters() if not p.requires_grad] == [frozen]
    handle.remove()


def test_probing_under_autocast_keeps_no_copies_of_weights_and_leaves_the_step_that_follows():
    """A copy cast while no gradient is wanted would be found by a step that wants one, in some releases of PyTorch."""
    model = hermetic.seal(tiny("llama")).train()
    inputs = packed(LENGTHS).model_inputs()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        model(**inputs).loss.backward()
    expected = {name: parameter.grad for name, parameter in model.named_parameters()}
    model.zero_grad()
    kept = []
    handle = model.register_forward_hook(lambda *_: kept.append(torch.is_autocast_cache_enabled()))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        probe_call(model, (), inputs)
        assert set(kept) == {False}
        model(**inputs).loss.backward()
    handle.remove()
    assert kept[-1] is True
    assert all(torch.equal(parameter.grad, expected[name]) for name, parameter in model.named_parameters())


@pytest.mark.parametrize("reentrant", [False, True])
def test_gradient_checkpointing_changes_no_verdict(reentrant):
    model = tiny("llama").train()
    model.gradient_checkpointing_enable({"use_reentrant": reentrant})
    model.enable_input_require_grads()
    batch = packed(LENGTHS)
    assert probe_call(model, (), CALLS["all_ones_mask"](batch)).verdict == "leak"
    assert probe_call(hermetic.seal(model), (), CALLS["all_ones_mask"](batch)).verdict == "sealed"


def test_adapters_are_probed_with_their_model():
    peft = pytest.importorskip("peft")
    model = peft.get_peft_model(tiny("llama"), peft.LoraConfig(task_type="CAUSAL_LM", target_modules=["q_proj"]))
    batch = packed(LENGTHS)
    found = probe_call(model, (), CALLS["all_ones_mask"](batch))
    assert (found.verdict, found.subject) == ("leak", "PeftModelForCausalLM")
    assert probe_call(model, (), CALLS["only_position_ids"](batch)).verdict == "sealed"


def test_a_compiled_model_is_probed_as_it_is_written():
    model = tiny("llama")
    outside = torch.compile(model, backend="eager")
    batch = packed(LENGTHS)
    assert probe_call(outside, (), CALLS["all_ones_mask"](batch)).verdict == "leak"
    model.compile(backend="eager")
    model.model.layers[0] = torch.compile(model.model.layers[0], backend="eager")
    found = probe_call(model, (), CALLS["all_ones_mask"](batch))
    assert found.verdict == "leak"
    assert "gradient" in found.instruments
    assert probe_call(model, (), CALLS["only_position_ids"](batch)).verdict == "sealed"


@pytest.fixture
def process_group(tmp_path):
    store = torch.distributed.FileStore(str(tmp_path / "store"), 1)
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.usefixtures("process_group")
def test_no_gradient_is_sent_to_other_ranks():
    model = DistributedDataParallel(hermetic.seal(tiny("llama")).train())
    inputs = packed(LENGTHS).model_inputs()
    sent = []

    def record(_state, bucket):
        sent.append(bucket.index())
        future = torch.futures.Future()
        future.set_result(bucket.buffer())
        return future

    model.register_comm_hook(None, record)
    assert probe_call(model, (), inputs).verdict == "sealed"
    assert sent == []
    model(**inputs).loss.backward()
    assert sent != []
    alone = hermetic.seal(tiny("llama")).train()
    alone(**inputs).loss.backward()
    for own, other in zip(model.module.parameters(), alone.parameters(), strict=True):
        assert torch.equal(own.grad, other.grad)


def test_the_probed_documents_stay_few_however_many_the_batch_has():
    found = probe_call(tiny("llama"), (), CALLS["document_ids"](packed([3] * 50)))
    assert len(found.lengths) == 6
    assert calls.MAX_DOCUMENTS == 6
