"""What a configuration comes to, whichever stack it is of: the neutral facts that the rules of setups look at.

Algorithm: a reader makes :class:`Setting` of what stands in a file, a command or a call; a stack's ``setup_of`` turns
these into one :class:`Setup`, with the defaults of that stack filled in; rules look at nothing else.
Guarantee: plain data. What cannot be read without running something is :data:`UNKNOWN`, and no rule takes it for a
default. Price: microseconds.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

from hermetic.audit.finding import AuditFinding, Certainty, Place
from hermetic.errors import AuditError

Stack = Literal["trl", "axolotl", "llamafactory", "swift", "torchtune", "megatron", "deepspeed"]

Layout = Literal["padded", "flattened", "packed", "cut", "unknown"]
"""``padded``: one document per row. ``flattened``: the documents of a batch end to end, without padding. ``packed``:
whole documents in rows. ``cut``: one stream, cut at the row's length."""

Told = Literal["nothing", "positions", "edges", "mask", "unknown"]
"""How a model learns where documents start: not at all; by positions that restart; by those and ``cu_seq_lens`` or
``seq_idx`` beside them; by a mask over pairs of tokens that the stack makes."""

AttentionKind = Literal["flash", "sdpa", "eager", "flex", "thd", "other", "unknown"]
"""``thd``: kernels that are always given edges, as Megatron's. ``other``: a name that transformers does not ship."""

Versions = Mapping[str, str]
"""Package and version, such as ``{"trl": "1.16.0"}``."""

Bound = tuple[str, Literal["<", ">="], str]
"""A package, and in which of its versions something is so."""

NEWEST_A_YEAR_AGO: Final[Versions] = {
    "trl": "0.25.1",
    "axolotl": "0.12.2",
    "llamafactory": "0.9.3",
    "torchtune": "0.6.1",
}
"""The newest releases of 29 November 2025, a year before this table was written. What is so only in older ones is past:
a note, unless the version that is used is said to be one of them."""


class _Unknown:
    """The one value of what cannot be read."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "UNKNOWN"

    def __reduce__(self) -> str:  # copies and pickles stay the one value
        return "UNKNOWN"


UNKNOWN: Final = _Unknown()
"""The value of a setting that only running would tell: a variable of the shell, a name in a script."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Setting:
    """One setting: its value as plain data, and where it stands."""

    value: Any
    place: Place
    written: bool = True
    """``False``: nobody wrote it; the value is the stack's default, and the place the nearest there is."""
    stands: str | None = None
    """What stands at the place, where that is not the value but means it: ``true`` of Axolotl's ``sdp_attention``."""

    @property
    def shown(self) -> str:
        """What stands at the place, to be shown beside it."""
        return self.text if self.stands is None else self.stands

    @property
    def text(self) -> str:
        """The value, to be shown."""
        if self.value is UNKNOWN:
            return "not known before it runs"
        shown = {True: "true", False: "false", None: "null"}.get(self.value) if _is_simple(self.value) else None
        shown = str(self.value) if shown is None else shown
        return shown if self.written else f"{shown} (default)"


def _is_simple(value: object) -> bool:
    return value is None or isinstance(value, bool)


Settings = Mapping[str, Setting]
"""By name; of nested ones with dots: ``dataset.packed``, ``datasets.0.type``. One named :data:`OTHERS` says that there
may be more that were not read, so that nothing is a default."""

OTHERS: Final = "*"


@dataclass(frozen=True, kw_only=True, slots=True)
class Claim:
    """Something that a stack does with this configuration, and that a rule reports."""

    what: str
    setting: Setting
    way_out: str
    certainty: Certainty = "certain"
    versions: str | None = None
    past: bool = False
    """It depends on a version, and only those that were not the newest at any time of the last year have it."""

    def finding(self, code: str) -> AuditFinding:
        """As the finding of a rule."""
        return AuditFinding(
            code=code,
            certainty=self.certainty,
            what=self.what,
            place=self.setting.place,
            value=self.setting.shown,
            way_out=self.way_out,
            versions=self.versions,
        )

    @property
    def note(self) -> str:
        """What is past, for whoever still has such a version."""
        return f"With {self.versions}, which is over a year old: {self.what}. If that is yours, give it with --with."


def findings_in(claims: Iterable[Claim], code: str) -> Iterator[AuditFinding]:
    """Claims as findings of a rule; what is past is none."""
    return (claim.finding(code) for claim in claims if not claim.past)


@dataclass(frozen=True, kw_only=True, slots=True)
class Attention:
    """The attention that runs."""

    kind: AttentionKind
    setting: Setting


@dataclass(frozen=True, kw_only=True, slots=True)
class Model:
    """The type of the model, as transformers names it."""

    type: str
    certain: bool
    """Read from a ``config.json``; otherwise from the model's name, which may mislead."""
    setting: Setting
    rope: str | None = None
    """Scaling of its rotary positions that depends on lengths, as its ``config.json`` says: ``dynamic``."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Overflow:
    """What becomes of a document that is longer than a row."""

    policy: Literal["truncate", "drop", "split", "raise", "unknown"]
    asked: bool
    """The policy was written down."""
    setting: Setting
    """The policy; where the stack has none to choose, the capacity."""
    against: Setting | None = None
    """Something that was written and that the policy does not keep to."""

    @property
    def discards(self) -> bool:
        """Tokens are lost, and nobody asked for that."""
        return self.policy in LOST and not self.asked


LOST: Final[Mapping[str, str]] = {"drop": "are left out", "truncate": "lose what is over"}
"""What the policies that discard do to longer documents."""

COUNTED: Final = (
    "hermetic pack with that --capacity and --on-overflow error names the first of them and says how many there are; "
    "with drop or truncate it counts the tokens that are lost"
)
"""How the documents of a source that are too long, and their tokens, are counted."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Parallel:
    """One axis over which the tokens of a row are split to devices."""

    kind: Literal["ring", "ulysses", "torch"]
    """``torch``: PyTorch's context parallelism, which replaces every mask by the causal one."""
    size: Setting


@dataclass(frozen=True, kw_only=True, slots=True)
class Setup:
    """Everything that the rules of setups look at."""

    stack: Stack
    versions: Versions
    layout: Layout
    packing: Setting
    """The setting that decides the layout."""
    told: Told = "unknown"
    attention: Attention | None = None
    model: Model | None = None
    capacity: Setting | None = None
    """Tokens per row."""
    overflow: Overflow | None = None
    rows_per_device: Setting | None = None
    neftune: Setting | None = None
    """The noise's scale; ``None`` where there is none."""
    cache: Setting | None = None
    adapter: Setting | None = None
    """The kind of an adapter, such as ``lora`` or ``prefix-tuning``."""
    rope: Setting | None = None
    """A scaling of rotary positions that the configuration asks for."""
    parallel: tuple[Parallel, ...] = ()
    router_loss: Setting | None = None
    """The weight of a router's auxiliary loss."""
    sealed: Setting | None = None
    """The plugin that seals the model, where rows tell it their boundaries; ``None``: nothing seals it here."""
    mixers_patched: frozenset[str] = frozenset()
    """Types of models whose recurrent layers this stack itself makes respect boundaries."""
    mixers_patched_since: Bound | None = None
    """From which version on."""
    cuts: tuple[Claim, ...] = ()
    """HM120: how the stack cuts and concatenates."""
    untold: tuple[Claim, ...] = ()
    """HM121: whole documents end to end, and nobody says where they start."""
    unread: tuple[Claim, ...] = ()
    """HM122: boundaries that this attention, in this stack, does not read."""
    seams: tuple[Claim, ...] = ()
    """HM420: first tokens of documents that keep their labels."""
    lost_masks: tuple[Claim, ...] = ()
    """HM421: masks of the loss that packing loses."""
    per_row: tuple[Claim, ...] = ()
    """HM521: losses that are averaged row by row or device by device."""
    refusals: tuple[Claim, ...] = ()
    """HM620: what the stack will refuse when it starts."""
    misread: tuple[Claim, ...] = ()
    """HM621: values that the stack takes for something else."""
    limits: tuple[Claim, ...] = ()
    """HM822: constraints of context parallelism that do not hold."""
    remarks: tuple[str, ...] = ()
    """What has to be known of this stack to read the findings."""

    @property
    def notes(self) -> tuple[str, ...]:
        """Remarks, what becomes of longer documents without a word, and what only old versions do."""
        kinds = (self.cuts, self.untold, self.unread, self.seams, self.lost_masks, self.refusals, self.limits)
        past = (claim.note for claims in kinds for claim in claims if claim.past)
        return (*self.remarks, *_discarded(self), *past)

    @property
    def row(self) -> str:
        """The tokens of a row, in words."""
        known = self.capacity is not None and isinstance(self.capacity.value, int)
        return f"{self.capacity.value} tokens" if self.capacity and known else "a row's tokens"

    @property
    def joined(self) -> bool:
        """Several documents share a row."""
        return self.layout in {"flattened", "packed", "cut"}

    @property
    def facts(self) -> tuple[tuple[str, str], ...]:
        """What was understood, in the order to show it."""
        return tuple((name, text) for name, text in _facts(self) if text)


def _discarded(setup: Setup) -> tuple[str, ...]:
    """What a default does to longer documents; that it may be known, and no finding where the length was chosen."""
    overflow, capacity = setup.overflow, setup.capacity
    if overflow is None or not overflow.discards:
        return ()
    chosen = capacity is not None and overflow.setting.place.key == capacity.place.key
    why = "there is no other policy" if chosen else f"{overflow.setting.place.key} is {overflow.setting.text}"
    return (f"Documents of more than {setup.row} {LOST[overflow.policy]}: {why}. {COUNTED}.",)


_LAYOUTS: Final[Mapping[str, str]] = {
    "padded": "none: one document per row",
    "flattened": "the documents of a batch end to end, without padding",
    "packed": "whole documents share rows",
    "cut": "documents are cut and concatenated",
    "unknown": "not known before it runs",
}
_TOLD: Final[Mapping[str, str]] = {
    "nothing": "none",
    "positions": "positions that restart",
    "edges": "positions that restart, cu_seq_lens and seq_idx",
    "mask": "a mask over pairs of tokens",
    "unknown": "",
}


def _facts(setup: Setup) -> tuple[tuple[str, str], ...]:
    overflow = setup.overflow
    model = setup.model
    return (
        ("packing", _LAYOUTS[setup.layout]),
        ("boundaries", _TOLD[setup.told] if setup.joined else ""),
        ("attention", setup.attention.setting.text if setup.attention else ""),
        ("sealed", f"by {setup.sealed.text}" if setup.sealed else ""),
        ("model type", f"{model.type}{'' if model.certain else ', by its name'}" if model else ""),
        ("capacity", setup.capacity.text if setup.capacity else ""),
        ("longer documents", overflow.policy if overflow else ""),
        ("rows per device", setup.rows_per_device.text if setup.rows_per_device else ""),
        ("tokens split over devices", ", ".join(f"{axis.kind} {axis.size.text}" for axis in setup.parallel)),
    )


def number_of_version(version: str) -> tuple[int, ...]:
    """A version as numbers that compare; what follows them (``rc1``, ``+cu12``) is left out.

    Raises:
        AuditError: it does not begin with a number.

    Example:
        >>> number_of_version("1.10.0.dev0") > number_of_version("1.9.2")
        True
    """
    numbers = re.match(r"v?(\d+(?:\.\d+)*)", version.strip())
    if numbers is None:
        raise AuditError(f"version {version!r} is no version; expected numbers, as in trl==1.16.0")
    return tuple(int(part) for part in numbers[1].split("."))


def in_versions(claim: Claim, versions: Versions, *any_of: Bound) -> tuple[Claim, ...]:
    """A claim that is true if any of these bounds holds, as far as the versions are known.

    Args:
        claim: what is then so.
        versions: those that are known.
        any_of: bounds, one of which is enough.

    Returns:
        Nothing if none holds; the claim itself if one does; the claim as one that depends on a version otherwise.

    Example:
        >>> claim = Claim(what="w", setting=Setting(value=1, place=Place(key="k")), way_out="o")
        >>> [one.versions for one in in_versions(claim, {}, ("trl", "<", "0.23"))]
        ['trl < 0.23']
        >>> in_versions(claim, {"trl": "1.16.0"}, ("trl", "<", "0.23"))
        ()
    """
    answers = {bound: holds(versions, bound) for bound in any_of}
    if any(answer is True for answer in answers.values()):
        return (claim,)
    open_ones = [bound for bound, answer in answers.items() if answer is None]
    if not open_ones:
        return ()
    versions_of_it = " or ".join(" ".join(bound) for bound in open_ones)
    past = all(map(_is_past, open_ones))
    return (replace(claim, certainty="depends on version", versions=versions_of_it, past=past),)


def _is_past(bound: Bound) -> bool:
    package, relation, limit = bound
    newest = NEWEST_A_YEAR_AGO.get(package)
    return relation == "<" and newest is not None and number_of_version(limit) <= number_of_version(newest)


def holds(versions: Versions, bound: Bound) -> bool | None:
    """Whether the known version of a package keeps a bound; ``None`` if it is not known."""
    package, relation, limit = bound
    if package not in versions:
        return None
    older = number_of_version(versions[package]) < number_of_version(limit)
    return older if relation == "<" else not older
