"""The page of a report: whole, strict, self-contained, and true to the numbers."""

import doctest
import json
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from models import calling, tiny
from pages import HOSTILE, SHOWN, objections, parsed, text_of
from torch import nn

import hermetic
from hermetic.errors import ProbeError, UnsupportedError
from hermetic.markup import STEPS, Scale, escaped
from hermetic.probe import Finding, LayerReading, LeakReport, TargetReading, reach, token_reach, with_details
from hermetic.probe.page import MAX_DRAWN, page
from hermetic.probe.wording import headline, size_of


def a_report(**changes):
    fields = {
        "subject": "a model",
        "verdict": "leak",
        "findings": (Finding(code="HM100", what="w", size=1.0, unit="logits", where="there", way_out="o"),),
        "lengths": (2, 3),
        "influence": torch.tensor([[0.0, 0.0], [0.5, 0.0]], dtype=torch.float64),
        "gradients": None,
        "equivalence": None,
        "gradient_equivalence": None,
        "noise_floor": None,
        "instruments": ("swap",),
        "not_run": (),
    }
    return LeakReport(**{**fields, **changes})


def everything(text="text"):
    """A report with every field, and the same text wherever there is any."""
    of_documents = torch.tensor([0.0, 1e-3], dtype=torch.float64)
    return a_report(
        subject=text,
        findings=(Finding(code=text, what=text, size=2e-9, unit=text, where=text, way_out=text),),
        gradients=torch.tensor([[1.0, 0.0], [1e-30, 2.0]], dtype=torch.float64),
        gradients_measured=torch.tensor([[True, False], [True, True]]),
        equivalence=of_documents,
        gradient_equivalence=0.5,
        noise_floor=1e-6,
        instruments=("swap", text),
        not_run=((text, text),),
        lengthening=of_documents,
        causality=of_documents,
        targets=TargetReading(expected=(1, 2), trained=(1, 2), across=(0,)),
        weights=((text, 1e-8),),
        layers=(LayerReading(name=text, kind=text, influence=1e-8, reach=3),),
        note=(text,),
        scope=text,
        reach=torch.tensor([[float(s <= t) for s in range(5)] for t in range(5)], dtype=torch.float64),
    )


def squares(report, figure=0):
    """Of one picture: class and hover text of each square, row by row."""
    found = next([*parsed(page(report)).iter("figure")][figure].iter("svg"))
    return [(rect.get("class"), rect.find("title").text) for rect in found.iter("rect")]


@pytest.mark.parametrize("report", [a_report(), everything(), everything(HOSTILE)], ids=["little", "all", "hostile"])
def test_a_page_is_strict_and_needs_nothing_but_itself(report):
    text = page(report)
    assert text.startswith("<!DOCTYPE html>")
    assert objections(text) == []


@pytest.mark.parametrize(
    ("break_it", "objection"),
    [
        (lambda text: text.replace("<body>", '<body><img src="x"/>'), "element img"),
        (lambda text: text.replace("<body>", '<body onload="x">'), "onload of body"),
        (lambda text: text.replace("</style>", "@import 'x';</style>"), "url "),
        (lambda text: text.replace("url(#zero)", "url(http://x)"), "url http://x"),
        (lambda text: text.replace('id="unmeasured"', 'id="zero"'), "id zero"),
        (lambda text: text.replace('id="unmeasured"', 'id="other"'), "no id unmeasured"),
        (lambda text: text.replace('cx="0.5"', 'cx="nan"'), "cx of circle"),
        (lambda text: text.replace('href="#details"', 'href="other.html"'), "href other.html"),
        (lambda text: text.replace('href="#details"', 'href="#nowhere"'), "no id nowhere"),
        (lambda text: text.replace('aria-label="swap', 'title="swap'), "svg without a name"),
        (lambda text: text.replace('<html lang="en">', "<html>"), "no language"),
        (lambda text: text.replace("<h3>", "<h4>").replace("</h3>", "</h4>"), "h4 after h2"),
        (lambda text: text.replace('<th scope="col">', "<th>"), "th without a scope"),
    ],
)
def test_the_strict_check_can_fail(break_it, objection):
    assert objection in objections(break_it(page(everything())))


def test_all_text_is_escaped_and_still_there():
    text = page(everything(HOSTILE))
    assert "<script" not in text
    assert text_of(text).count(SHOWN) >= 12


@given(st.text())
def test_any_text_can_stand_in_a_page_and_printable_text_stands_there_as_it_is(text):
    found = parsed(f'<p title="{escaped(text)}">{escaped(text)}</p>')
    assert len(found.text or "") == len(text)
    assert all(b in (a, "\ufffd") for a, b in zip(text, found.text or "", strict=True))
    if text.isprintable():
        assert (found.text or "") == found.get("title") == text


SIZES = st.floats(min_value=5e-324, max_value=1.7e308)


@given(st.lists(SIZES, min_size=1))
def test_a_scale_is_monotone_and_spans_its_numbers(values):
    scale = Scale.over([*values, 0.0, None])
    steps = [scale.step(value) for value in sorted(values)]
    assert steps == sorted(steps)
    assert 0 <= steps[0] <= steps[-1] == STEPS - 1
    assert scale.share(float("inf")) == scale.share(float("nan")) == 1.0
    assert Scale.over([0.0, None]) is None


def test_an_exact_zero_a_tiny_number_and_what_was_not_measured_look_different():
    gradients = torch.tensor([[1.0, 0.0], [1e-30, 2.0]], dtype=torch.float64)
    measured = torch.tensor([[True, False], [True, True]])
    report = a_report(influence=None, gradients=gradients, gradients_measured=measured)
    assert squares(report) == [
        ("b0", "document 0 (2 tokens) when document 0 (2 tokens) is asked by gradients: 1"),
        ("n", "document 0 (2 tokens) when document 1 (3 tokens) is asked by gradients: not measured"),
        ("a6", "document 1 (3 tokens) when document 0 (2 tokens) is asked by gradients: 1e-30"),
        ("b6", "document 1 (3 tokens) when document 1 (3 tokens) is asked by gradients: 2"),
    ]
    assert [look for look, _ in squares(a_report())] == ["n", "z", "a6", "n"]


def test_colours_are_logarithmic_and_each_decade_is_as_wide():
    sizes = torch.tensor([10.0**-n for n in range(STEPS + 1)], dtype=torch.float64)
    matrix = torch.zeros(STEPS + 2, STEPS + 2, dtype=torch.float64)
    matrix[-1, : STEPS + 1] = sizes * 1.001
    matrix[-1, STEPS] = 1e-7
    looks = [look for look, _ in squares(a_report(lengths=(1,) * (STEPS + 2), influence=matrix))]
    assert looks[-(STEPS + 2) : -1] == ["a6", *(f"a{step}" for step in reversed(range(STEPS)))]


@pytest.mark.parametrize("count", [MAX_DRAWN, MAX_DRAWN + 1, 3 * MAX_DRAWN])
def test_more_documents_than_can_be_drawn_are_drawn_in_groups_that_hide_no_leak(count):
    influence = torch.zeros(count, count, dtype=torch.float64)
    influence[count - 1, 1] = 1e-20
    report = a_report(lengths=(1,) * count, influence=influence, equivalence=influence[:, 1])
    text, drawn = page(report), squares(report)
    each = -(-count // MAX_DRAWN)

    assert len(drawn) == (-(-count // each)) ** 2 <= MAX_DRAWN**2
    assert [said.split(": ")[1] for look, said in drawn if look not in "zn"] == ["1e-20"]
    assert (f"{count} documents in groups of {each}" in text) == (f"of {count} documents that differ most" in text)
    assert (f"{count} documents in groups of {each}" in text) == (count > MAX_DRAWN)
    assert f"Largest: {count - 1} reached by 1: 1.0e-20." in text
    assert f">{count - 1}</th>" in text  # the worst document is among those in the table
    assert len(text) < 2**20


def test_reach_of_other_documents_is_refused():
    with pytest.raises(ProbeError, match=r"reach has shape \(4, 4\); expected \(5, 5\), for the documents .* 5 tokens"):
        page(a_report(reach=torch.zeros(4, 4)))


VERDICTS = {
    ("sealed", ("swap", "solo")): "No document reaches another, and each is computed as if it were alone.",
    ("sealed", ("swap",)): "No document reaches another.",
    ("sealed", ("solo",)): "Nothing was found, but whether documents reach each other was not measured.",
    ("leak", ("gradient",)): "Document 0 is read.",
    ("distortion", ("swap",)): "No document reaches another, but document 0 is read.",
    ("not_causal", ("causality",)): "Document 0 is read; whether documents reach each other was not measured.",
    ("unsupported", ()): "It runs a document alone and fails on packed ones.",
}


@pytest.mark.parametrize(("case", "sentence"), VERDICTS.items(), ids=str)
def test_the_headline_claims_no_more_than_was_measured(case, sentence):
    verdict, instruments = case
    found = (Finding(code="HM100", what="document 0 is read", size=1.0, unit="u", where="w", way_out="o"),)
    report = a_report(verdict=verdict, instruments=instruments, findings=() if verdict == "sealed" else found)
    assert headline(report) == sentence
    assert sentence in "".join(parsed(page(report)).itertext())


@pytest.mark.parametrize("instruments", [("swap", "solo"), ("solo",)], ids=str)
def test_a_model_that_is_not_sealed_is_called_free_of_leaks_for_one_call_and_no_more(instruments):
    report = a_report(verdict="sealed", findings=(), instruments=instruments)
    scoped = replace(report, scope="called in one way")
    looks = {}
    for one in (report, scoped):
        root = parsed(page(one))
        (verdict,) = (div for div in root.iter("div") if "verdict" in (div.get("class") or "").split())
        looks[one] = (verdict.get("class"), next(verdict.iter("p")).text)
        todo = next(part for part in root.iter("section") if part[0].text == "What to do")
        assert ("Nothing" in "".join(todo.itertext())) == (one is report)
        assert ("called in one way" in "".join(todo.itertext())) == (one is scoped)
    what = "leak" if "swap" in instruments else "finding"
    assert looks == {report: ("verdict good", "sealed"), scoped: ("verdict unsure", f"no {what} in this call")}
    assert headline(scoped).startswith("In this call no")
    assert scoped.to_dict()["verdict"] == "sealed"
    assert "sealed" not in text_of(page(scoped))


def test_a_single_token_is_one_token_on_the_page_and_a_single_count_one_thing():
    text = page(a_report(lengths=(1, 3)))
    assert "document 0 (1 token)" in text
    assert "1 tokens" not in text
    ones, logits = (
        Finding(code="c", what="w", size=1.0, unit=unit, where="", way_out="") for unit in ("ones", "logits")
    )
    assert (size_of(ones), size_of(replace(ones, size=2.0)), size_of(logits)) == ("1 one", "2 ones", "1 logits")


# reach


def reached(model, **options):
    """Which entries are not 0.0."""
    return token_reach(model, **options) != 0.0


def allowed(lengths):
    """Causal within each document, nothing across."""
    owner = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))
    return (owner[:, None] == owner) & torch.ones(len(owner), len(owner), dtype=torch.bool).tril()


def test_the_tokens_of_a_sealed_model_reach_the_later_ones_of_their_document_and_no_others():
    assert torch.equal(reached(hermetic.seal(tiny("llama"))), allowed((11, 13, 6, 1)))


def test_the_tokens_of_a_leaking_model_reach_all_later_ones():
    found = reached(calling(tiny("llama"), "all_ones_mask"), lengths=(4, 1, 5))
    assert torch.equal(found, torch.ones(10, 10, dtype=torch.bool).tril())


def test_a_window_shows_as_it_is_applied():
    class Window(nn.Module):
        """Each token is the sum of itself and the one before, whosoever it is."""

        def __init__(self):
            super().__init__()
            self.table = nn.Embedding(20, 3)

        def forward(self, input_ids):
            rows = self.table(input_ids[0])
            return rows + torch.cat([torch.zeros(1, 3), rows[:-1]])

    near = torch.ones(5, 5, dtype=torch.bool).tril().triu(-1)
    model = Window()
    assert torch.equal(reached(model, lengths=(2, 3)), near)
    assert not any(parameter.grad is not None or not parameter.requires_grad for parameter in model.parameters())


def test_what_has_no_reach_is_refused_with_the_reason():
    with pytest.raises(ProbeError, match=r"got 65 tokens; expected at most 64, for each takes a backward"):
        token_reach(tiny("llama"), lengths=(60, 5))
    with pytest.raises(ProbeError, match=r"lets no gradient of its logits reach a torch.nn.Embedding"):
        token_reach(lambda batch: nn.functional.one_hot(batch.input_ids, 32).float())
    with pytest.raises(UnsupportedError, match="fails on packed ones"):
        token_reach(tiny("qwen3_5"))


def test_the_example_of_token_reach_is_true():
    results = doctest.testmod(reach)
    assert (results.failed, results.attempted) == (0, 4)


def test_details_are_of_the_documents_of_the_report_and_stay_away_where_nothing_can_be_measured():
    model = hermetic.seal(tiny("llama"))
    report = hermetic.probe(model, lengths=(3, 2))
    detailed = with_details(report, model, per_layer=True, per_token=True)
    assert torch.equal(detailed.reach != 0.0, allowed((3, 2)))
    assert [layer.influence for layer in detailed.layers] == [0.0, 0.0]
    assert json.loads(detailed.to_json())["reach"] == detailed.reach.tolist()
    assert with_details(report, model).to_dict() == report.to_dict()

    assert with_details(replace(report, lengths=(60, 5)), model, per_token=True).reach is None
    assert with_details(replace(report, instruments=("swap",)), model, per_token=True).reach is None
    unsupported = replace(report, verdict="unsupported")
    assert with_details(unsupported, model, per_layer=True, per_token=True) is unsupported
