"""A pytest plugin: the fixture ``leak_probe``, for tests that what is trained with does not leak.

Guarantee: nothing heavy is imported before a test asks for the fixture. Price: that of a probe.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import pytest

if TYPE_CHECKING:
    from torch import nn

    from hermetic.probe import LeakReport

_LENGTHS = (11, 13, 6, 4)
"""Tokens of each document that a collator is given when the test gives none."""


class LeakProbe(Protocol):
    """What the fixture is."""

    def __call__(
        self,
        model: "nn.Module",
        collator: Any = None,
        *,
        batch: Mapping[str, Any] | None = None,
        documents: Sequence[Mapping[str, Any]] | None = None,
    ) -> "LeakReport":
        """See ``probe_packing``."""


@pytest.fixture
def leak_probe() -> LeakProbe:
    """A function that probes a model, with a collator or a batch of your own, and fails the test on a leak.

    ``leak_probe(model)``, ``leak_probe(model, collator)``, ``leak_probe(model, batch=batch)``; see
    ``hermetic.testing.plugin.probe_packing``.
    """
    return probe_packing


def probe_packing(
    model: "nn.Module",
    collator: Any = None,
    *,
    batch: Mapping[str, Any] | None = None,
    documents: Sequence[Mapping[str, Any]] | None = None,
) -> "LeakReport":
    """Probe a model as it would be trained, and raise if documents reach each other.

    Args:
        model: as ``hermetic.probe`` takes it.
        collator: makes the model's arguments from a list of documents, as for a DataLoader.
        batch: the model's arguments themselves, instead of a collator.
        documents: what to pack, in the form that the collator takes, or ``hermetic.collate`` without one; by default
            random tokens.

    Returns:
        The report, for tests that ask for more, such as ``report.verdict == "sealed"``.

    Raises:
        LeakError: a document reaches another.
        ProbeError: nothing was measured: the batch is not packed, does not say where documents start, is no mapping
            of arguments, or comes together with a collator or documents.
    """
    from hermetic.errors import ProbeError
    from hermetic.probe import probe, probe_call

    if batch is not None and (collator is not None or documents is not None):
        raise ProbeError(
            "a batch came together with a collator or documents, which make one; expected only one of both"
        )
    if collator is not None:
        batch = collator(list(documents) if documents is not None else _random_documents(model))
    if batch is None:
        report = probe(model, documents=documents)
    else:
        report = probe_call(model, (), _where_the_model_is(model, batch))
    report.raise_for_leaks()
    return report


def _random_documents(model: "nn.Module") -> list[dict[str, list[int]]]:
    import torch

    from hermetic.probe.subject import subject_from

    generator = torch.Generator().manual_seed(0)
    vocabulary = subject_from(model, seed=0).vocabulary
    draw = [torch.randint(vocabulary, (length,), generator=generator).tolist() for length in _LENGTHS]
    return [{"input_ids": ids, "labels": list(ids)} for ids in draw]


def _where_the_model_is(model: "nn.Module", batch: object) -> dict[str, Any]:
    import torch

    from hermetic.errors import ProbeError

    if not isinstance(batch, Mapping):
        raise ProbeError(
            f"the batch is a {type(batch).__name__}; expected a mapping of the model's arguments, as a collator makes "
            "it. Probe what takes other batches with hermetic.probe"
        )
    device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
    return {name: value.to(device) if isinstance(value, torch.Tensor) else value for name, value in batch.items()}
