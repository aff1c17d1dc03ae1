"""The claims about unpacked models can fail: each fault that is planted here is seen by the check that is to see it."""

import copy

import pytest
import torch
from models import LENGTHS, alone_gradients, calling, packed, packed_gradients, relative_difference, tiny
from seal_helpers import assert_packed_is_alone, pair, sealed_and_plain

import hermetic
from hermetic.errors import SealError
from hermetic.seal import aligned, checkpointing, door, unpack
from hermetic.seal.channel import PackedForward, reopened
from hermetic.seal.mixers import Mixers
from hermetic.seal.trial import Measured, Trial
from hermetic.seal.unpack import Unpacked


def of_pair(name):
    return tuple(copy.deepcopy(model) for model in pair(name))


def unpacked_in(model):
    return [module.forward for module in model.modules() if isinstance(vars(module).get("forward"), Unpacked)]


def checkpointed(model, *, use_reentrant):
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": use_reentrant})
    model.enable_input_require_grads()
    return model.train()


@pytest.mark.parametrize("name", ["lfm2", "bloom"])
def test_boundaries_that_are_shifted_by_one_token_are_seen(name, monkeypatch):
    sealed, plain = of_pair(name)

    def shifted(rows, device, *, exact):
        first, second, *others = rows.lengths
        moved = PackedForward(
            lengths=(first + 1, second - 1, *others), num_rows=rows.num_rows, num_slots=rows.num_slots
        )
        return aligned.layout_of(moved, device, exact=exact)

    monkeypatch.setattr(unpack, "layout_of", shifted)

    with pytest.raises(AssertionError, match=r"document [01]"):
        assert_packed_is_alone(sealed, plain, batch=packed((5, 4, 7)))
    report = hermetic.probe(calling(sealed, "only_position_ids"), lengths=(5, 4, 7))
    assert report.verdict == "leak"
    assert float(report.influence[1, 0]) > 0.1  # the first token of document 1 sees document 0
    with pytest.raises(SealError, match="ForCausalLM cannot be sealed"):
        hermetic.seal(plain)


def test_outputs_that_are_laid_back_in_another_order_are_seen(monkeypatch):
    sealed, plain = of_pair("lfm2")
    monkeypatch.setattr(unpack, "lay_back", lambda *laid: aligned.lay_back(*laid).roll(1, dims=1))

    with pytest.raises(AssertionError, match="document 0"):
        assert_packed_is_alone(sealed, plain)


def test_pads_that_a_module_can_see_are_seen():
    plain = tiny("llama")
    plain.model.norm.register_forward_hook(lambda _module, _args, out: out + out.mean(dim=1, keepdim=True))
    sealed, plain = sealed_and_plain(plain)
    (forward,) = unpacked_in(sealed)
    assert forward.exact, "it sees later tokens, so its documents are grouped without pads"
    forward.exact = False

    with pytest.raises(AssertionError, match="document 1"):
        assert_packed_is_alone(sealed, plain, batch=packed((7, 6)))


def test_pads_before_a_document_are_seen_by_a_causal_module(monkeypatch):
    """Right-padding is what keeps them out of sight: on the left they would be the past."""
    sealed, plain = of_pair("lfm2")

    def flipped(tensor, axes, rows, group):
        laid = aligned.lay_out(tensor, axes, rows, group)
        return laid.flip(1) if axes == (1,) and laid.is_floating_point() else laid

    monkeypatch.setattr(unpack, "lay_out", flipped)

    with pytest.raises(AssertionError, match="document"):
        assert_packed_is_alone(sealed, plain)


@pytest.mark.parametrize("use_reentrant", [True, False])
@pytest.mark.parametrize("name", ["lfm2", "mamba"])
def test_checkpointing_that_does_not_carry_the_boundaries_is_refused_and_without_that_refusal_wrong(
    name, use_reentrant, monkeypatch
):
    monkeypatch.setattr(door, "carry_boundaries", lambda _model: None)
    sealed, plain = of_pair(name)
    checkpointed(sealed, use_reentrant=use_reentrant)
    with pytest.raises(SealError, match="is run again in the backward pass without its boundaries"):
        packed_gradients(sealed, packed())

    sealed.zero_grad()
    monkeypatch.setattr(Unpacked, "_refuse_lost_boundaries", lambda _self: None)
    expected = alone_gradients(plain, packed())
    try:
        wrong = relative_difference(packed_gradients(sealed, packed()), expected)
    except torch.utils.checkpoint.CheckpointError:
        return  # the other kind counts what is saved, and saw that another computation was run again
    assert wrong > 1e-2


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_boundaries_of_the_latest_batch_instead_of_its_own_are_seen_with_two_in_flight(use_reentrant, monkeypatch):
    latest = []

    class Shared(checkpointing._Reopening):
        def __init__(self, function, rows):
            super().__init__(function, rows)
            latest[:] = [rows]

        def __call__(self, *args, **kwargs):
            with reopened(latest[0]):
                return self.function(*args, **kwargs)

    monkeypatch.setattr(checkpointing, "_Reopening", Shared)
    sealed, plain = of_pair("bloom")
    checkpointed(sealed, use_reentrant=use_reentrant)
    batches = packed((9, 9, 2), seed=1), packed((12, 4, 4), seed=2)

    def in_flight():
        losses = [hermetic.packed_loss(calling(sealed, "all_ones_mask")(b), b, denominator=1) for b in batches]
        for loss in losses:
            loss.backward()

    expected = sum(alone_gradients(plain, batch) for batch in batches)
    try:
        in_flight()
    except torch.utils.checkpoint.CheckpointError:
        assert not use_reentrant
        return
    found = torch.cat([p.grad.flatten() for p in sealed.parameters() if p.grad is not None])
    assert relative_difference(found, expected) > 1e-2


def test_a_mixer_that_the_search_does_not_find_is_a_refusal_and_without_the_trial_a_leak(monkeypatch):
    for mend in ("unpack_mixers", "restore_positions", "unpack_whole"):
        monkeypatch.setattr(Mixers, mend, lambda _search: None)
    with pytest.raises(SealError, match=r"model\.layers\.0\.conv \(Lfm2ShortConv\) carries one document into another"):
        hermetic.seal(tiny("lfm2"))

    sound = Measured(leak=0.0, equivalence=0.0, noise_floor=1e-6, visited={})
    monkeypatch.setattr(Trial, "measure", lambda _trial: sound)
    report = hermetic.probe(hermetic.seal(tiny("lfm2")), lengths=LENGTHS)
    assert report.verdict == "leak"
    assert report.findings[0].where.startswith("model.layers.0.conv")
