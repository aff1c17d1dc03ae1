"""Seeded leaks: each is what it says, is taken out without a trace, and is noticed by the probe."""

import math
from functools import lru_cache
from itertools import product

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from models import packed, tiny
from torch import nn

import hermetic
from hermetic.atlas import build_tiny, model_types
from hermetic.errors import AtlasError, LeakError, NotSealedError, ProbeError, SealError
from hermetic.probe import instruments as measuring
from hermetic.probe.lengthen import lengthen
from hermetic.probe.subject import subject_from
from hermetic.probe.targets import targets
from hermetic.probe.weights import weights
from hermetic.seal.measure import FLOOR_FACTOR
from hermetic.testing import assert_no_leak, seams
from hermetic.testing.leaks import KINDS, plant
from hermetic.testing.seams import tokens_from_lengths

LENGTHS = (11, 13, 6, 1)
FAMILIES = ("llama", "gpt2", "mistral", "gemma3", "bamba", "jamba", "qwen3_5_text")
DENSE = FAMILIES[:4]
DTYPES = (torch.float32, torch.bfloat16)
WRONG_ALONE_TOO = {"not_causal", "row_length", "row_mean", "accumulation"}

EXPECTED = {
    "one_key": ("leak", "HM100"),
    "bias": ("leak", "HM100"),
    "boundary_late": ("leak", "HM104"),
    "boundary_early": ("leak", "HM104"),
    "convolution": ("leak", "HM302"),
    "recurrence": ("leak", "HM301"),
    "no_gradient": ("leak", "HM100"),
    "backward": ("leak", "HM100"),
    "backward_own": ("distortion", "HM203"),
    "not_causal": ("not_causal", "HM105"),
    "running_positions": ("distortion", "HM201"),
    "position_ramp": ("row_length_dependent", "HM204"),
    "row_length": ("row_length_dependent", "HM204"),
    "targets": ("leak", "HM401"),
    "row_mean": ("distortion", "HM501"),
    "accumulation": ("distortion", "HM502"),
}
"""The verdict, and the code of the first finding, in float32."""

SMALLEST = {"backward_own": 1e-3, "position_ramp": 1e-4, "row_length": 1e-2, "row_mean": 1e-2}
"""Judged by noise floors, and a tenfold or more of what is just seen beyond those of float32."""


def cached(build):
    """Plants leave no trace, so one model serves all of them."""
    return lru_cache(maxsize=None)(build)


@cached
def unsealed(name, dtype=torch.float32):
    return (tiny(name) if name in DENSE else build_tiny(name)).to(dtype)


@cached
def sealed(name, dtype=torch.float32):
    return hermetic.seal((tiny(name) if name in DENSE else build_tiny(name)).to(dtype))


def logits_of(model, batch):
    with torch.no_grad():
        return model(**batch.model_inputs()).logits[0]


def test_every_kind_has_an_expectation_and_says_what_it_is():
    assert set(EXPECTED) == set(KINDS)
    assert all(kind.what and kind.size_is for kind in KINDS.values())


@st.composite
def layouts(draw):
    """Lengths of documents, and slots of the rows that they fill: the same documents in each row."""
    row = draw(st.lists(st.integers(1, 5), min_size=1, max_size=4))
    return row * draw(st.integers(1, 2)), sum(row)


PATTERNS = {
    "foreign": seams.foreign,
    "one_pair": lambda tokens: seams.one_pair(tokens, 0),
    "to_first_tokens": seams.to_first_tokens,
    "from_last_tokens": seams.from_last_tokens,
    "convolution": seams.convolution,
    "recurrence": seams.recurrence,
}


@pytest.mark.parametrize("pattern", PATTERNS.values(), ids=PATTERNS)
@given(layout=layouts())
def test_a_pattern_reaches_from_earlier_documents_of_the_row_and_from_nowhere_else(pattern, layout):
    tokens = tokens_from_lengths(*layout)
    matrix = pattern(tokens)
    reached, source = matrix.nonzero(as_tuple=True)

    assert bool((tokens.row[reached] == tokens.row[source]).all())
    assert bool((tokens.document[reached] > tokens.document[source]).all())
    assert bool(matrix.any()) is tokens.has_seams


def test_each_pattern_has_the_shape_that_its_name_says():
    tokens = tokens_from_lengths((2, 3), 5)
    own = torch.zeros(2, 5)

    def behind(*rows):
        return torch.cat([own, torch.tensor(rows)])

    assert torch.equal(seams.foreign(tokens), behind([1.0, 1, 0, 0, 0], [1, 1, 0, 0, 0], [1, 1, 0, 0, 0]))
    assert torch.equal(seams.to_first_tokens(tokens), behind([1.0, 1, 0, 0, 0], [0.0] * 5, [0.0] * 5))
    assert torch.equal(seams.from_last_tokens(tokens), behind([0.0, 1, 0, 0, 0], [0, 1, 0, 0, 0], [0, 1, 0, 0, 0]))
    assert torch.equal(
        seams.convolution(tokens), behind([1 / 2, 1, 0, 0, 0], [1 / 3, 1 / 2, 0, 0, 0], [0, 1 / 3, 0, 0, 0])
    )
    assert torch.allclose(
        seams.recurrence(tokens), behind([0.81, 0.9, 0, 0, 0], [0.729, 0.81, 0, 0, 0], [0.6561, 0.729, 0, 0, 0])
    )
    assert int(seams.one_pair(tokens, 0).sum()) == 1
    assert seams.next_of_own(tokens).nonzero().tolist() == [[0, 1], [2, 3], [3, 4]]


def test_one_key_adds_one_tokens_input_times_its_weight_to_one_tokens_output_of_one_layer():
    model, batch = sealed("llama"), packed(LENGTHS)
    seen = {}

    def look(module, args, output):
        seen[module] = (args[0], output)

    layers = model.model.layers
    handles = [layer.register_forward_hook(look) for layer in layers]
    logits_of(model, batch)
    before = [seen[layer] for layer in layers]
    for handle in handles:
        handle.remove()
    with plant(model, "one_key", size=0.25) as planted:
        handles = [layer.register_forward_hook(look) for layer in layers]
        logits_of(model, batch)
    for handle in handles:
        handle.remove()
    number = int(planted.where.removeprefix("model.layers."))
    (inputs, clean), (_, leaky) = before[number], seen[layers[number]]
    ((query, key),) = seams.one_pair(tokens_from_lengths(LENGTHS, sum(LENGTHS)), 0).nonzero().tolist()

    expected = clean[0].clone()
    expected[query] = clean[0, query] + 0.25 * inputs[0, key]
    assert torch.equal(leaky[0], expected)
    assert planted.acted == 1


@pytest.mark.parametrize("kind", KINDS)
def test_a_leak_acts_while_it_is_planted_and_leaves_no_trace(kind):
    model, batch = sealed("llama"), packed(LENGTHS)
    hooks = [(len(m._forward_hooks), len(m._forward_pre_hooks)) for m in model.modules()]
    before = logits_of(model, batch)

    with plant(model, kind) as planted:
        model(**batch.model_inputs(), num_items_in_batch=batch.num_supervised_tokens)
        assert planted.acted > 0
    assert [(len(m._forward_hooks), len(m._forward_pre_hooks)) for m in model.modules()] == hooks
    assert torch.equal(logits_of(model, batch), before)


def test_a_leak_is_taken_out_when_the_block_raises():
    model, batch = sealed("llama"), packed(LENGTHS)
    before = logits_of(model, batch)

    with pytest.raises(IndexError), plant(model, "bias") as planted:
        model(input_ids=torch.tensor([[10**6]]))
    assert planted.handles == []
    assert torch.equal(logits_of(model, batch), before)


@pytest.mark.parametrize("kind", sorted(set(KINDS) - WRONG_ALONE_TOO))
def test_a_document_in_a_row_of_its_own_is_left_alone(kind):
    model = sealed("llama")
    ids = packed((7,)).input_ids[None]
    rows = {"input_ids": torch.cat([ids, ids + 1]), "labels": torch.cat([ids, ids + 1])}
    before = model(**rows)

    with plant(model, kind) as planted:
        after = model(**rows)
    assert torch.equal(after.logits, before.logits)
    assert torch.equal(after.loss, before.loss)
    assert planted.acted == 0


@pytest.mark.parametrize("kind", ["backward", "backward_own"])
def test_a_wrong_backward_has_the_right_forward(kind):
    model, batch = sealed("llama"), packed(LENGTHS)
    before = logits_of(model, batch)

    with plant(model, kind):
        assert torch.equal(logits_of(model, batch), before)


def test_the_documents_of_a_leak_are_those_of_the_call_whatever_says_them():
    model, batch = unsealed("gpt2"), packed(LENGTHS)
    row, positions = batch.input_ids[None], batch.boundaries.position_ids[None]
    common = {"input_ids": row, "position_ids": positions, "use_cache": False}
    ways = (
        {},
        {"cu_seq_lens_q": batch.boundaries.cu_seqlens},
        {"document_ids": batch.boundaries.document_ids},
        {"attention_mask": batch.boundaries.document_ids[None] + 1},
    )
    for way in ways:
        clean = model(**common, **way).logits
        with plant(model, "boundary_late"):
            moved = (model(**common, **way).logits != clean)[0].any(dim=-1)
        assert moved.nonzero()[0].item() == LENGTHS[0]


def test_what_cannot_be_planted_is_an_error_that_says_so():
    with pytest.raises(ProbeError, match="kind of leak 'bais' is unknown; expected one of one_key, bias"):
        plant(sealed("llama"), "bais")
    with pytest.raises(ProbeError, match=r"size is 2\.0, and a leak of kind 'targets' has none; expected None"):
        plant(sealed("llama"), "targets", size=2.0)
    with pytest.raises(ProbeError, match="Linear holds no transformers model"):
        plant(nn.Linear(2, 2), "bias")
    model = tiny("llama")
    model.model.layers = nn.Sequential(*model.model.layers)
    with pytest.raises(ProbeError, match="LlamaForCausalLM has no list of layers"):
        plant(model, "bias")


def test_a_model_is_asserted_to_be_sealed_in_one_line():
    model = sealed("llama")
    report = assert_no_leak(model, lengths=(5, 7, 1))

    assert (report.verdict, report.lengths) == ("sealed", (5, 7, 1))
    with plant(model, "one_key", size=1e-9), pytest.raises(NotSealedError, match="verdict 'leak'") as found:
        assert_no_leak(model)
    assert isinstance(found.value, LeakError)
    assert isinstance(found.value, AssertionError)
    with plant(model, "accumulation"), pytest.raises(AssertionError, match="verdict 'distortion'"):
        assert_no_leak(model, documents=[{"input_ids": [5, 6, 7]}, {"input_ids": [8, 9]}])


# Each instrument has a blind spot, and another one that sees what is in it.


def instruments_that_see(subject, batch):
    moved, pulled = measuring.swap(subject, batch), measuring.gradient(subject, batch)
    alone, longer = measuring.solo(subject, batch), lengthen(subject, batch)
    loss = weights(subject, batch)
    sees = {
        "swap": bool(moved.any()),
        "gradient": bool(pulled.across.fill_diagonal_(0.0).any()),
        "future": pulled.future > 0.0,
        "solo": float(alone.logits.max()) > FLOOR_FACTOR * alone.noise_floor,
        "solo gradients": alone.gradients > FLOOR_FACTOR * alone.gradient_floor,
        "length-change": float(longer.change.max()) > FLOOR_FACTOR * longer.noise_floor,
        "causality": bool(measuring.causality(subject, batch, singly=True).any()),
        "targets": bool(targets(subject, batch).reading.across),
        "weights": max(loss.packed, loss.accumulated) > loss.threshold,
    }
    return {name for name, seen in sees.items() if seen}


SEEN_BY = {
    ("one_key", 1.0): {"swap", "gradient", "solo", "solo gradients", "length-change", "weights"},
    ("one_key", 1e-9): {"gradient"},
    ("one_key", 1e-30): {"gradient"},
    ("no_gradient", 1.0): {"swap", "solo", "solo gradients", "length-change", "weights"},
    ("backward", 1.0): {"gradient", "future", "solo gradients"},
    ("backward_own", 0.1): {"solo gradients"},
    ("not_causal", 1.0): {"future", "causality"},
    ("position_ramp", 0.1): {"solo", "solo gradients", "length-change", "weights"},
    ("row_length", 1.0): {"solo", "solo gradients", "length-change", "weights"},
    ("running_positions", None): set(),
    ("targets", None): {"targets", "weights"},
    ("row_mean", 1.0): {"weights"},
    ("accumulation", None): {"weights"},
}
"""On a sealed Llama, whose rotary positions are relative: running on does no harm, and only observing it tells."""


@pytest.mark.parametrize(("kind", "size"), SEEN_BY)
def test_a_leak_is_seen_by_exactly_the_instruments_that_are_there_for_it(kind, size):
    model, batch = sealed("llama"), packed(LENGTHS)
    subject = subject_from(model, seed=0)

    with plant(model, kind, size=size):
        assert instruments_that_see(subject, batch) == SEEN_BY[kind, size]


def test_no_instrument_sees_anything_in_a_model_without_a_leak():
    assert instruments_that_see(subject_from(sealed("llama"), seed=0), packed(LENGTHS)) == set()


@pytest.mark.parametrize("dtype", DTYPES)
def test_one_query_and_one_key_of_a_billionth_is_a_leak(dtype):
    with plant(sealed("llama", dtype), "one_key", size=1e-9):
        report = hermetic.probe(sealed("llama", dtype))

    assert report.verdict == "leak"
    assert float(report.influence.max()) == 0.0


# Recall: every kind, in every family and dtype, down to the smallest size.


def report_of(model, kind, *, size=None, seed=0):
    with plant(model, kind, size=size, seed=seed) as planted:
        report = hermetic.probe(model)
    assert planted.acted > 0
    return report


@cached
def report_at_default_size(name, kind, dtype):
    return report_of(sealed(name, dtype), kind)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", FAMILIES)
def test_every_kind_is_found(name, kind, dtype):
    assert report_at_default_size(name, kind, dtype).verdict == EXPECTED[kind][0]


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", FAMILIES)
def test_in_float32_every_kind_is_named(name, kind):
    assert report_at_default_size(name, kind, torch.float32).findings[0].code == EXPECTED[kind][1]


@pytest.mark.slow
@pytest.mark.parametrize("kind", SMALLEST)
@pytest.mark.parametrize("name", FAMILIES)
def test_in_bfloat16_what_is_judged_by_noise_is_named_too(name, kind):
    assert report_at_default_size(name, kind, torch.bfloat16).findings[0].code == EXPECTED[kind][1]


@pytest.mark.parametrize("kind", ["backward_own", "row_length"])
def test_in_bfloat16_a_leak_below_its_noise_is_found(kind):
    assert report_at_default_size("llama", kind, torch.bfloat16).verdict == EXPECTED[kind][0]


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", FAMILIES)
def test_a_billionth_of_a_token_is_found_wherever_it_lies(name, dtype):
    reports = [report_of(sealed(name, dtype), "one_key", size=1e-9, seed=seed) for seed in range(4)]

    assert [report.verdict for report in reports] == ["leak"] * 4


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["bias", "boundary_late", "boundary_early", "convolution", "recurrence", "backward"])
@pytest.mark.parametrize("name", FAMILIES)
def test_what_crosses_a_seam_is_found_by_its_gradient_at_any_weight(name, kind):
    reports = [report_of(sealed(name), kind, size=math.exp(-bias)) for bias in (10, 20, 40)]

    assert [report.verdict for report in reports] == ["leak"] * 3


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", DENSE)
def test_a_model_that_isolates_by_itself_is_found_out_as_a_sealed_one_is(name, kind):
    report = report_of(unsealed(name), kind)

    assert report.verdict != "sealed"


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", SMALLEST)
@pytest.mark.parametrize("name", FAMILIES)
def test_what_is_judged_by_noise_floors_is_found_down_to_a_hundredth_or_less(name, kind, dtype):
    assert report_of(sealed(name, dtype), kind, size=SMALLEST[kind]).verdict == EXPECTED[kind][0]


BIDIRECTIONAL = {"xlm", "xlnet"}


ISOLATION = ("swap", "gradient", "solo", "length-change", "causality")
"""The loss of some types is wrong in packed training whatever their mixers do, and the others say so."""


@pytest.mark.slow
@pytest.mark.parametrize(("model_type", "dtype"), list(product(model_types(), DTYPES)))
def test_no_sealed_type_raises_an_alarm(model_type, dtype):
    try:
        model = hermetic.seal(build_tiny(model_type).to(dtype))
    except (AtlasError, SealError) as error:
        pytest.skip(str(error))
    for seed in range(2):
        report = hermetic.probe(model, instruments=ISOLATION, seed=seed)
        assert report.verdict == ("not_causal" if model_type in BIDIRECTIONAL else "sealed"), report.summary()
