"""What is shown of a comparison: every arm in every table, the same numbers on the terminal and on a strict page."""

import io
import json
import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pages import HOSTILE, objections, parsed, text_of
from rich.console import Console

from hermetic.compare import ARMS, ArmResult, ArmRun, Comparison, Refusal, page, render
from hermetic.compare.curves import line_of, middles
from hermetic.compare.wording import COLUMNS, headline, shown, spread_of
from hermetic.train import TrainSettings

VERDICTS = dict(zip(ARMS, (None, "leak", "leak", "distortion", "sealed"), strict=True))


def a_run(seed, *, base=1.0, illusion=0.0):
    return ArmRun(
        seed=seed,
        losses=tuple(base + 2.0 / (step + 1) + 0.01 * seed for step in range(300)),
        train_loss=base + 0.01 * seed,
        heldout_loss=base + 0.25 + 0.01 * seed,
        train_illusion=illusion,
        heldout_illusion=illusion / 2,
        logit_difference=0.5,
        gradient_difference=1.5e-7,
        tokens_per_second=12345.0 + seed,
        memory=3 << 20,
    )


def an_arm(name, *, seeds=2, text="as it is", refusal=None):
    illusion = 0.125 if VERDICTS[name] == "leak" else 0.0
    return ArmResult(
        name=name,
        about=text,
        utilization=0.875,
        verdict=VERDICTS[name],
        runs=tuple(a_run(seed, base=1.0 - illusion, illusion=illusion) for seed in range(seeds)),
        refusal=refusal,
    )


def a_comparison(*, seeds=2, text="tiny"):
    refused = an_arm("mask_only", seeds=0, text=text, refusal=Refusal(code="HE701", seed=0, reason=f"no mask: {text}"))
    arms = tuple(refused if name == "mask_only" else an_arm(name, seeds=seeds, text=text) for name in ARMS)
    return Comparison(
        model=text,
        data=text,
        documents=1234,
        rows=500,
        heldout_documents=20,
        heldout_rows=10,
        capacity=512,
        steps=300,
        seeds=tuple(range(seeds)),
        settings=TrainSettings(),
        device="cpu",
        gradient_floor=1e-7,
        arms=arms,
    )


def on_terminal(comparison, width=200):
    console = Console(width=width, record=True, file=io.StringIO(), color_system=None)
    console.print(render(comparison))
    return console.export_text()


def lines_of(text, name):
    return [line for line in text.splitlines() if line.startswith(f"│{name} ")]


def test_every_arm_has_one_row_in_each_table_with_all_of_its_numbers():
    comparison = a_comparison()
    text = on_terminal(comparison)
    named = [tr for tr in parsed(page(comparison)).iter("tr") if tr[0].get("class") == "name"]
    assert tuple(tr[0].text for tr in named) == ARMS * 2
    rows = {name: [td.text or "" for tr in named if tr[0].text == name for td in tr] for name in ARMS}
    for arm in comparison.arms:
        assert len(lines_of(text, arm.name)) == 2
        shown_there = " ".join(lines_of(text, arm.name))
        for column in COLUMNS:
            number = shown(column, spread_of(comparison, arm, column))
            assert number in shown_there
            assert number in rows[arm.name] or not arm.runs
        assert "87.5%" in shown_there
        assert "87.5%" in rows[arm.name]


def test_the_first_table_of_the_page_holds_what_proves_that_an_arm_trains_what_padded_trains():
    first, second, *_ = parsed(page(a_comparison())).iter("thead")
    assert list(first.itertext()) == ["arm", "probe", "held-out", "to padded", "gradient", "used"]
    assert list(second.itertext()) == ["arm", "train", "illusion", "held out", "tok/s", "MiB"]


def test_the_legend_of_the_curves_says_which_lies_under_which():
    legend = next(div for div in parsed(page(a_comparison())).iter("div") if div.get("class") == "legend")
    assert ["".join(span.itertext()) for span in legend] == [
        "padded (lies under sealed)",
        "naive (lies under positions_only)",
        "positions_only",
        "sealed",
    ]


def test_an_arm_that_did_not_run_says_so_in_its_row_and_why_beside_the_tables():
    comparison = a_comparison()
    text, markup = on_terminal(comparison), "".join(parsed(page(comparison)).itertext())
    for shown_there in (text, markup):
        assert "cannot run" in shown_there
        assert "mask_only cannot run (seed 0): HE701: no mask: tiny" in shown_there
    assert "cannot run" in lines_of(text, "mask_only")[0]
    assert "cannot run" not in lines_of(text, "naive")[0]


def test_the_loss_illusion_is_said_of_arms_that_leak_and_of_no_other():
    text = on_terminal(a_comparison())
    assert "Loss illusion of naive: its rows cost 0.1250 nats per supervised token less than" in text
    assert "Loss illusion of positions_only" in text
    assert text.count("Loss illusion of") == 2
    inverted = replace(a_comparison(), arms=(replace(an_arm("naive"), runs=(a_run(0, illusion=-0.5),)),))
    assert "its rows cost 0.5000 nats per supervised token more than" in on_terminal(inverted)


@pytest.mark.parametrize(
    ("column", "values", "expected"),
    [
        ("train_loss", [1.0], "1.0000"),
        ("heldout_loss", [1.0, 2.0], f"1.5000 ±{math.sqrt(0.5):.4f}"),
        ("heldout_minus_padded", [0.25], "+0.2500"),
        ("train_illusion", [-1e-9], "0.0000"),
        ("gradient_difference", [1.5e-7, 1.5e-7], "1.5e-07 ±0e+00"),
        ("tokens_per_second", [12345.6], "12,346"),
        ("memory", [3 << 20], "3.0"),
    ],
)
def test_a_number_is_shown_with_its_deviation_where_there_is_one(column, values, expected):
    from hermetic.compare import Spread

    assert shown(column, Spread.over(values)) == expected
    assert shown(column, None) == ""


@pytest.mark.parametrize("text", ["tiny", HOSTILE], ids=["plain", "hostile"])
@pytest.mark.parametrize("seeds", [1, 3])
def test_the_page_is_strict_and_needs_nothing_but_itself(text, seeds):
    whole = page(a_comparison(seeds=seeds, text=text))
    assert whole.startswith("<!DOCTYPE html>")
    assert objections(whole) == []
    assert "<script" not in whole
    assert [svg.get("class") for svg in parsed(whole).iter("svg")].count("plot wide") == 1
    assert whole == page(a_comparison(seeds=seeds, text=text))


def test_a_hostile_name_does_not_reach_the_terminal():
    assert "\x1b" not in on_terminal(a_comparison(text=HOSTILE.replace("\ud800", "")))


def test_a_comparison_in_which_nothing_ran_is_shown_without_curves():
    nothing = tuple(replace(an_arm(name, seeds=0), refusal=Refusal(code="HE400", seed=0, reason="no")) for name in ARMS)
    comparison = replace(a_comparison(), arms=nothing)
    assert on_terminal(comparison).count("cannot run (seed 0)") == 5
    whole = page(comparison)
    assert objections(whole) == []
    assert "<figure>" not in whole


def test_a_line_is_the_mean_of_its_seeds_in_a_band_that_a_single_seed_has_not():
    line = line_of("padded", 0, [[4.0, 3.0], [2.0, 2.0]])
    assert (line.mean, line.low, line.high) == ([3.0, 2.5], [2.0, 2.0], [4.0, 3.0])
    alone = line_of("padded", 0, [[4.0, 3.0]])
    assert (alone.mean, alone.low, alone.high) == ([4.0, 3.0], None, None)


@given(st.integers(min_value=1, max_value=500))
def test_a_point_stands_in_the_middle_of_its_steps_and_no_step_is_left_out(steps):
    points = middles(steps)
    line = line_of("padded", 0, [[float(step + 1) for step in range(steps)]])
    assert line.mean == pytest.approx(points, rel=1e-12)
    assert len(points) == min(steps, 120)
    assert 1 <= points[0] < points[-1] <= steps or steps == 1


def with_sealed(**changes):
    comparison = a_comparison()
    arms = [replace(arm, **changes) if arm.name == "sealed" else arm for arm in comparison.arms]
    return replace(comparison, arms=tuple(arms))


def test_the_verdict_of_a_comparison_says_what_was_measured_of_its_sealed_rows():
    look, word, sentence = headline(a_comparison())
    assert (look, word) == ("good", "sealed")
    assert "differ from padded ones by 1.5e-07, where rounding alone makes 1.0e-07" in sentence
    assert "Documents reach each other in naive and positions_only." in sentence

    refused = with_sealed(runs=(), refusal=Refusal(code="HE400", seed=0, reason="no"))
    assert headline(refused) == ("bad", "sealed cannot run", "HE400: no")
    assert headline(with_sealed(verdict=None))[:2] == ("unsure", "no neighbours")
    assert headline(replace(a_comparison(), arms=()))[:2] == ("unsure", "not sealed")
    assert "HE400: no" in text_of(page(refused))


def test_the_result_is_plain_json():
    values = json.loads(json.dumps(a_comparison().to_dict(), allow_nan=False))
    assert [arm["name"] for arm in values["arms"]] == list(ARMS)
    assert values["arms"][3]["refusal"]["code"] == "HE701"
    assert values["arms"][3]["spread"]["train_loss"] is None
    assert values["arms"][1]["spread"]["heldout_minus_padded"]["mean"] == pytest.approx(-0.125)
