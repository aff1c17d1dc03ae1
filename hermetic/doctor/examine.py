"""Examine one training call: read the documents, check targets, probe the model with these very arguments.

Everything is about the call as it was caught: this model, in its mode and precision, with this batch. The findings
of the probe come first; what can be read off the batch is added unless the probe has measured the same.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from torch import nn

from hermetic.doctor.checks import Checked, Ints, check_targets, check_text, contradiction
from hermetic.doctor.diagnosis import Diagnosis, Packing
from hermetic.doctor.documents import Documents, documents_of_call, named_arguments
from hermetic.doctor.watch import token_ids, unwrapped
from hermetic.errors import BoundariesError, DoctorError, NoBoundariesError, NotPackedError
from hermetic.probe import Finding, LeakReport
from hermetic.probe.calls import probe_call
from hermetic.probe.kept import with_all_labels
from hermetic.probe.wrapped import sharding_processes


def examine(module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Diagnosis:
    """Diagnose a call of ``module`` with token ids, before it is made.

    Args:
        module: what is called, wrappers for several devices included.
        args: its positional arguments.
        kwargs: its named arguments.

    Raises:
        DoctorError: the call has no token ids, or the model is spread over several processes.
        ProbeError: nothing can be measured.
    """
    model = unwrapped(module)
    _require_whole(model)
    tokens = token_ids(args, kwargs)
    if tokens is None:
        raise DoctorError(f"the call of {type(model).__name__} has no token ids; expected input_ids")
    ids = np.atleast_2d(tokens.detach().cpu().numpy())
    call = with_all_labels(named_arguments(model, args, kwargs), ids.shape)
    try:
        documents = documents_of_call(call, ids.shape)
    except BoundariesError as error:
        return _diagnosis(model, ids, None, packing="contradictory", findings=[contradiction(error)])
    packing, report = _probed(model, args, dict(kwargs))
    targets = check_targets(call, ids, documents, shifts=_shifts_labels(model))
    text = Checked() if packing == "packed" else _check_text(model, ids, documents)
    packing = "no_boundaries" if text.findings else packing
    measured = () if report is None else report.findings
    findings = [*measured, *_not_yet_seen(targets.findings, measured), *text.findings]
    notes = [*_about(module, model), *targets.notes, *text.notes]
    return _diagnosis(model, ids, documents, packing=packing, findings=findings, notes=notes, report=report)


def _probed(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Packing, LeakReport | None]:
    try:
        return "packed", probe_call(model, args, kwargs)
    except (NotPackedError, NoBoundariesError):
        return "one_document_per_row", None


def _diagnosis(
    model: nn.Module,
    ids: Ints,
    documents: Documents | None,
    *,
    packing: Packing,
    findings: Iterable[Finding],
    notes: Iterable[str] = (),
    report: LeakReport | None = None,
) -> Diagnosis:
    return Diagnosis(
        model=type(model).__name__,
        packing=packing,
        rows=ids.shape[0],
        slots=ids.shape[1],
        documents=() if documents is None else documents.lengths,
        source=None if documents is None else documents.source,
        inferred=documents is None or documents.inferred,
        findings=tuple(findings),
        notes=tuple(notes),
        report=report,
    )


def _not_yet_seen(findings: Iterable[Finding], measured: Iterable[Finding]) -> list[Finding]:
    """Those that the probe has not measured itself."""
    codes = {finding.code for finding in measured}
    return [finding for finding in findings if finding.code not in codes]


def _require_whole(model: nn.Module) -> None:
    """A sharded model runs only where all processes run it, and each of them has another batch."""
    processes = sharding_processes(model)
    if processes > 1:
        raise DoctorError(
            f"{type(model).__name__} is sharded over {processes} processes, which all have to run it together; "
            "expected a whole model. Start the command with one process, and with a smaller model if this one does "
            "not fit"
        )


def _shifts_labels(model: nn.Module) -> bool:
    """Models of transformers, and wrappers around them, shift the labels themselves."""
    return any(kind.__module__.startswith("transformers.") for inner in model.modules() for kind in type(inner).__mro__)


def _check_text(model: nn.Module, ids: Ints, documents: Documents) -> Checked:
    begin, end = (_special(model, name) for name in ("bos_token_id", "eos_token_id"))
    return check_text(ids, documents.real, begin=begin, end=end)


def _special(model: nn.Module, name: str) -> frozenset[int]:
    """The ids that a model's configuration gives for a kind of token."""
    found = (getattr(getattr(model, config, None), name, None) for config in ("config", "generation_config"))
    values = (value if isinstance(value, list) else [value] for value in found)
    return frozenset(int(one) for value in values for one in value if one is not None)


def _about(module: nn.Module, model: nn.Module) -> list[str]:
    notes = []
    if module is not model:
        notes.append(f"examined inside {type(module).__name__}")
    if not getattr(model, "_orig_mod", model).training:
        notes.append("the model trains in evaluation mode: nothing called model.train(), so it has no dropout")
    return notes
