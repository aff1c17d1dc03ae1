"""Each instrument is silent on the reference and screams on the leak that it is there to see."""

import pytest
import torch
from models import packed, tiny
from torch import nn

import hermetic
from hermetic.attention import packed_attention
from hermetic.batch.dialects import additive_mask
from hermetic.probe import instruments as measuring
from hermetic.probe.subject import subject_from
from hermetic.seal.measure import perturbed_by_roundings

LENGTHS = (11, 13, 6, 1)


class Attending(nn.Module):
    """One attention layer of our own over hermetic's reference; ``seam`` may spoil what it computes."""

    def __init__(self, seam=None):
        super().__init__()
        torch.manual_seed(0)
        self.embedding, self.head = nn.Embedding(97, 16), nn.Linear(16, 97)
        self.seam = seam

    def forward(self, batch):
        hidden = self.embedding(batch.input_ids)
        heads = hidden.view(-1, 2, 8)
        mixed = packed_attention(heads, heads, heads, batch.boundaries, backend="reference").flatten(1)
        return self.head(hidden + (mixed if self.seam is None else self.seam(mixed, batch)))


def as_function(model):
    """A module would be called with a transformers model's arguments; a function gets the batch."""

    def forward(batch):
        return model(batch)

    return forward


def subject_of(model):
    return subject_from(as_function(model), seed=0)


def seam_mask(bias, pairs):
    """The dense mask of each document, but with ``bias`` at ``pairs`` of tokens in different documents."""

    def mask(boundaries):
        allowed = additive_mask(boundaries, dtype=torch.float32)
        ids = boundaries.document_ids
        across = (ids[:, None] > ids[None, :]) & pairs(len(ids))
        return allowed.masked_fill(across, bias)

    return mask


def all_pairs(tokens):
    return torch.ones(tokens, tokens, dtype=torch.bool)


def one_pair(tokens):
    """One query, the last token of the second document, sees one key, the first token of the first."""
    only = torch.zeros(tokens, tokens, dtype=torch.bool)
    if tokens > 23:
        only[23, 0] = True
    return only


def leaking(bias, pairs=all_pairs, dtype=torch.float32):
    """A tiny eager Llama that lets documents through with weights of about ``exp(bias)``."""
    model = tiny("llama", implementation="eager").to(dtype)
    mask = seam_mask(bias, pairs)

    def forward(batch):
        row, positions = batch.input_ids[None], batch.boundaries.position_ids[None]
        four_d = mask(batch.boundaries).to(dtype)
        return model(input_ids=row, position_ids=positions, attention_mask=four_d, use_cache=False).logits

    return forward


def largest_off_diagonal(matrix):
    return float(matrix.clone().fill_diagonal_(0.0).max())


def test_all_instruments_are_silent_on_the_reference():
    subject, batch = subject_of(Attending()), packed(LENGTHS)

    assert not measuring.swap(subject, batch).any()
    influence = measuring.gradient(subject, batch)
    assert largest_off_diagonal(influence.across) == 0.0
    assert influence.future == 0.0
    assert float(influence.across.diagonal().min()) > 0.0
    solo = measuring.solo(subject, batch)
    assert float(solo.logits.max()) <= 10 * solo.noise_floor < 1e-4
    assert solo.gradients <= 10 * solo.gradient_floor < 1e-4
    assert not measuring.causality(subject, batch).any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("bias", [-10.0, -20.0, -40.0, -80.0])
def test_the_gradient_instrument_sees_every_weight_down_to_the_smallest(bias, dtype):
    report = hermetic.probe(leaking(bias, dtype=dtype), instruments="gradient")

    assert report.verdict == "leak"
    assert report.instruments == ("gradient",)
    assert float(report.gradients[1, 0]) > 0.0
    assert float(report.gradients[0, 1]) == 0.0


@pytest.mark.parametrize("instrument", ["swap", "gradient"])
def test_one_query_that_sees_one_key_is_seen_by_swap_and_gradient(instrument):
    report = hermetic.probe(leaking(0.0, one_pair), instruments=instrument)
    reach = report.influence if instrument == "swap" else report.gradients

    assert report.verdict == "leak"
    assert float(reach[1, 0]) > 0.1
    reach[1, 0] = 0.0
    assert largest_off_diagonal(reach) == 0.0


def test_swap_and_solo_see_a_weight_of_e_to_the_minus_10():
    report = hermetic.probe(leaking(-10.0), instruments=("swap", "solo"))

    assert report.verdict == "leak"
    assert float(report.influence[1, 0]) > 1e-4
    assert float(report.equivalence[1]) > 1e-4
    assert float(report.equivalence[0]) <= 10 * report.noise_floor


def test_a_leak_below_rounding_is_invisible_to_swap_which_is_why_there_is_a_gradient_instrument():
    report = hermetic.probe(leaking(-80.0))

    assert float(report.influence.max()) == 0.0
    assert report.verdict == "leak"
    assert report.findings[0].unit == "gradient"
    assert 0.0 < report.findings[0].size < 1e-25


def test_a_document_that_is_distorted_alone_is_seen_by_solo_and_by_nothing_else():
    def scaled_after_the_first(mixed, batch):
        later = (batch.boundaries.document_ids > 0)[:, None]
        return torch.where(later, 0.9 * mixed, mixed)

    model = Attending(scaled_after_the_first)
    report = hermetic.probe(as_function(model))

    assert report.verdict == "distortion"
    assert [finding.code for finding in report.findings] == ["HM202", "HM203"]
    assert not report.influence.any()
    assert largest_off_diagonal(report.gradients) == 0.0


class WrongAfterTheFirst(torch.autograd.Function):
    """Right forward; the backward of all documents but the first is a tenth too small."""

    @staticmethod
    def forward(ctx, mixed, later):
        ctx.save_for_backward(later)
        return mixed.clone()

    @staticmethod
    def backward(ctx, upstream):
        (later,) = ctx.saved_tensors
        return torch.where(later, 0.9 * upstream, upstream), None


def test_a_backward_that_is_wrong_and_isolated_is_seen_by_the_parameter_gradients():
    model = Attending(
        lambda mixed, batch: WrongAfterTheFirst.apply(mixed, (batch.boundaries.document_ids > 0)[:, None])
    )
    report = hermetic.probe(as_function(model))

    assert report.verdict == "distortion"
    assert [finding.code for finding in report.findings] == ["HM203"]
    assert report.findings[0].size == report.gradient_equivalence > 1e-3
    assert not report.influence.any()
    assert float(report.equivalence.max()) <= 10 * report.noise_floor


def test_a_token_that_sees_its_own_future_is_not_causal():
    def look_ahead(mixed, batch):
        parts = mixed.split(batch.boundaries.document_lengths)
        return torch.cat([part + part.mean(dim=0, keepdim=True) for part in parts])

    model = Attending(look_ahead)
    report = hermetic.probe(as_function(model))

    assert report.verdict == "not_causal"
    assert report.findings[0].code == "HM105"
    assert largest_off_diagonal(report.gradients) == 0.0


@pytest.mark.parametrize("name", ["mistral", "gpt2", "gemma3", "llama4"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_noise_floors_hold_in_every_dtype(name, dtype):
    report = hermetic.probe(hermetic.seal(tiny(name).to(dtype)))

    assert report.findings == ()
    assert report.verdict == "sealed"


def scaled_by_the_longest(mixed, batch):
    """What rotary scaling by the longest position of a row does: no content is carried, and lengths count."""
    return mixed * (0.9 if batch.boundaries.max_seqlen > 10 else 1.0)


def test_a_document_that_its_neighbours_lengths_reach_is_row_length_dependent():
    report = hermetic.probe(as_function(Attending(scaled_by_the_longest)), lengths=(8, 24, 6))

    assert report.verdict == "row_length_dependent"
    assert report.findings[0].code == "HM204"
    assert report.findings[0].size == float(report.equivalence.max()) > 1e-2
    assert not report.influence.any()
    assert not report.lengthening.any()  # it is long enough already
    shorter = hermetic.probe(as_function(Attending(scaled_by_the_longest)), lengths=(8, 9, 6))
    assert shorter.verdict == "row_length_dependent"
    assert shorter.findings[0].size == float(shorter.lengthening.max()) > 1e-2
    assert float(shorter.equivalence.max()) <= 10 * shorter.noise_floor


def test_the_noise_floor_is_above_what_another_shape_does_and_below_what_length_does():
    model = hermetic.seal(tiny("llama"))

    def scaled_by_the_longest_position(_module, _args, named, output):
        """What rotary scaling did before the seal: it runs such a module for each length by itself."""
        scale = 0.9 if int(named["position_ids"].max()) >= 16 else 1.0
        return tuple(scale * one for one in output)

    model.model.rotary_emb.register_forward_hook(scaled_by_the_longest_position, with_kwargs=True)
    within, beyond = (hermetic.probe(model, lengths=(8, n, 6), instruments=("swap", "solo")) for n in (10, 24))

    assert within.verdict == "sealed"
    assert beyond.verdict == "row_length_dependent"
    assert float(within.equivalence.max()) < 10 * within.noise_floor < float(beyond.equivalence.max())
    assert float(beyond.equivalence.max()) > 1e3 * beyond.noise_floor


def test_rotary_scaling_by_the_longest_document_of_a_row_is_sealed():
    config = {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 10000.0}
    model = hermetic.seal(tiny("llama", max_position_embeddings=16, rope_parameters=config))

    assert hermetic.probe(model, lengths=(8, 24, 6)).verdict == "sealed"


def test_a_perturbed_run_moves_every_module_by_one_rounding_and_leaves_no_hook():
    linear = nn.Linear(4, 4)
    x = torch.ones(3, 4)
    exact = linear(x)

    with perturbed_by_roundings(0):
        moved = linear(x)

    eps = torch.finfo(torch.float32).eps
    assert not torch.equal(moved, exact)
    torch.testing.assert_close(moved, exact, rtol=2 * eps, atol=0)
    assert torch.equal(linear(x), exact)


def test_the_noise_floor_runs_no_document_longer_than_it_is():
    model = hermetic.seal(tiny("gpt2", n_positions=17))

    assert hermetic.probe(model, lengths=(17, 17, 2)).verdict == "sealed"


@pytest.mark.parametrize("lengths", [(1, 1, 1), (2, 1), (0, 3, 0, 2)])
def test_the_shortest_documents_can_be_probed(lengths):
    report = hermetic.probe(hermetic.seal(tiny("llama")), lengths=lengths)

    assert report.verdict == "sealed"
    assert report.instruments[:4] == ("swap", "gradient", "solo", "length-change")
    assert ("causality" in report.instruments) == (max(lengths) > 1)


def quantized_over_the_row(mixed, _batch):
    """A path without gradient: what the whole row holds decides how each token is rounded."""
    scale = mixed.detach().abs().max()
    return mixed + (torch.round(mixed.detach() / scale * 15) / 15 * scale - mixed.detach())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_bit_that_moves_without_a_gradient_is_a_leak_in_every_dtype(dtype):
    report = hermetic.probe(as_function(Attending(quantized_over_the_row).to(dtype)))

    assert report.verdict == "leak"
    assert largest_off_diagonal(report.gradients) == 0.0
    assert float(report.influence.max()) > 0


def test_only_a_model_that_routes_tokens_has_operations_whose_shapes_follow_the_content():
    dense, experts = (subject_from(hermetic.seal(tiny(name)), seed=0) for name in ("llama", "mixtral"))

    assert not measuring.shapes_follow_content(dense, packed(LENGTHS))
    assert measuring.shapes_follow_content(experts, packed(LENGTHS))


def test_mixtures_of_experts_are_sealed_although_a_swap_moves_the_last_bits():
    report = hermetic.probe(hermetic.seal(tiny("mixtral")))

    assert report.verdict == "sealed"
    assert float(report.influence.max()) <= 10 * report.noise_floor
    assert largest_off_diagonal(report.gradients) == 0.0
