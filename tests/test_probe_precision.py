"""A model of low precision in float32: bit for bit its own copy in float32, without the copy, and without a trace."""

import copy

import pytest
import torch
from models import packed, tiny
from test_probe_instruments import Attending, as_function
from test_testing_leaks import FAMILIES, LENGTHS, cached, unsealed
from torch import nn
from torch.nn import functional as F  # noqa: N812 - its usual name

import hermetic
from hermetic.probe import instruments as measuring
from hermetic.probe.subject import subject_from
from hermetic.seal.measure import largest_difference, noise_floor
from hermetic.seal.precision import LOW, Float32, gathering, in_float32
from hermetic.testing.leaks import plant

CPU = torch.device("cpu")
FINER = "the numbers are those of the model run in float32"
NOT_FINER = "what the noise of the model's own dtype hides was not looked for, as float32 failed"


@cached
def pair(name, dtype=torch.bfloat16):
    """A sealed model of low precision, and its copy in float32."""
    model = unsealed(name, dtype)
    return tuple(subject_from(hermetic.seal(copy.deepcopy(model).to(one)), seed=0) for one in (dtype, torch.float32))


@pytest.mark.parametrize(
    ("name", "dtype"),
    [("gpt2", torch.float16), ("llama", torch.bfloat16), ("gemma3", torch.bfloat16)],
)
def test_a_model_in_float32_gives_the_logits_and_gradients_of_its_float32_copy_bit_for_bit(name, dtype):
    low, copied = pair(name, dtype)
    batch = packed(LENGTHS)

    def gradients(subject):
        return measuring._gradients(subject, [batch], measuring._compared_parameters(subject), count=7)

    with low.in_float32() as precise:
        logits, gradient = precise.row(batch), gradients(precise)
    assert torch.equal(logits, copied.row(batch))
    assert torch.equal(gradient, gradients(copied))
    assert not torch.equal(low.row(batch).float(), logits)


@pytest.mark.slow
@pytest.mark.parametrize("name", FAMILIES)
def test_in_every_family_float32_is_that_of_its_float32_copy_but_for_rounding(name):
    low, copied = pair(name)
    batch = packed(LENGTHS)

    with low.in_float32() as precise:
        moved = largest_difference(precise.row(batch), copied.row(batch))
    assert moved <= noise_floor(lambda: copied.row(batch)) < 1e-3  # experts' weights lie elsewhere in memory


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpoints_are_run_again_in_float32(reentrant):
    model = tiny("llama").to(torch.bfloat16)
    plain = subject_from(hermetic.seal(copy.deepcopy(model)), seed=0)
    model = hermetic.seal(model).train()
    model.gradient_checkpointing_enable({"use_reentrant": reentrant})
    found = []
    for subject in (plain, subject_from(model, seed=0)):
        with subject.in_float32() as precise:
            compared = measuring._compared_parameters(precise)
            found.append(measuring._gradients(precise, [packed(LENGTHS)], compared, count=7))

    assert torch.equal(*found)


class Remembering(nn.Module):
    """Keeps tables in the dtype of what it was given, and fails if it is told to."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4, dtype=torch.bfloat16)
        self.register_buffer("scale", torch.ones(4, dtype=torch.bfloat16))
        self.fails = False

    def forward(self, x):
        self.table = self.linear.weight.to(x.dtype) * 2
        self.scale = self.scale * 1
        if self.fails:
            raise ValueError("told to")
        return self.linear(x) * self.scale


@pytest.mark.parametrize("fails", [False, True])
def test_nothing_is_left_of_a_run_in_float32(fails):
    module = Remembering()
    x = torch.ones(2, 4, dtype=torch.bfloat16)
    before, kept = module(x), (module.table, module.scale, module.linear.weight)
    bits = [tensor.clone() for tensor in kept]
    module.fails = fails
    try:
        with in_float32([module], CPU):
            assert module(x).dtype == torch.float32
            assert torch.zeros(1, dtype=torch.bfloat16).dtype == torch.float32
    except ValueError:
        assert fails
    module.fails = False

    assert all(a is b for a, b in zip(kept, (module.table, module.scale, module.linear.weight), strict=True))
    assert all(torch.equal(a, b) for a, b in zip(bits, kept, strict=True))
    assert module.linear.weight.grad is None
    assert torch.equal(module(x), before)
    assert torch.zeros(1, dtype=torch.bfloat16).dtype == torch.bfloat16


def autocast(x, w):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return x @ w


CASTS = {
    "to": lambda x, _: x.to(torch.bfloat16),
    "to by name": lambda x, _: x.to(dtype=torch.float16),
    "to another": lambda x, w: x.to(w),
    "to its dtype": lambda x, w: x.to(w.dtype),
    "type": lambda x, _: x.type(torch.bfloat16),
    "type as": lambda x, w: x.type_as(w),
    "bfloat16": lambda x, _: x.bfloat16(),
    "half": lambda x, _: x.half(),
    "softmax": lambda x, _: F.softmax(x, dim=-1, dtype=torch.bfloat16),
    "sum": lambda x, _: x.sum(dtype=torch.bfloat16),
    "empty": lambda x, _: torch.empty(3, dtype=torch.bfloat16).copy_(x[0]),
    "empty like": lambda x, w: torch.empty_like(w[0]).copy_(x[0]),
    "new": lambda x, w: w.new_zeros(3) + x,
    "moved": lambda x, w: x * w.t()[0].unsqueeze(0).mT.view(-1),
    "transposed": lambda x, w: x @ w.T,
    "concatenated": lambda x, w: torch.cat([x, w]),
    "stacked": lambda x, w: torch.stack([x, w[:2]]),
    "einsum": lambda x, w: torch.einsum("ij,kj->ik", x, w),
    "embedded": lambda _, w: F.embedding(torch.tensor([0, 1]), w),
    "normed": lambda x, w: F.layer_norm(x, (3,), w[0], w[1]),
    "autocast": autocast,
}


@pytest.mark.parametrize("cast", CASTS.values(), ids=CASTS)
def test_whatever_casts_in_between_numbers_stay_in_float32(cast):
    x, w = torch.randn(2, 3), torch.randn(3, 3, dtype=torch.bfloat16)
    with Float32(CPU):
        found = cast(x, w)
        assert found.dtype == torch.float32

    exact = cast(x.double(), w.double()) if cast in {CASTS["transposed"], CASTS["einsum"]} else None
    assert found.dtype not in LOW
    assert exact is None or torch.allclose(found.double(), exact, rtol=1e-6, atol=1e-6)


def test_what_is_written_to_keeps_its_dtype():
    kept, x = torch.zeros(3, dtype=torch.bfloat16), torch.full((3,), 1 / 3)
    with Float32(CPU):
        kept += x
        kept.index_add_(0, torch.tensor([0]), x[:1])
        kept[2] = x[2]

    assert kept.dtype == torch.bfloat16
    third = torch.tensor(1 / 3).bfloat16()
    assert torch.equal(kept, torch.stack([third + third, third, third]))


def test_autograd_keeps_weights_and_not_their_copies_in_float32(monkeypatch):
    linear = nn.Linear(64, 32, bias=False, dtype=torch.bfloat16).requires_grad_(False)
    x = torch.randn(2, 64, requires_grad=True)
    kept = []
    with in_float32([linear], CPU) as mode:
        pack = mode.pack
        monkeypatch.setattr(mode, "pack", lambda saved: kept.append(pack(saved)) or kept[-1])
        with gathering(mode, []):
            y = linear(x)
        y.sum().backward()

    assert any(not isinstance(one, torch.Tensor) and one[0] is linear.weight for one in kept)
    assert all(one.numel() < linear.weight.numel() for one in kept if isinstance(one, torch.Tensor))
    assert torch.equal(x.grad, linear.weight.float().sum(dim=0).expand(2, -1))


# What the probe makes of it.


def test_what_float32_decides_is_noted_and_has_the_noise_floor_of_float32():
    model = hermetic.seal(tiny("llama").to(torch.bfloat16))
    clean = hermetic.probe(model)
    with plant(model, "row_length"):
        report = hermetic.probe(model)

    assert (clean.verdict, clean.note) == ("sealed", ())
    assert clean.noise_floor > 1e-2
    assert report.verdict == "row_length_dependent"
    assert report.noise_floor < 1e-4
    assert report.note[0].startswith(FINER)


def test_of_a_large_batch_two_documents_are_run_in_float32_and_the_report_says_which():
    model = hermetic.seal(tiny("llama").to(torch.bfloat16))
    with plant(model, "row_length"):
        report = hermetic.probe(model, lengths=(90, 85, 97, 101, 80, 70, 77))

    assert report.verdict == "row_length_dependent"
    assert report.lengths == (30, 21)
    assert report.note[0].startswith(FINER)
    assert "documents 0 and 6 were taken" in report.note[0]


def test_a_leak_under_autocast_is_seen_in_float32():
    model = hermetic.seal(tiny("llama"))

    def forward(batch):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return model(**batch.model_inputs())

    clean = hermetic.probe(forward)
    with plant(model, "row_length"):
        report = hermetic.probe(forward)

    assert clean.verdict == "sealed"
    assert clean.noise_floor > 1e-2
    assert report.verdict == "row_length_dependent"


def refusing(mixed, _batch):
    """A kernel that takes bfloat16 alone."""
    if mixed.dtype != torch.bfloat16:
        raise TypeError(f"expected BFloat16 and got {mixed.dtype}")
    return mixed


def test_a_kernel_that_refuses_float32_is_judged_in_its_own_dtype_and_the_report_says_so():
    report = hermetic.probe(as_function(Attending(refusing).to(torch.bfloat16)))

    assert report.verdict == "sealed"
    assert len(report.note) == 1
    assert report.note[0].startswith(NOT_FINER)
    assert "expected BFloat16 and got torch.float32" in report.note[0]


class WrongInLowPrecision(torch.autograd.Function):
    """Right but for its backward behind the first document, and that in bfloat16 alone."""

    @staticmethod
    def forward(ctx, mixed, later):
        ctx.save_for_backward(later)
        return mixed.clone()

    @staticmethod
    def backward(ctx, upstream):
        (later,) = ctx.saved_tensors
        return torch.where(later & (upstream.dtype == torch.bfloat16), -8 * upstream, upstream), None


def test_a_kernel_that_is_wrong_in_its_own_dtype_alone_is_found_in_that():
    def seam(mixed, batch):
        return WrongInLowPrecision.apply(mixed, (batch.boundaries.document_ids > 0)[:, None])

    report = hermetic.probe(as_function(Attending(seam).to(torch.bfloat16)))
    right = hermetic.probe(as_function(Attending(seam)))

    assert [finding.code for finding in report.findings] == ["HM203"]
    assert report.note == ()
    assert right.verdict == "sealed"
