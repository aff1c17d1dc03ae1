"""For the tests of sealing: a sealed model beside its plain twin, and the two claims about every such pair."""

import copy
import functools
from collections.abc import Sequence

import pytest
from models import (
    LENGTHS,
    MORE_UNPACKED,
    UNPACKED,
    alone,
    alone_gradients,
    calling,
    packed,
    packed_gradients,
    relative_difference,
    tiny,
)
from torch import nn

import hermetic


def sealed_and_plain(plain: nn.Module) -> tuple[nn.Module, nn.Module]:
    """A sealed copy of a model, and the model."""
    return hermetic.seal(copy.deepcopy(plain)), plain


@functools.cache
def pair(name: str) -> tuple[nn.Module, nn.Module]:
    """A sealed model and its plain twin, made once; for tests that change neither."""
    return sealed_and_plain(tiny(name))


EVERY = (*UNPACKED, "gpt_oss", *MORE_UNPACKED)


def families(*quick: str, slow: Sequence[str] = EVERY) -> list:
    """Names for a test of every family, of which the first few are enough by default."""
    return [*quick, *(pytest.param(name, marks=pytest.mark.slow) for name in slow if name not in quick)]


def names_unpacked(model: nn.Module) -> list[str]:
    return [module.name for module in hermetic.seal_report(model).modules if module.how == "unpack"]


def assert_packed_is_alone(sealed, plain, call="document_ids", batch=None):
    """Logits and parameter gradients of packed documents are those of each one alone in the unsealed model."""
    batch = packed() if batch is None else batch
    found = batch.unpack(calling(sealed, call)(batch).detach())
    for document, (one, other) in enumerate(zip(found, alone(plain, batch), strict=True)):
        assert float((one - other).abs().max()) <= 1e-5 * float(other.abs().max()), f"document {document}"
    assert relative_difference(packed_gradients(sealed, batch, call), alone_gradients(plain, batch)) <= 1e-4


def assert_isolated(sealed, call="document_ids"):
    """No bit of a document moves with another, and no gradient crosses a seam."""
    report = hermetic.probe(calling(sealed, call), lengths=LENGTHS)

    assert report.findings == ()
    assert report.verdict == "sealed"
    assert {"swap", "gradient", "solo", "length-change", "causality"} <= set(report.instruments)
    assert float(report.influence.max()) == 0.0
    assert float(report.gradients.clone().fill_diagonal_(0.0).max()) == 0.0
    assert float(report.gradients.diagonal().min()) > 0.0


def layers_of(model: nn.Module) -> nn.ModuleList:
    return next(module for module in model.modules() if isinstance(module, nn.ModuleList) and len(module) > 1)
