"""A leak is located where it starts: rounding is not blamed, and what a cache or a failure hides is not passed by."""

import pytest
import torch
from models import calling, packed, tiny
from torch import nn

import hermetic
from hermetic.probe import compare, locate
from hermetic.probe.compare import place_by_comparison
from hermetic.probe.subject import subject_from


class Experts(nn.Module):
    """Token by token, but for last bits, which move with how tokens of the whole row are routed."""

    def forward(self, hidden):
        routed = (hidden[..., 0] > 0).sum()
        noise = torch.finfo(hidden.dtype).eps * (routed % 7 - 3)
        return hidden.tanh() * (1 + noise.to(hidden.dtype))


class Summing(nn.Module):
    """Adds up the row so far; ``detached``: by a path that no gradient shows."""

    def __init__(self, *, weight=1.0, detached=False):
        super().__init__()
        self.weight, self.detached = weight, detached

    def forward(self, hidden):
        so_far = (hidden.detach() if self.detached else hidden).cumsum(1)
        return hidden + self.weight * so_far


class Row(nn.Module):
    """Embedding, mixers in a row, head."""

    def __init__(self, *mixers):
        super().__init__()
        torch.manual_seed(0)
        self.embedding, self.head = nn.Embedding(97, 16), nn.Linear(16, 97)
        self.mixers = nn.ModuleList(mixers)

    def forward(self, input_ids):
        hidden = self.embedding(input_ids)
        for mixer in self.mixers:
            hidden = mixer(hidden)
        return self.head(hidden)


def place(model):
    return hermetic.probe(model).findings[0].where


def test_experts_that_move_last_bits_are_not_blamed_for_what_a_mixer_behind_them_carries():
    assert place(Row(Experts(), Summing(detached=True), Experts())) == "mixers.1 (Summing)"
    assert place(Row(Summing(detached=True), Experts())) == "mixers.0 (Summing)"


def test_where_nothing_moves_by_more_than_rounding_bits_decide():
    assert place(Row(Summing(weight=1e-7, detached=True), Experts())) == "mixers.0 (Summing)"


def test_of_a_long_batch_the_document_and_its_neighbour_are_compared(monkeypatch):
    batch = packed((9, 8, 7, 5))
    subject = subject_from(Row(Experts(), Summing(detached=True)), seed=0)
    monkeypatch.setattr(compare, "MAX_TOKENS", 12)
    for source in range(3):  # the last one reaches nobody in a causal row
        root, module = place_by_comparison(subject, batch, source)
        assert (root, module) == (subject.modules[0], subject.modules[0].mixers[1])


def test_a_module_that_cannot_be_repeated_is_not_passed_by_for_one_behind_it(monkeypatch):
    first, second = Summing(), Summing()
    model = Row(first, second)
    carried = locate.carried

    def failing(call, *rest):
        return float("nan") if call.module is first else carried(call, *rest)

    monkeypatch.setattr(locate, "carried", failing)
    assert place(model) == "mixers.0 (Summing)"
    monkeypatch.setattr(locate, "place_by_comparison", lambda *_: None)
    assert place(model) == "mixers.1 (Summing)"


@pytest.mark.parametrize("name", ["llama", "minimax"])
def test_a_cache_hides_no_layer_that_leaks(name):
    report = hermetic.probe(calling(tiny(name).train(), "default_cache"))
    assert [layer.name for layer in report.layers] == ["model.layers.0.self_attn", "model.layers.1.self_attn"]
    assert all(layer.influence > 0.0 for layer in report.layers)
    assert report.findings[0].where.startswith("model.layers.0.self_attn ")
