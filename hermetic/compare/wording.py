"""What a comparison says in words, for the terminal and for the page."""

from hermetic.compare.records import MEASURES, ArmResult, Comparison, Spread
from hermetic.markup import Look

NOT_RUN = "cannot run"

COLUMNS = {
    "train_loss": "train",
    "heldout_loss": "held-out",
    "heldout_minus_padded": "to padded",
    "train_illusion": "illusion",
    "heldout_illusion": "held out",
    "gradient_difference": "gradient",
    "tokens_per_second": "tok/s",
    "memory": "MiB",
}
"""Measures in the order of the tables, with their titles."""

LOSS_COLUMNS = ("train_loss", "heldout_loss", "heldout_minus_padded", "train_illusion", "heldout_illusion")
COST_COLUMNS = ("gradient_difference", "tokens_per_second", "memory")

PROOF_COLUMNS = ("heldout_loss", "heldout_minus_padded", "gradient_difference")
"""What says whether an arm trains what padded trains; a page has room for more columns, and shows these first."""

LEGEND = (
    "Losses are in nats per supervised token. train: of the last tenth of the steps, in the arm's own layout. "
    "held-out: of other documents, each run alone. to padded: held-out loss minus that of padded with the same seed. "
    "illusion: what trained rows cost more with each document alone than in the arm's layout, from the same trained "
    "weights; held out: the same of held-out rows. gradient: relative difference to the padded gradients of the first "
    "batch, before training. tok/s: real tokens. MiB: tensors at the peak of a forward and backward of the first "
    "batch, beyond the weights. used: real tokens per slot. ±: standard deviation over seeds."
)


def spread_of(comparison: Comparison, arm: ArmResult, column: str) -> Spread | None:
    """The numbers of one place in a table; ``None`` where nothing was measured."""
    return arm.spread(column) if column in MEASURES else comparison.heldout_change(arm)


def shown(column: str, spread: Spread | None) -> str:
    """A number with its deviation.

    Example:
        >>> shown("train_loss", Spread.over([1.0, 3.0])), shown("memory", Spread.over([2.0**21]))
        ('2.0000 ±1.4142', '2.0')
    """
    if spread is None:
        return ""
    mean, deviation = spread.mean, spread.deviation
    if column == "gradient_difference":
        return f"{mean:.1e}" if deviation is None else f"{mean:.1e} ±{deviation:.0e}"
    scale, digits = {"tokens_per_second": (1.0, 0), "memory": (2.0**20, 1)}.get(column, (1.0, 4))
    sign = "+" if column == "heldout_minus_padded" else ""
    text = f"{round(mean / scale, digits) + 0.0:{sign},.{digits}f}"  # no minus before a zero
    return text if deviation is None else f"{text} ±{deviation / scale:,.{digits}f}"


def introduction(comparison: Comparison) -> str:
    """What was compared on what."""
    seeds = len(comparison.seeds)
    return (
        f"{comparison.model} on {comparison.data}: {comparison.documents:,} documents in {comparison.rows:,} rows of "
        f"{comparison.capacity:,} tokens, {comparison.heldout_documents:,} held out; {comparison.steps:,} steps "
        f"for each arm with each of {seeds} seed{'s' if seeds > 1 else ''}, on {comparison.device}."
    )


def headline(comparison: Comparison) -> tuple[Look, str, str]:
    """What came out for sealed rows, in a word and in sentences; no more than was measured."""
    sealed = comparison.arm("sealed")
    if sealed is None:
        return "unsure", "not sealed", f"Sealed rows were not among the arms. {_leaking(comparison)}".strip()
    if sealed.refusal is not None:
        return "bad", f"sealed {NOT_RUN}", f"{sealed.refusal.code}: {sealed.refusal.reason}"
    if sealed.verdict is None:
        return "unsure", "no neighbours", "No row that was probed holds two documents, so nothing was there to seal."
    gradient = spread_of(comparison, sealed, "gradient_difference")
    assert gradient is not None  # noqa: S101 - an arm without a refusal has run
    how = (
        f"In sealed rows no document reaches another, and their gradients differ from padded ones by "
        f"{gradient.mean:.1e}, where rounding alone makes {comparison.gradient_floor:.1e}."
    )
    return "good", "sealed", f"{how} {_leaking(comparison)}".strip()


def _leaking(comparison: Comparison) -> str:
    """Which arms leak."""
    names = [arm.name for arm in comparison.arms if arm.verdict == "leak"]
    return f"Documents reach each other in {' and '.join(names)}." if names else ""


def advice(comparison: Comparison) -> list[str]:
    """What to do after it, in sentences."""
    look, _, _ = headline(comparison)
    leaking = [arm.name for arm in comparison.arms if arm.verdict == "leak"]
    lines = {
        "good": ["Train on sealed rows: hermetic train, or hermetic.seal(model) in your own loop."],
        "bad": ["Train padded until sealed rows run: what stopped them is below."],
        "unsure": ["Compare again with --arms padded,sealed, on rows that hold several documents."],
    }[look]
    if leaking:
        lines.append(
            "Look at the held-out loss: it asks every arm the same question. The train loss of "
            f"{' and '.join(leaking)} does not, because part of it is the context of other documents."
        )
    return lines


def floor_in_words(comparison: Comparison) -> str:
    """What a difference of gradients has to be above to mean anything."""
    return (
        f"Rounding alone makes the padded gradients differ by {comparison.gradient_floor:.1e} from those of each "
        "document in a call of its own; a difference of about that size is none."
    )


def illusions(comparison: Comparison) -> list[str]:
    """One sentence for each arm in which documents see each other: what of its loss is foreign context."""
    return [_illusion(arm) for arm in comparison.arms if arm.verdict == "leak" and arm.runs]


def refusals(comparison: Comparison) -> list[str]:
    """One sentence for each arm that did not run through."""
    return [
        f"{arm.name} {NOT_RUN} (seed {arm.refusal.seed}): {arm.refusal.code}: {arm.refusal.reason}"
        for arm in comparison.arms
        if arm.refusal is not None
    ]


def _illusion(arm: ArmResult) -> str:
    trained, heldout = (Spread.over([getattr(run, name) for run in arm.runs]) for name in _ILLUSIONS)
    direction = "less" if trained.mean >= 0 else "more"
    return (
        f"Loss illusion of {arm.name}: its rows cost {abs(trained.mean):.4f} nats per supervised token {direction} "
        f"than the same documents alone, from the same weights ({abs(heldout.mean):.4f} on held-out rows"
        f"{'' if (heldout.mean >= 0) == (trained.mean >= 0) else ', the other way'}). That part of its train loss is "
        "the context of other documents, which no document has when it is alone."
    )


_ILLUSIONS = ("train_illusion", "heldout_illusion")
