"""The length-change and causality instruments: silent on the reference, loud on what each is there to see."""

import pytest
import torch
from models import calling, packed, tiny
from test_probe_instruments import Attending, as_function
from torch import nn

import hermetic
from hermetic.errors import ProbeError
from hermetic.probe import lengthen as lengthening
from hermetic.probe.subject import subject_from

DYNAMIC = {"max_position_embeddings": 16, "rope_parameters": {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 1e4}}
LONG = {
    "max_position_embeddings": 64,
    "original_max_position_embeddings": 16,
    "rope_parameters": {
        "rope_type": "longrope",
        "rope_theta": 1e4,
        "short_factor": [1.0] * 4,
        "long_factor": [4.0] * 4,
        "original_max_position_embeddings": 16,
        "factor": 4.0,
    },
}


def codes(report):
    return [finding.code for finding in report.findings]


@pytest.mark.parametrize("seam", [None, "training"])
def test_lengthening_moves_nobody_in_the_reference(seam):
    model = hermetic.seal(tiny("gpt2"))
    model.train(seam == "training")
    report = hermetic.probe(model, instruments="length-change")

    assert report.verdict == "sealed"
    assert float(report.lengthening.max()) <= 10 * report.noise_floor < 1e-3


@pytest.mark.parametrize("lengths", [(8, 10, 6), (8, 24, 6)])
@pytest.mark.parametrize(("name", "scaling"), [("llama", DYNAMIC), ("phi3", LONG)], ids=["dynamic", "longrope"])
def test_rotary_scaling_by_the_longest_position_is_row_length_dependent_with_reset_positions(name, scaling, lengths):
    report = hermetic.probe(calling(tiny(name, **scaling), "only_position_ids"), lengths=lengths)

    assert report.verdict == "row_length_dependent"
    assert codes(report)[0] == "HM204"
    assert report.findings[0].size > 1e2 * report.noise_floor
    assert not report.influence.any()
    assert float(report.gradients.fill_diagonal_(0.0).max()) == 0.0


def test_the_seal_takes_away_what_one_document_beyond_the_original_length_does_to_the_others():
    report = hermetic.probe(hermetic.seal(tiny("llama", **DYNAMIC)), lengths=(8, 10, 6))

    assert report.verdict == "sealed"


def test_what_a_model_remembers_of_a_longer_row_is_put_back():
    model = tiny("llama", **DYNAMIC)
    rotary = model.model.rotary_emb
    before = rotary.inv_freq.clone(), rotary.max_seq_len_cached
    hermetic.probe(calling(model, "only_position_ids"), lengths=(8, 10, 6), instruments="length-change")

    assert torch.equal(rotary.inv_freq, before[0])
    assert rotary.max_seq_len_cached == before[1]


def temperature_by_row(mixed, batch):
    return mixed / batch.num_slots**0.5


def test_what_is_scaled_by_the_length_of_the_row_is_seen():
    report = hermetic.probe(as_function(Attending(temperature_by_row)), instruments="length-change")

    assert report.verdict == "row_length_dependent"
    assert codes(report) == ["HM204"]


@pytest.mark.parametrize("by_row", [True, False])
def test_noise_whose_scale_follows_the_row_is_seen_although_it_is_random(by_row):
    class Noisy(nn.Module):
        def __init__(self):
            super().__init__()
            self.attending = Attending()
            self.attending.embedding.register_forward_hook(self.noise)

        def noise(self, module, _args, output):
            size = 1.0 / (output.shape[0] if by_row else 10) ** 0.5
            return output + torch.zeros_like(output).uniform_(-size, size) if module.training else output

        def forward(self, batch):
            return self.attending(batch)

    model = Noisy().train()
    report = hermetic.probe(as_function(model))

    assert report.verdict == ("row_length_dependent" if by_row else "sealed")
    assert hermetic.probe(as_function(model.eval())).verdict == "sealed"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", ["gpt2", "llama"])
@pytest.mark.parametrize("draw", ["uniform", "normal"])
@pytest.mark.parametrize("by_row", [True, False])
def test_embedding_noise_whose_scale_follows_the_row_is_seen_through_layer_norms(name, dtype, draw, by_row):
    def noise(module, _args, output):
        size = 3.0 / (output.shape[1] if by_row else 10) ** 0.5
        drawn = torch.zeros_like(output)
        drawn = drawn.uniform_(-size, size) if draw == "uniform" else drawn.normal_(0.0, size)
        return output + drawn if module.training else output

    model = hermetic.seal(tiny(name).to(dtype)).train()
    model.get_input_embeddings().register_forward_hook(noise)
    report = hermetic.probe(model, instruments="length-change")

    assert report.verdict == ("row_length_dependent" if by_row else "sealed")


def test_fixed_draws_are_the_same_for_every_token_and_differ_over_features():
    with lengthening._FixedDraws(frozenset({4})):
        for drawn in (torch.empty(3, 4).uniform_(-2, 2), torch.empty(1, 3, 4).normal_(std=2.0), 2 * torch.randn(5, 4)):
            assert drawn.flatten(0, -2).unique(dim=0).tolist() == [[2.0, -2.0, 2.0, -2.0]]
        assert torch.rand(3, 5).unique().tolist() == torch.empty(3, 5).uniform_().unique().tolist() == [1.0]


def test_draws_that_cannot_be_fixed_are_left_out_by_evaluation_mode():
    class OwnDraws(nn.Module):
        def __init__(self):
            super().__init__()
            self.attending = Attending()

        def forward(self, batch):
            logits = self.attending(batch)
            return logits + torch.randint(0, 9, logits.shape) / 9 if self.training else logits

    assert hermetic.probe(as_function(OwnDraws().train()), instruments="length-change").verdict == "sealed"


def test_a_threshold_beyond_the_longer_row_is_not_seen_which_is_why_documents_should_be_as_long_as_in_training():
    def scaled_from_100(mixed, batch):
        return mixed * (0.9 if batch.boundaries.max_seqlen > 100 else 1.0)

    model = as_function(Attending(scaled_from_100))
    assert hermetic.probe(model).verdict == "sealed"
    assert hermetic.probe(model, lengths=(60, 7)).verdict == "row_length_dependent"


def test_the_first_token_of_a_neighbour_is_not_seen_by_lengthening_and_is_by_swap():
    def from_the_first(mixed, batch):
        return mixed + mixed[:1] * (batch.boundaries.document_ids > 0)[:, None]

    model = as_function(Attending(from_the_first))
    assert hermetic.probe(model, instruments="length-change").verdict == "sealed"
    assert hermetic.probe(model, instruments="swap").verdict == "leak"


def test_a_table_of_positions_that_ends_before_the_longer_document_is_a_reason_not_to_run():
    model = hermetic.seal(tiny("gpt2", n_positions=17))
    report = hermetic.probe(model, lengths=(17, 17, 2))

    assert report.verdict == "sealed"
    assert "could not run a document of 34 tokens (IndexError" in dict(report.not_run)["length-change"]
    with pytest.raises(ProbeError, match="expected room for a document longer than the 17 tokens"):
        hermetic.probe(model, lengths=(17, 17, 2), instruments="length-change")


def test_a_lengthened_document_repeats_its_own_tokens_and_leaves_the_others_alone():
    batch = packed((3, 5))
    longer = lengthening.with_documents_lengthened(batch, (0,))
    (before, other), (after, same) = batch.unpack(batch.input_ids), longer.unpack(longer.input_ids)

    assert longer.boundaries.document_lengths == (8, 5)
    assert after.tolist() == [*before.tolist(), *before.tolist(), *before.tolist()][:8]
    assert torch.equal(other, same)
    assert lengthening.lengthen(subject_from(as_function(Attending()), seed=0), batch).noise_floor > 0.0


def look_back(mixed, batch):
    """Each token but the last sees the next one: a causal mask that is off by one."""
    parts = mixed.split(batch.boundaries.document_lengths)
    return torch.cat([part + torch.cat([part[1:], part[-1:]]) for part in parts])


def without_gradient(seam):
    return lambda mixed, batch: mixed + (seam(mixed, batch) - mixed).detach()


def test_a_token_that_sees_the_next_one_is_not_causal_by_bits_and_by_gradients():
    by_bits = hermetic.probe(as_function(Attending(look_back)), instruments="causality")
    by_gradient = hermetic.probe(as_function(Attending(look_back)), instruments="gradient")

    assert by_bits.verdict == by_gradient.verdict == "not_causal"
    assert codes(by_bits) == codes(by_gradient) == ["HM105"]
    assert [x > 0 for x in by_bits.causality.tolist()] == [True, True, True, False]


def test_a_token_that_sees_the_next_one_without_a_gradient_is_seen_by_causality_alone():
    report = hermetic.probe(as_function(Attending(without_gradient(look_back))))

    assert report.verdict == "not_causal"
    assert report.findings[0].unit == "logits"


def test_a_future_that_is_not_the_last_token_is_not_seen_by_causality_and_is_by_gradient():
    def first_sees_the_last_but_one(mixed, batch):
        parts = mixed.split(batch.boundaries.document_lengths)
        return torch.cat([torch.cat([p[:1] + p[-2:-1], p[1:]]) if len(p) > 2 else p for p in parts])

    model = as_function(Attending(first_sees_the_last_but_one))
    assert hermetic.probe(model, instruments="causality").verdict == "sealed"
    assert hermetic.probe(model, instruments="gradient").verdict == "not_causal"


def test_a_leak_is_not_taken_for_a_lack_of_causality():
    report = hermetic.probe(calling(tiny("llama"), "all_ones_mask"), instruments="causality")

    assert report.verdict == "sealed"  # of causality; isolation was not asked for
    with pytest.raises(ProbeError, match="isolation was not measured"):
        report.raise_for_leaks()


def test_mixtures_of_experts_are_causal_although_the_last_bits_move():
    assert hermetic.probe(hermetic.seal(tiny("mixtral")), instruments="causality").verdict == "sealed"
