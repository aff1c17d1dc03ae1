"""What packing does to each type of model: as shipped, called well and called badly, and sealed.

Algorithm: every type becomes a tiny model (``tiny``), once for each attention implementation that its class takes,
and ``hermetic.probe`` measures it in each of the ways of ``WAYS``. A sealed one also has to compute for a document
alone what it computed before it was sealed, which the probe, for it sees one model, cannot know.
Guarantee: one type that fails, in whatever way, is a row with its reason and never the end of the survey; a state
file that another version of a package wrote is refused, not mixed in.
Price: five probes per type and implementation, a second or two; some minutes for all of them on one core.
"""

import dataclasses
import inspect
import json
import platform
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import nn

from hermetic.atlas.sizes import VOCABULARY
from hermetic.atlas.tiny import build_tiny, model_types, require_known, supports
from hermetic.batch import PackedBatch
from hermetic.errors import AtlasError, HermeticError, ProbeError, SealError
from hermetic.files import write_text
from hermetic.probe import LeakReport, probe
from hermetic.seal import SealReport, seal, seal_report
from hermetic.seal.measure import FLOOR_FACTOR, largest_difference

LENGTHS = (11, 13, 6, 1)
"""Tokens of the documents: three reach beyond windows and chunks of 4, one is a single token."""

Call = Callable[[PackedBatch], dict[str, Any]]
OnType = Callable[[str, int, int], None]
"""Told which type is next, how many are done, and of how many."""


def _correct(batch: PackedBatch) -> dict[str, Any]:
    return {
        "input_ids": batch.input_ids[None],
        "position_ids": batch.boundaries.position_ids[None],
        "use_cache": False,
    }


def _all_ones(batch: PackedBatch) -> dict[str, Any]:
    return {**_correct(batch), "attention_mask": torch.ones_like(batch.input_ids)[None]}


def _default_cache(batch: PackedBatch) -> dict[str, Any]:
    return {name: value for name, value in _correct(batch).items() if name != "use_cache"}


def _running(batch: PackedBatch) -> dict[str, Any]:
    return {**_correct(batch), "position_ids": torch.arange(batch.num_slots)[None]}


SHIPPED: dict[str, Call] = {
    "correct": _correct,
    "all_ones_mask": _all_ones,
    "default_cache": _default_cache,
    "running_positions": _running,
}
"""The ways in which a model is called as it is shipped: well, and with each of three common mistakes."""

WAYS = (*SHIPPED, "sealed")

_SOUND = {"sealed", "not_causal", "refused", "not_built", "not_run"}
"""Verdicts on a sealed model that break no promise of the seal."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """One model in one way."""

    model_type: str
    class_name: str | None
    """``None`` when there is no model."""
    implementation: str | None
    """Of attention, as transformers names it."""
    way: str
    """One of ``WAYS``."""
    verdict: str
    """Of the probe; or ``not_built``, ``not_run`` on a document alone, ``failed`` in the model, ``refused`` by the
    seal, or ``changed`` by the seal, which a document alone shows."""
    size: float | None
    """How far a logit moves at most: when another document is swapped, or from alone to packed."""
    where: str | None
    """The module that first leaks, or what a finding is about."""
    how: tuple[str, ...]
    """How a sealed model is sealed: ``interface``, ``native``, and the classes that run document by document."""
    seconds: float
    reason: str | None
    """Why there is no verdict of the probe."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Survey:
    """Rows, and what they were measured with."""

    rows: tuple[Row, ...]
    versions: tuple[tuple[str, str], ...]
    date: str
    """Of the last row, ``YYYY-MM-DD``, in UTC."""

    @property
    def unsound(self) -> tuple[Row, ...]:
        """Sealed models that are not what the seal promises: documents apart, each computed as it is alone.

        A model that the seal refused is not one, nor one that by its nature sees later tokens of its own document.
        """
        return tuple(row for row in self.rows if row.way == "sealed" and row.verdict not in _SOUND)

    def to_dict(self) -> dict[str, Any]:
        """Plain lists, names and numbers."""
        return {
            "date": self.date,
            "versions": dict(self.versions),
            "lengths": list(LENGTHS),
            "rows": [dataclasses.asdict(row) for row in self.rows],
        }


def survey(
    types: Sequence[str] | None = None,
    *,
    sealed: bool = True,
    state: str | Path | None = None,
    on_type: OnType | None = None,
) -> Survey:
    """Measure types of causal language models, packed, as shipped and sealed.

    Args:
        types: some of ``model_types()``; by default all.
        sealed: seal each model too; otherwise it is measured as it is shipped and in no other way.
        state: a JSON file that holds the rows of all finished types. It is written after each, and types in it are
            not measured again.
        on_type: told about progress.

    Raises:
        AtlasError: a type is unknown, or ``state`` is not a file of this survey and these versions.

    Example:
        >>> rows = survey(["llama"]).rows
        >>> {row.verdict for row in rows if row.way == "sealed"}
        {'sealed'}
    """
    chosen = _chosen(types)
    ways = WAYS if sealed else tuple(SHIPPED)
    path = None if state is None else Path(state)
    known = _read(path) if path is not None and path.exists() else _survey_of(())
    for index, model_type in enumerate(chosen):
        if on_type is not None:
            on_type(model_type, index, len(chosen))
        if not set(ways) <= {row.way for row in known.rows if row.model_type == model_type}:
            others = (row for row in known.rows if row.model_type != model_type)
            known = _survey_of((*others, *survey_type(model_type, ways)))
            if path is not None:
                write_text(path, json.dumps(known.to_dict(), indent=1, allow_nan=False) + "\n")
    rows = tuple(row for row in known.rows if row.model_type in chosen and row.way in ways)
    return dataclasses.replace(known, rows=rows)


def _chosen(types: Sequence[str] | None) -> tuple[str, ...]:
    if types is None:
        return model_types()
    for model_type in types:
        require_known(model_type)
    return tuple(dict.fromkeys(types))


def _survey_of(rows: tuple[Row, ...]) -> Survey:
    """Rows of which the last was measured just now."""
    date = time.strftime("%Y-%m-%d", time.gmtime())
    return Survey(rows=tuple(sorted(rows, key=lambda row: row.model_type)), versions=_versions(), date=date)


def _versions() -> tuple[tuple[str, str], ...]:
    from hermetic import __version__

    names = ("torch", "transformers")
    return (
        ("hermetic", __version__),
        ("python", platform.python_version()),
        *((name, version(name)) for name in names),
    )


def _read(path: Path) -> Survey:
    try:
        state = json.loads(path.read_text(encoding="utf-8"))
        rows = tuple(Row(**(row | {"how": tuple(row["how"])})) for row in state["rows"])
        found = Survey(rows=rows, versions=tuple(state["versions"].items()), date=state["date"])
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise AtlasError(
            f"{path} is not the state of a survey ({type(error).__name__}: {error}); expected a file that survey "
            "wrote. Name another file"
        ) from error
    if found.versions != _versions():
        raise AtlasError(
            f"{path} was measured with {dict(found.versions)}, and here are {dict(_versions())}; expected the same "
            "versions, for rows of different ones make no table. Name another file"
        )
    return found


def survey_type(model_type: str, ways: Sequence[str] = WAYS) -> list[Row]:
    """All rows of one type; whatever goes wrong is in them."""
    with _quiet():
        rows: list[Row] = []
        for implementation in _implementations(model_type):
            rows += _rows_for(model_type, implementation, ways)
        return rows


def _implementations(model_type: str) -> tuple[str, ...]:
    try:
        return supports(model_type)
    except AtlasError:
        return ("eager",)  # building will say why not


def _rows_for(model_type: str, implementation: str, ways: Sequence[str]) -> Iterator[Row]:
    blank = Row(
        model_type=model_type,
        class_name=None,
        implementation=implementation,
        way=WAYS[0],
        verdict="not_built",
        size=None,
        where=None,
        how=(),
        seconds=0.0,
        reason=None,
    )
    try:
        model = build_tiny(model_type, attn_implementation=implementation)
    except AtlasError as error:
        yield from (dataclasses.replace(blank, way=way, reason=str(error)) for way in ways)
        return
    blank = dataclasses.replace(blank, class_name=type(model).__name__)
    try:
        alone = _alone(model)
    except Exception as error:  # noqa: BLE001 - the code of any of hundreds of models runs here, and may raise anything
        reason = f"{blank.class_name} fails on a document alone ({_named(error)})"
        yield from (dataclasses.replace(blank, way=way, verdict="not_run", reason=reason) for way in ways)
        return
    for way in ways:
        start = time.perf_counter()
        row = _measured(model, way, blank, alone)
        yield dataclasses.replace(row, way=way, seconds=round(time.perf_counter() - start, 3))


def _measured(model: nn.Module, way: str, blank: Row, alone: Sequence[torch.Tensor]) -> Row:
    try:
        if way == "sealed":
            return _measured_sealed(model, blank, alone)
        model.train(way == "default_cache")  # a cache is left on in training more than anywhere
        return _told(_probed(_calling(model, SHIPPED[way])), blank)
    except SealError as error:
        return dataclasses.replace(blank, verdict="refused", reason=_one_line(error))
    except HermeticError as error:
        return dataclasses.replace(blank, verdict="failed", reason=_one_line(error))
    except Exception as error:  # noqa: BLE001 - the code of any of hundreds of models runs here, and may raise anything
        return dataclasses.replace(blank, verdict="failed", reason=_named(error))
    finally:
        model.eval()


def _measured_sealed(model: nn.Module, blank: Row, alone: Sequence[torch.Tensor]) -> Row:
    report = seal_report(seal(model))
    blank = dataclasses.replace(blank, how=_how(report))
    moved = max(largest_difference(one, other) for one, other in zip(alone, _alone(model), strict=True))
    if not moved <= FLOOR_FACTOR * report.noise_floor:
        return dataclasses.replace(blank, verdict="changed", size=moved, where="a document alone")
    return _told(_probed(model), blank)


@torch.no_grad()
def _alone(model: nn.Module) -> list[torch.Tensor]:
    """Logits of each document, given nothing but its tokens."""
    return [model(input_ids=document[None], use_cache=False).logits for document in _documents()]


def _how(report: SealReport) -> tuple[str, ...]:
    """In the order of the modules, each once."""
    ways = (module.kind if module.how == "unpack" else module.how for module in report.modules)
    return tuple(dict.fromkeys([*(["native"] if report.native else []), *ways]))


def _documents() -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randint(3, VOCABULARY, (length,), generator=generator) for length in LENGTHS]


_INSTRUMENTS = ("swap", "gradient", "solo", "length-change", "causality")
"""Of the architecture; what a model's own loss makes of labels is its caller's choice. Where one of them cannot run, as
on a row longer than the model's positions, all that can do."""


def _probed(subject: Any) -> LeakReport:
    documents = [{"input_ids": document} for document in _documents()]
    try:
        return probe(subject, documents=documents, instruments=_INSTRUMENTS)
    except ProbeError:
        return probe(subject, documents=documents)


def _calling(model: nn.Module, call: Call) -> Callable[[PackedBatch], torch.Tensor]:
    """The model as the probe takes it; what its forward does not take is left out, as callers have to."""
    parameters = inspect.signature(model.forward).parameters
    takes_all = any(one.kind is inspect.Parameter.VAR_KEYWORD for one in parameters.values())

    def forward(batch: PackedBatch) -> torch.Tensor:
        inputs = {name: value for name, value in call(batch).items() if takes_all or name in parameters}
        logits: torch.Tensor = model(**inputs).logits
        return logits

    forward.__qualname__ = type(model).__name__  # what reports call it
    return forward


def _told(report: LeakReport, blank: Row) -> Row:
    moved = [float(one.max()) for one in (report.influence, report.equivalence) if one is not None]
    first = next(iter(report.findings), None)
    unsupported = first.what if first is not None and report.verdict == "unsupported" else None
    return dataclasses.replace(
        blank,
        verdict=report.verdict,
        size=max(moved, default=None),
        where=None if first is None else first.where,
        reason=unsupported,
    )


def _named(error: Exception) -> str:
    return f"{type(error).__name__}: {_one_line(error)}"


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep hundreds of models from saying on stderr what is expected of tiny ones."""
    from transformers import logging

    before = logging.get_verbosity()
    logging.set_verbosity_error()  # type: ignore[no-untyped-call]  # transformers has no types here
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.set_verbosity(before)
