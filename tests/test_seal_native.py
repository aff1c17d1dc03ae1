"""A model whose own kernels keep documents apart is given their boundaries, and is unpacked only if it does not."""

import copy

import pytest
import torch
import transformers
from models import LENGTHS, alone, calling, packed, packed_gradients, relative_difference
from seal_helpers import assert_isolated, assert_packed_is_alone, names_unpacked
from torch import nn
from transformers.modeling_outputs import CausalLMOutput

import hermetic
from hermetic.errors import SealError


class ToyConfig(transformers.PreTrainedConfig):
    model_type = "toy"
    vocab_size: int = 97
    hidden_size: int = 16


class Leaky(nn.Module):
    """A running sum that forgets by the decay of each feature, and never where a document starts."""

    def __init__(self, width):
        super().__init__()
        self.decay = nn.Parameter(torch.randn(width))

    def forward(self, hidden, **boundaries):
        state, states = torch.zeros_like(hidden[:, 0]), []
        keep = self.keep(hidden, **boundaries)
        for token in range(hidden.shape[1]):
            state = keep[:, token, None] * torch.sigmoid(self.decay) * state + hidden[:, token]
            states.append(state)
        return torch.stack(states, dim=1)

    def keep(self, hidden, **_):
        return torch.ones(hidden.shape[:2])


class BySeqIdx(Leaky):
    """Forgets where ``seq_idx`` changes, when it is given."""

    def keep(self, hidden, seq_idx=None, **_):
        keep = torch.ones(hidden.shape[:2])
        if seq_idx is not None:
            assert seq_idx.dtype == torch.int32
            keep[:, 1:] = (seq_idx[:, 1:] == seq_idx[:, :-1]).float()
        return keep


class ByEdges(Leaky):
    """Forgets at the edges ``cu_seq_lens_q``, when they are given."""

    def keep(self, hidden, cu_seq_lens_q=None, **_):
        keep = torch.ones(hidden.shape[:2])
        if cu_seq_lens_q is not None:
            keep[:, cu_seq_lens_q[:-1].long()] = 0
        return keep


class Refusing(Leaky):
    """Asks for a kernel that is not there as soon as it is given boundaries."""

    def keep(self, hidden, seq_idx=None, **_):
        if seq_idx is not None:
            raise NotImplementedError("seq_idx needs causal-conv1d")
        return torch.ones(hidden.shape[:2])


class Toy(transformers.PreTrainedModel):
    config_class = ToyConfig

    def __init__(self, config, mixer):
        super().__init__(config)
        self.embedding = nn.Embedding(config.vocab_size, config.hidden_size)
        self.mixer = mixer(config.hidden_size)
        self.head = nn.Linear(config.hidden_size, config.vocab_size)

    def get_input_embeddings(self):
        return self.embedding

    def forward(self, input_ids=None, **boundaries):
        return CausalLMOutput(logits=self.head(self.mixer(self.embedding(input_ids), **boundaries)))


def toy(mixer):
    torch.manual_seed(0)
    return Toy(ToyConfig(), mixer).eval()


@pytest.mark.parametrize("mixer", [BySeqIdx, ByEdges])
def test_a_model_that_respects_the_boundaries_it_is_given_is_sealed_natively_and_nothing_is_unpacked(mixer):
    plain = toy(mixer)
    model = hermetic.seal(copy.deepcopy(plain))

    report = hermetic.seal_report(model)
    assert report.native is True
    assert report.modules == ()
    assert not any("forward" in vars(module) for module in model.modules())
    for call in ("document_ids", "only_position_ids", "only_cu_seq_lens"):
        assert_packed_is_alone(model, plain, call)
        assert_isolated(model, call)


@pytest.mark.parametrize("mixer", [Leaky, Refusing])
def test_a_model_that_does_not_or_raises_is_unpacked_and_given_no_boundaries(mixer):
    plain = toy(mixer)
    model = hermetic.seal(copy.deepcopy(plain))

    assert hermetic.seal_report(model).native is False
    assert names_unpacked(model) == ["mixer"]
    for call in ("document_ids", "two_rows", "only_cu_seq_lens"):
        assert_packed_is_alone(model, plain, call)
    assert_isolated(model)


@pytest.mark.parametrize("mixer", [BySeqIdx, Leaky])
def test_the_same_models_unsealed_leak_without_boundaries(mixer):
    assert hermetic.probe(calling(toy(mixer), "all_ones_mask"), lengths=LENGTHS).verdict == "leak"


def test_several_rows_of_a_native_model_are_refused_with_the_way_out():
    model = hermetic.seal(toy(BySeqIdx))
    batch = packed()
    with pytest.raises(SealError, match="kernels of its own, which take one row, and got 2; lay the rows end to end"):
        calling(model, "two_rows")(batch)

    assert len(alone(model, batch)) == len(LENGTHS)


def test_boundaries_of_the_callers_own_in_the_words_of_the_kernels_are_read_and_replaced_by_the_seals():
    batch = packed((3, 5), pad_to=12)
    seq_idx = torch.tensor([[0] * 3 + [1] * 5 + [2] * 4])  # the tail is a document of its own, and int64 is no kernel's
    for mixer in (BySeqIdx, Leaky):
        model = hermetic.seal(toy(mixer))
        logits = model(input_ids=batch.input_ids[None], seq_idx=seq_idx).logits[0].split([3, 5, 4])
        for one, other in zip(logits, alone(model, packed((3, 5))), strict=False):
            assert float((one - other).detach().abs().max()) <= 1e-6


def test_rows_of_one_document_of_a_native_model_run_exactly_as_before():
    plain = toy(BySeqIdx)
    model = hermetic.seal(copy.deepcopy(plain))

    assert all(torch.equal(a, b) for a, b in zip(alone(model, packed()), alone(plain, packed()), strict=True))


def test_unsealing_and_sealing_again_decides_anew():
    model = hermetic.seal(toy(BySeqIdx))
    expected = packed_gradients(model, packed(), "document_ids")
    hermetic.unseal(model)
    model.mixer.keep = lambda hidden, **_: torch.ones(hidden.shape[:2])
    hermetic.seal(model)

    assert hermetic.seal_report(model).native is False
    assert relative_difference(packed_gradients(model, packed(), "document_ids"), expected) <= 1e-5
