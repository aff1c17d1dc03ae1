"""Where a leak is, of which kind, how far it reaches; and where a document's own context is cut."""

import pytest
import torch
from models import calling, packed, tiny
from test_probe_instruments import Attending, as_function, leaking
from torch import nn

import hermetic
from hermetic.batch.dialects import additive_mask
from hermetic.errors import ProbeError
from hermetic.probe import LayerReading, layers, locate
from hermetic.probe.subject import subject_from
from hermetic.seal import measure


def first(report):
    assert report.verdict == "leak"
    return report.findings[0]


def behind_the_seam(tokens):
    """Of two documents, 11 and 13 tokens: the first token of the second sees all of the first."""
    pairs = torch.zeros(tokens, tokens, dtype=torch.bool)
    pairs[11:12, :11] = True
    return pairs


def before_the_seam(tokens):
    """All of the second sees the last token of the first."""
    pairs = torch.zeros(tokens, tokens, dtype=torch.bool)
    pairs[11:24, 10:11] = True
    return pairs


@pytest.mark.parametrize("side", ["behind", "before"])
def test_a_boundary_that_is_off_by_one_is_told_by_the_one_token_next_to_the_seam(side):
    pairs = behind_the_seam if side == "behind" else before_the_seam
    found = first(hermetic.probe(leaking(0.0, pairs), lengths=(11, 13)))

    assert found.code == "HM104"
    assert (
        found.what == f"document 0 reaches document 1 through the token {side} the seam alone: a boundary is off by one"
    )
    assert found.where == "model.layers.0.self_attn (LlamaAttention)"


class Stack(nn.Module):
    """Embedding, one token mixer of our own, head; it takes packed rows for one document."""

    def __init__(self, mixer):
        super().__init__()
        torch.manual_seed(0)
        self.embedding, self.mixer, self.head = nn.Embedding(97, 16), mixer, nn.Linear(16, 97)

    def forward(self, input_ids):
        hidden = self.embedding(input_ids)
        return self.head(hidden + self.mixer(hidden))


class Convolution(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.taps = nn.Parameter(torch.randn(width, 16, generator=torch.Generator().manual_seed(0)))

    def forward(self, hidden):
        steps = hidden.shape[1]
        padded = nn.functional.pad(hidden, (0, 0, len(self.taps) - 1, 0))
        return sum(tap * padded[:, i : i + steps] for i, tap in enumerate(self.taps))


class Recurrence(nn.Module):
    """Its class name says nothing."""

    def __init__(self, decay=0.9):
        super().__init__()
        self.decay = decay

    def forward(self, hidden):
        state, states = torch.zeros_like(hidden[:, 0]), []
        for token in hidden.unbind(1):
            state = self.decay * state + token
            states.append(state)
        return torch.stack(states, dim=1)


class Summing(nn.Module):
    """Causal attention with equal weights: a set has no order."""

    def forward(self, hidden):
        count = torch.arange(1, hidden.shape[1] + 1)[:, None]
        return hidden.cumsum(1) / count


@pytest.mark.parametrize("width", [2, 3, 4, 5])
def test_a_convolution_is_told_by_its_receptive_field(width):
    model = Stack(Convolution(width))
    report = hermetic.probe(model, lengths=(9, 10, 6))

    assert first(report).code == "HM302"
    assert first(report).what.endswith(f"through a convolution over {width} tokens")
    (layer,) = report.layers
    assert layer == LayerReading(name="mixer", kind="Convolution", influence=layer.influence, reach=width - 1)
    assert layer.influence > 0.0
    assert layers(model, lengths=(9, 10, 6)) == report.layers


@pytest.mark.parametrize("decay", [0.5, 0.9, 1.1])
def test_a_state_that_runs_on_is_told_by_its_order_and_by_reaching_everything(decay):
    report = hermetic.probe(Stack(Recurrence(decay)), lengths=(9, 10, 6))

    assert first(report).code == "HM301"
    assert report.layers[0].reach is None


def test_a_sum_over_a_set_has_no_order_and_is_attention():
    assert first(hermetic.probe(Stack(Summing()), lengths=(9, 10, 6))).code == "HM100"


@pytest.mark.parametrize(
    ("name", "code", "reach"), [("lfm2", "HM302", 2), ("qwen3_5", "HM301", None), ("gpt_oss", "HM100", 3)]
)
def test_the_kinds_of_real_models_are_measured(name, code, reach):
    report = hermetic.probe(calling(tiny(name), "only_position_ids"), instruments="swap")

    assert first(report).code == code
    assert report.layers[0].reach == reach
    assert report.layers[0].influence > 0.0


def test_layers_of_a_sealed_model_carry_nothing():
    read = layers(hermetic.seal(tiny("lfm2")))

    assert [(layer.name, layer.influence, layer.reach) for layer in read] == [
        ("model.layers.0.conv", 0.0, 0),
        ("model.layers.1.self_attn", 0.0, 0),
    ]


def test_a_leak_in_the_second_layer_is_found_there_whatever_happens_before_it():
    model = tiny("llama", implementation="eager")
    attention = model.model.layers[1].self_attn
    attention.register_forward_pre_hook(
        lambda _module, args, kwargs: (args, {**kwargs, "attention_mask": None}), with_kwargs=True
    )

    def forward(batch):
        mask = additive_mask(batch.boundaries, dtype=torch.float32)
        positions = batch.boundaries.position_ids[None]
        return model(batch.input_ids[None], position_ids=positions, attention_mask=mask, use_cache=False).logits

    report = hermetic.probe(forward, instruments="swap")
    assert first(report).where == "model.layers.1.self_attn (LlamaAttention)"
    assert [layer.influence > 0.0 for layer in report.layers] == [False, True]


def test_a_leak_outside_of_all_modules_is_outside_of_them_and_one_without_gradient_is_found_by_comparing_runs():
    by_function = hermetic.probe(lambda batch: nn.functional.one_hot(batch.input_ids, 32).float().cumsum(0))
    assert first(by_function).where == locate.NOWHERE

    class Detached(Summing):
        def forward(self, hidden):
            return super().forward(hidden.detach())

    assert first(hermetic.probe(Stack(Detached()), instruments="swap")).where == "mixer (Detached)"


def masked(name, mask_of):
    model = tiny(name, implementation="eager")

    def forward(batch):
        blocked = torch.finfo(torch.float32).min
        mask = torch.zeros(batch.num_slots, batch.num_slots).masked_fill(~mask_of(batch), blocked)[None, None]
        positions = batch.boundaries.position_ids[None]
        if batch.boundaries.num_documents == 1:
            return model(batch.input_ids[None], position_ids=positions, use_cache=False).logits
        masks = {
            "full_attention": additive_mask(batch.boundaries, dtype=torch.float32),
            "chunked_attention": mask,
            "sliding_attention": mask,
        }
        chosen = masks if name in {"llama4", "gemma3"} else mask
        return model(batch.input_ids[None], position_ids=positions, attention_mask=chosen, use_cache=False).logits

    return forward


def own(batch):
    """Each document's causal mask."""
    ids, count = batch.boundaries.document_ids, torch.arange(batch.num_slots)
    return (ids[:, None] == ids) & (count[:, None] >= count)


def chunks_of_the_row(batch):
    chunk = torch.arange(batch.num_slots) // 4
    return own(batch) & (chunk[:, None] == chunk)


def test_a_chunk_border_that_counts_from_the_row_is_a_distortion_with_its_place():
    report = hermetic.probe(masked("llama4", chunks_of_the_row), lengths=(5, 7), instruments=("swap", "solo"))

    assert report.verdict == "distortion"
    found = report.findings[0]
    assert found.code == "HM205"
    assert found.what == "a document's own context is cut or widened from its token 3 on"
    assert found.where == "model.layers.0.self_attn (Llama4TextAttention), document 1"


def test_a_window_that_is_lost_is_a_distortion_from_its_first_token_beyond_it():
    report = hermetic.probe(masked("mistral", own), lengths=(3, 9), instruments=("swap", "solo"))

    assert report.findings[0].code == "HM205"
    assert "from its token 4 on" in report.findings[0].what
    assert not report.influence.any()


def test_a_right_mask_is_no_distortion():
    def window(batch):
        count = torch.arange(batch.num_slots)
        return own(batch) & (count[:, None] - count < 4)

    assert hermetic.probe(masked("mistral", window), lengths=(3, 9)).verdict == "sealed"


def test_calls_are_recorded_over_few_tokens_and_over_no_width_of_the_model():
    subject = subject_from(hermetic.seal(tiny("llama")), seed=0)
    for lengths in ((400, 500, 30), (16, 16), (3, 5), (1, 1), (2,) * 200):
        small = locate.shortened(subject, packed(lengths))
        assert 2 <= small.boundaries.num_documents <= len(lengths)
        assert small.num_slots <= locate.MAX_TOKENS
        assert all(size % small.num_slots for p in subject.parameters() for size in p.shape)


def test_a_long_row_that_leaks_is_located_all_the_same():
    report = hermetic.probe(calling(tiny("llama"), "all_ones_mask"), lengths=(70, 50, 8), instruments="swap")

    assert first(report).where == "model.layers.0.self_attn (LlamaAttention)"


def test_reading_layers_takes_two_documents():
    with pytest.raises(ProbeError, match="expected at least 2"):
        layers(tiny("llama"), lengths=(4,))
    assert layers(as_function(Attending())) == ()


def test_fingerprints_tell_bits_places_and_shapes_apart_and_keep_nothing():
    x = torch.tensor([1.0, 2.0, -0.0])
    for other in (x[[1, 0, 2]], x[:2], x + 1e-7, x.view(1, 3)):
        assert measure._fingerprint(other) != measure._fingerprint(x)
    for dtype in (torch.float64, torch.float32, torch.bfloat16, torch.float16):
        assert measure._fingerprint(x.to(dtype)) == measure._fingerprint(torch.tensor([1.0, 2.0, 0.0], dtype=dtype))
