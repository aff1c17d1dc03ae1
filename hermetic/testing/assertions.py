"""One line for a test suite: this model keeps packed documents apart."""

from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn

from hermetic.errors import NotSealedError
from hermetic.probe import LeakReport, probe
from hermetic.probe.subject import Forward


def assert_no_leak(
    model: nn.Module | Forward,
    *,
    documents: Sequence[Mapping[str, Any]] | None = None,
    lengths: Sequence[int] = (11, 13, 6, 1),
    seed: int = 0,
) -> LeakReport:
    """Probe a model, and raise unless packed documents are computed as if each were alone.

    Args:
        model: as for ``hermetic.probe``: a transformers model, or a callable ``forward(batch) -> logits``.
        documents: what to pack; by default random tokens of the given ``lengths``.
        lengths: tokens of each default document. Take some beyond every attention window of the model.
        seed: of the default documents and of all random choices.

    Returns:
        The report, whose verdict is ``sealed``.

    Raises:
        NotSealedError: the verdict is another; also an AssertionError, so that test runners count a failure.
        ProbeError: nothing can be measured, or neither swap nor gradient could.

    Example:
        >>> import hermetic
        >>> from hermetic.atlas import build_tiny
        >>> from hermetic.testing import assert_no_leak
        >>> assert_no_leak(hermetic.seal(build_tiny("llama"))).verdict
        'sealed'
    """
    report = probe(model, documents=documents, lengths=lengths, seed=seed)
    if report.verdict != "sealed":
        raise NotSealedError(report.summary())
    report.raise_for_leaks()
    return report
