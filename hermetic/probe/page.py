"""A report as one page: no network, no script; pictures are inline SVG, and all text is escaped.

Algorithm: each section is a function from the report to markup, empty where nothing was measured. Nothing is derived:
what the page shows is what an instrument read. The markup is XML at the same time, so any strict parser reads it.
Guarantee: a square without a colour is an exact zero; a square that was not measured is hatched.
Price: about 200 bytes for each square, so 64 documents take a megabyte; more are drawn in groups.
"""

from collections.abc import Iterator, Sequence
from itertools import accumulate

import torch

from hermetic.errors import ProbeError
from hermetic.markup import (
    STEPS,
    HeatMap,
    Look,
    Scale,
    Section,
    Verdict,
    cell,
    counted,
    document,
    escaped,
    facts,
    finding,
    number,
    ornament,
    row,
    scrolling,
    section,
    soft,
    table,
)
from hermetic.probe.report import Finding, LayerReading, LeakReport
from hermetic.probe.wording import (
    headline,
    is_beyond_noise,
    measured_pairs,
    reach_in_words,
    readings,
    size_of,
    verdict_in_words,
)

MAX_DRAWN = 64
"""Squares along an edge of a picture, and lines of the table of documents."""

_NAMED = 3
"""Pairs that the text below a picture names."""

_COLOURS = "Colours are logarithmic: red crosses documents, blue stays within one; a dot is an exact zero."


def page(report: LeakReport) -> str:
    """The report as the text of an HTML file.

    Raises:
        ProbeError: ``report.reach`` is not of the report's own documents.
    """
    return document(_verdict(report), [to_do(report.findings, scope=report.scope), *evidence(report)])


def evidence(report: LeakReport) -> tuple[Section | None, ...]:
    """What was measured, picture by picture, for this page and for those that hold a report.

    Raises:
        ProbeError: ``report.reach`` is not of the report's own documents.
    """
    sections = (_documents_map, _tokens_map, _layers, _documents, _instruments, _notes)
    return tuple(section_of(report) for section_of in sections)


def _verdict(report: LeakReport) -> Verdict:
    tokens, floor = sum(report.lengths), report.noise_floor
    probed = f"{counted(len(report.lengths), 'document')}, {counted(tokens, 'token')}"
    measured = f"{probed}; measured by {', '.join(report.instruments) or 'none'}"
    noise = "" if floor is None else f"; rounding alone moves logits by {number(floor)} (noise floor)"
    return Verdict(
        kind="probe",
        subject=report.subject,
        look=_look(report),
        word=verdict_in_words(report),
        sentence=headline(report),
        facts=f"{measured}{noise}.",
    )


def _look(report: LeakReport) -> Look:
    """What holds for one call is not a model that keeps documents apart."""
    if report.verdict != "sealed":
        return "bad"
    return "good" if report.scope is None else "unsure"


def to_do(findings: Sequence[Finding], *, scope: str | None = None) -> Section:
    """Every finding with its way out, and which call all of it is about, if that has to be said."""
    about = () if scope is None else (f"<p>{escaped(scope)}</p>",)
    if not findings:
        return section("What to do", *(about or ("<p>Nothing: there is no finding.</p>",)))
    shown = (
        finding(code=one.code, what=f"{one.what} ({size_of(one)})", where=(one.where,), way_out=one.way_out)
        for one in findings
    )
    return section("What to do", *shown, *about)


def _documents_map(report: LeakReport) -> Section | None:
    figures = []
    if report.influence is not None:
        figures.append(_figure(report, report.influence, "swap: how far logits move", "is replaced"))
    if report.gradients is not None:
        figures.append(_figure(report, report.gradients, "gradient: of logits at embeddings", "is asked by gradients"))
    if not figures:
        return None
    how = f"Row: the document that is reached. Column: the one that reaches it. {_COLOURS}"
    return section("Which document reaches which", soft(how), f'<div class="maps">{"".join(figures)}</div>')


def _figure(report: LeakReport, matrix: torch.Tensor, name: str, when: str) -> str:
    """One ``[D, D]`` picture; beyond ``MAX_DRAWN`` documents, each square is the largest of a group of pairs."""
    count = len(matrix)
    each = -(-count // MAX_DRAWN)
    groups = [range(start, min(start + each, count)) for start in range(0, count, each)]
    values = _largest(_known(report, matrix), each).tolist()
    drawn = HeatMap(
        name=f"{name}, {count} by {count} documents",
        values=[[None if value < 0.0 else value for value in row] for row in values],
        own=lambda i, j: i == j and each == 1,
        title=lambda i, j: f"{_named(report, groups[i])} when {_named(report, groups[j])} {when}",
        labels=[str(group.start) for group in groups],
        about=_largest_pairs(report, matrix),
    )
    grouped = "" if each == 1 else f"{count} documents in groups of {each}; a square is the largest of its pairs. "
    caption = f"<figcaption>{escaped(grouped + _largest_pairs(report, matrix))}</figcaption>"
    picture = scrolling(drawn.svg(), name=drawn.name)
    return f"<figure><h3>{escaped(name)}</h3>{picture}{_legend(drawn)}{caption}</figure>"


def _known(report: LeakReport, matrix: torch.Tensor) -> torch.Tensor:
    """``[D, D]`` with -1.0 where nothing was measured: swapping a document says nothing about itself."""
    known = measured_pairs(report, matrix)
    if matrix is report.gradients and len(matrix) <= MAX_DRAWN:
        known = known | torch.eye(len(matrix), dtype=torch.bool)
    return matrix.double().masked_fill(~known, -1.0)


def _largest(matrix: torch.Tensor, each: int) -> torch.Tensor:
    """``[G, G]``: the largest of every square of ``each`` by ``each``; [[1, 2], [3, 4]] by 2 is [[4]]."""
    groups = -(-len(matrix) // each)
    filled = matrix.new_full((groups * each, groups * each), -1.0)
    filled[: len(matrix), : len(matrix)] = matrix
    return filled.view(groups, each, groups, each).amax(dim=(1, 3))


def _named(report: LeakReport, group: range) -> str:
    if len(group) == 1:
        return f"document {group.start} ({counted(report.lengths[group.start], 'token')})"
    return f"one of documents {group.start} to {group.stop - 1}"


def _largest_pairs(report: LeakReport, matrix: torch.Tensor) -> str:
    crossing = torch.where(measured_pairs(report, matrix), matrix, 0.0).flatten()
    places = torch.argsort(crossing, descending=True, stable=True)[:_NAMED].tolist()
    largest = [(divmod(place, len(matrix)), float(crossing[place])) for place in places if crossing[place] != 0.0]
    if not largest:
        return "Every pair of different documents that was measured is exactly 0."
    return "Largest: " + "; ".join(f"{i} reached by {j}: {number(size)}" for (i, j), size in largest) + "."


def _legend(drawn: HeatMap) -> str:
    shown = [*_swatches(drawn)]
    for kind, own in (("a", False), ("b", True)):
        scale = drawn.scale(own=own)
        if scale is not None:
            where = "within" if own else "across"
            shown.append(f"<span>{escaped(where)} {number(scale.low)} {_ramp(kind, scale)} {number(scale.high)}</span>")
    return f'<div class="legend">{"".join(shown)}</div>'


def _swatches(drawn: HeatMap) -> Iterator[str]:
    flat = [value for row in drawn.values for value in row]
    for look, said, there in (("z", "exactly 0", 0.0 in flat), ("n", "not measured", None in flat)):
        if there:
            square = f'<rect class="{look}" width="14" height="14"/>'
            yield f"<span>{ornament(square, width=14)}{said}</span>"


def _ramp(kind: str, scale: Scale) -> str:
    squares = []
    for step in range(STEPS):
        low, high = scale.edges(step)
        said = f"<title>{number(low)} to {number(high)}</title>"
        squares.append(f'<rect class="{kind}{step}" x="{14 * step}" width="14" height="14">{said}</rect>')
    return ornament("".join(squares), width=14 * STEPS)


def _tokens_map(report: LeakReport) -> Section | None:
    if report.reach is None:
        return None
    tokens = sum(report.lengths)
    if tuple(report.reach.shape) != (tokens, tokens):
        raise ProbeError(
            f"reach has shape {tuple(report.reach.shape)}; expected ({tokens}, {tokens}), for the documents of the "
            f"report have {tokens} tokens together. Take token_reach of the same lengths"
        )
    owner = [document for document, length in enumerate(report.lengths) for _ in range(length)]
    starts = [0, *accumulate(report.lengths)]

    def name(token: int) -> str:
        return f"token {token - starts[owner[token]]} of document {owner[token]}"

    drawn = HeatMap(
        name=f"which of {tokens} tokens reaches which",
        values=report.reach.tolist(),
        own=lambda i, j: owner[i] == owner[j],
        title=lambda i, j: f"{name(i)} at {name(j)}",
        labels=[str(token) for token in range(tokens)],
        seams=sorted(set(starts[1:-1])),
        about=f"{_crossings(report.reach, owner)} of its squares cross documents and are not 0.",
    )
    how = (
        "Measured, not read off a mask: the gradient of each token's logits (row) at each token's embeddings (column), "
        f"through all layers. Lines are the seams between documents. {_COLOURS}"
    )
    return section(
        "Which token reaches which",
        soft(how),
        f"<figure>{scrolling(drawn.svg(), name=drawn.name)}{_legend(drawn)}</figure>",
    )


def _crossings(reach: torch.Tensor, owner: list[int]) -> int:
    document = torch.tensor(owner)
    return int(((reach != 0.0) & (document[:, None] != document)).sum())


def _layers(report: LeakReport) -> Section | None:
    if report.layers is None:
        return None
    scale = Scale.over(layer.influence for layer in report.layers)
    how = "The largest gradient of one document's outputs at another's inputs, of each layer by itself; bars are log."
    head = ("layer", "carries across", "gradient", "reaches behind a seam")
    rows = (_layer(layer, scale) for layer in report.layers)
    return section("Layer by layer", soft(how), table(head, rows, name="Layer by layer", numbers={2}))


def _layer(layer: LayerReading, scale: Scale | None) -> str:
    width = 0.0 if scale is None or layer.influence == 0.0 else 8 + 92 * scale.share(layer.influence)
    kind = f' <span class="soft">{escaped(layer.kind)}</span>'
    return row(
        layer.name,
        f'<td class="wide"><div class="bar"><i style="width:{width:.1f}%"></i></div></td>',
        cell(number(layer.influence), "number ok" if layer.influence == 0.0 else "number beyond"),
        cell(reach_in_words(layer.reach)),
        kind="name",
        more=kind,
    )


def _documents(report: LeakReport) -> Section | None:
    """What was read of each document by itself; of many, of those that differ most."""
    columns = {
        "packed against alone": report.equivalence,
        "another gets longer": report.lengthening,
        "its last token changes": report.causality,
    }
    found = {name: values for name, values in columns.items() if values is not None}
    if not found and report.targets is None:
        return None
    count = len(report.lengths)
    worst = torch.stack(list(found.values())).amax(dim=0) if found else torch.zeros(count)
    chosen = sorted(torch.argsort(worst, descending=True, stable=True)[:MAX_DRAWN].tolist())
    head = ["document", "tokens", *found, *([] if report.targets is None else ["trained tokens"])]
    rows = (_document(report, document, found) for document in chosen)
    more = "" if count <= MAX_DRAWN else f" The {MAX_DRAWN} of {count} documents that differ most."
    whole = table(head, rows, name="Document by document", numbers=range(1, len(head)))
    return section("Document by document", soft(f"The largest change of its logits.{more}"), whole)


def _document(report: LeakReport, document: int, found: dict[str, torch.Tensor]) -> str:
    cells = [cell(str(report.lengths[document]), "number")]
    for values in found.values():
        size = float(values[document])
        cells.append(cell(number(size), "number beyond" if is_beyond_noise(report, size) else "number ok"))
    if report.targets is not None:
        trained = "?" if report.targets.trained is None else str(report.targets.trained[document])
        across = " and another's" if document in report.targets.across else ""
        look = "number beyond" if across else "number"
        cells.append(cell(f"{trained} of {report.targets.expected[document]}{across}", look))
    return row(str(document), *cells)


def _instruments(report: LeakReport) -> Section | None:
    read = [*readings(report), *((name, f"did not run: {why}") for name, why in report.not_run)]
    return section("What was measured", facts(read, name="Readings of the instruments")) if read else None


def _notes(report: LeakReport) -> Section | None:
    return section("Notes", *(f"<p>{escaped(note)}</p>" for note in report.note)) if report.note else None
