"""Liger runs where it is asked for and nothing else does. Its kernel is stood in for by one of the same signature."""

import sys
from types import ModuleType

import pytest
import torch
from loss_helpers import documents

from hermetic.errors import LossError, MissingDependencyError, NonFiniteError
from hermetic.loss import ZeroSupervisedTokensWarning, packed_linear_loss

CALLS = []


class StandIn(torch.nn.Module):
    """The arguments of LigerFusedLinearCrossEntropyLoss of liger-kernel 0.8.5, and what its summed loss is."""

    def __init__(  # noqa: PLR0917 - as the package has them
        self,
        ce_weight=None,
        ignore_index=-100,
        lse_square_scale=0.0,
        label_smoothing=0.0,
        reduction="mean",
        softcap=None,
        return_z_loss=False,  # noqa: FBT002 - as above
        accum_dtype=None,
        use_token_scaling=False,  # noqa: FBT002 - as above
        return_token_accuracy=False,  # noqa: FBT002 - as above
        return_predicted_tokens=False,  # noqa: FBT002 - as above
    ):
        super().__init__()
        assert ce_weight is None
        assert not any((return_z_loss, use_token_scaling, return_token_accuracy, return_predicted_tokens))
        assert (reduction, ignore_index, accum_dtype) == ("sum", -100, torch.float32)
        self.z_loss, self.smoothing, self.softcap = lse_square_scale, label_smoothing, softcap

    def forward(self, lin_weight, _input, target, bias=None):
        CALLS.append(target)
        logits = torch.nn.functional.linear(_input, lin_weight, bias)
        if self.softcap is not None:
            logits = self.softcap * torch.tanh(logits / self.softcap)
        losses = torch.nn.functional.cross_entropy(logits, target, label_smoothing=self.smoothing, reduction="sum")
        return losses + self.z_loss * logits.logsumexp(1).square().sum()


@pytest.fixture
def installed(monkeypatch):
    package, module = ModuleType("liger_kernel"), ModuleType("liger_kernel.transformers")
    module.LigerFusedLinearCrossEntropyLoss = StandIn
    monkeypatch.setitem(sys.modules, "liger_kernel", package)
    monkeypatch.setitem(sys.modules, "liger_kernel.transformers", module)
    monkeypatch.setattr("hermetic.loss.liger.WITHOUT_KERNEL", ())
    CALLS.clear()


BATCH = documents(3, 0, 5)


def tensors():
    generator = torch.Generator().manual_seed(0)
    shapes = ((BATCH.num_slots, 4), (8, 4), (8,))
    return [torch.randn(*shape, dtype=torch.float64, generator=generator).requires_grad_() for shape in shapes]


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(
    "options", [{}, {"label_smoothing": 0.1, "z_loss": 0.01}, {"logit_softcap": 2.0}, {"denominator": 16}]
)
def test_its_sum_is_divided_like_any_other_and_gets_every_option(options):
    results = []
    for backend in ("liger", "torch"):
        hidden, weight, bias = leaves = tensors()
        loss = packed_linear_loss(hidden, weight, BATCH, bias=bias, backend=backend, **options)
        loss.backward()
        results.append([loss.detach(), *(leaf.grad for leaf in leaves)])

    assert [target.tolist() for target in CALLS] == [[1, 2, 3, 1, 2, 3, 4, 5]]
    for found, expected in zip(*results, strict=True):
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"reduction": "document"}, "cannot do reduction='document'; use backend='torch'"),
        ({"reduction": "sqrt"}, "cannot do reduction='sqrt'"),
        ({"logit_scale": 0.5}, "cannot do logit_scale=0.5"),
        ({"chunk_tokens": 5}, "cannot do chunk_tokens=5"),
    ],
)
def test_what_it_cannot_do_is_an_error_and_nothing_runs_instead(options, message):
    hidden, weight, _ = tensors()
    with pytest.raises(LossError, match=message):
        packed_linear_loss(hidden, weight, BATCH, backend="liger", **options)

    assert CALLS == []


@pytest.mark.usefixtures("installed")
def test_a_sum_that_is_not_finite_is_an_error():
    hidden, weight, _ = tensors()
    with pytest.raises(NonFiniteError, match=r"the summed loss is nan.*backend='torch' names the token"):
        packed_linear_loss(hidden * torch.nan, weight, BATCH, backend="liger")


@pytest.mark.usefixtures("installed")
def test_without_targets_the_kernel_is_not_called():
    hidden, weight, _ = tensors()
    batch = documents(0, 0)
    with pytest.warns(ZeroSupervisedTokensWarning):
        loss = packed_linear_loss(hidden[: batch.num_slots], weight, batch, backend="liger")
    loss.backward()

    assert (loss.item(), CALLS) == (0.0, [])
    assert torch.equal(weight.grad, torch.zeros_like(weight))


def test_on_the_cpu_it_is_refused_before_anything_is_imported():
    hidden, weight, _ = tensors()
    with pytest.raises(LossError, match="backend 'liger' cannot do tensors on the cpu; use backend='torch'"):
        packed_linear_loss(hidden, weight, BATCH, backend="liger")


def test_where_it_is_not_installed_the_error_says_how_to_install_it(monkeypatch):
    monkeypatch.setattr("hermetic.loss.liger.WITHOUT_KERNEL", ())
    monkeypatch.setitem(sys.modules, "liger_kernel", None)
    hidden, weight, _ = tensors()
    with pytest.raises(MissingDependencyError, match=r"needs the package liger-kernel.*pip install liger-kernel"):
        packed_linear_loss(hidden, weight, BATCH, backend="liger")


@pytest.mark.gpu
def test_the_real_kernel_gives_the_loss_of_the_torch_backend_on_a_gpu():
    pytest.importorskip("liger_kernel", reason="liger-kernel is an optional package")
    batch = BATCH.to("cuda")
    results = []
    for backend in ("liger", "torch"):
        hidden, weight, _ = (x.detach().float().cuda().requires_grad_() for x in tensors())
        loss = packed_linear_loss(hidden, weight, batch, backend=backend)
        loss.backward()
        results.append([loss.detach(), hidden.grad, weight.grad])

    for found, expected in zip(*results, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
