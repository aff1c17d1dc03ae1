"""Plots: the numbers that were given, at their places, in the page's colours; and without matplotlib, an error."""

import math
import re
import sys
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pages import objections, parsed
from test_compare_page import a_comparison
from test_probe_page import everything

from hermetic.compare import page as compare_page
from hermetic.errors import MissingDependencyError
from hermetic.markup import Histogram, Line, Lines, Verdict, document, require_plots, section
from hermetic.markup.inline import COLOUR, SIZES
from hermetic.probe.page import page as probe_page

TENTH = 0.05 + 1e-9
"""Coordinates are rounded to a tenth of a pixel."""


def histogram(counts):
    edges = [str(at) for at in range(len(counts) + 1)]
    return Histogram(name="n", about="a", edges=edges, bars=edges[1:], counts=counts, across="tokens", up="documents")


def lines(*means, band=None):
    some = [
        Line(name=f"line {look}", look=look, mean=mean, low=None if band is None else band[0], high=band and band[1])
        for look, mean in enumerate(means)
    ]
    points = [float(at) for at in range(len(means[0]))]
    return Lines(name="n", about="a", points=points, lines=some, across="step", up="nats")


def paths(figure, colour, *, kind="wide", filled=False):
    """The points of every path of a colour in one of the two drawings."""
    (svg,) = (svg for svg in parsed(figure).iter("svg") if svg.get("class") == f"plot {kind}")
    look = f"{'fill' if filled else 'stroke'}:var(--{colour})"
    found = (path.get("d") for path in svg.iter("path") if look in path.get("style"))
    return [[(float(x), float(y)) for x, y in re.findall(r"[ML] (\S+) (\S+)", d)] for d in found]


def widths(figure, colour):
    svg = next(svg for svg in parsed(figure).iter("svg") if svg.get("class") == "plot wide")
    styles = [path.get("style") for path in svg.iter("path") if f"stroke:var(--{colour})" in path.get("style")]
    return [float(re.search(r"stroke-width:([\d.]+)", style)[1]) for style in styles]


def test_a_line_under_others_is_wider_than_they_are_and_the_legend_names_them():
    low, high = [0.0, 1.0, 2.0], [0.0, 1.0, 200.0]
    figure = lines(low, high, [0.5, 1.5, 1.5], low).figure()
    assert "line 0 (lies under line 2 and line 3)</span>" in figure
    assert "line 2 (lies under line 3)</span>" in figure
    assert ">line 1</span>" in figure
    assert ">line 3</span>" in figure
    assert [widths(figure, f"c{look}") for look in range(4)] == [[5.0], [1.8], [3.4], [1.8]]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ([0.0, 1.0, 2.0], [0.0, 1.02, 2.0]),  # two pixels apart at one point
        ([0.0, 1.0, math.nan], [0.0, 1.0, 2.0]),  # goes on where the other has a gap
        ([math.nan] * 3, [math.nan] * 3),  # neither is drawn
    ],
)
def test_lines_that_can_be_told_apart_lie_under_none(first, second):
    assert "lies under" not in lines(first, second).figure()


def whole(*figures):
    verdict = Verdict(kind="test", subject="s", look="good", word="w", sentence="s")
    return document(verdict, [section("Plots", *figures)])


@settings(max_examples=25)
@given(st.lists(st.integers(min_value=0, max_value=10**7), min_size=1, max_size=24))
def test_bars_are_as_high_as_their_counts_and_the_table_has_them_all(counts):
    figure = histogram(counts).figure()
    for kind in SIZES:
        bars = paths(figure, "bar", kind=kind, filled=True)
        heights = [max(y for _, y in bar) - min(y for _, y in bar) for bar in bars]
        shown = [count for count in counts if count]
        assert len(bars) == len(shown)
        for height, count in zip(heights, shown, strict=True):
            assert height == pytest.approx(max(heights) * count / max(shown), abs=2 * TENTH)
    table = [line[1].text for line in parsed(figure).find(".//tbody")]
    assert table == [f"{count:,}" for count in counts]
    assert objections(whole(figure)) == []


def test_a_line_is_where_its_numbers_are():
    (points,) = paths(lines([4.0, 3.0, 2.0, 2.0]).figure(), "c0")
    xs, ys = zip(*points, strict=True)
    assert [b - a for a, b in pairwise(xs)] == pytest.approx([xs[1] - xs[0]] * 3, abs=2 * TENTH)
    assert ys[1] - ys[0] == pytest.approx(ys[2] - ys[1], abs=2 * TENTH)
    assert ys[0] < ys[1] < ys[2] == ys[3]


def test_a_band_goes_along_the_highest_and_back_along_the_lowest():
    figure = lines([3.0, 2.0], band=([2.0, 1.0], [4.0, 4.0])).figure()
    (mean,), (band,) = paths(figure, "c0"), paths(figure, "c0", filled=True)
    (high_left, high_right, low_right, low_left, *_) = band
    assert high_left[0] == low_left[0] == mean[0][0]
    assert high_right[0] == low_right[0] == mean[1][0]
    assert high_left[1] < mean[0][1] < low_left[1]
    assert high_right[1] < mean[1][1] < low_right[1]
    assert paths(lines([3.0, 2.0]).figure(), "c0", filled=True) == []


@pytest.mark.parametrize("gap", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_a_gap_in_a_plot_and_a_word_in_its_table(gap):
    figure = lines([3.0, gap, 1.0, 2.0], band=([2.0, gap, 0.5, 1.0], [4.0, gap, 1.5, 3.0])).figure()
    assert objections(whole(figure)) == []
    assert f">{gap:.4f} (" in figure
    (points,) = paths(figure, "c0")
    assert len(points) == 3
    assert objections(whole(lines([gap, gap]).figure())) == []


def test_nothing_that_is_counted_is_an_empty_plot_and_one_value_is_a_plot():
    for figure in (
        histogram([0, 0]).figure(),
        histogram([1]).figure(),
        lines([1.0]).figure(),
        lines([1.0, 1.0]).figure(),
    ):
        assert objections(whole(figure)) == []
    assert paths(histogram([0, 0]).figure(), "bar", filled=True) == []


def test_a_plot_has_no_colour_and_no_type_of_its_own_and_two_of_them_fit_on_a_page():
    figure = lines([3.0, 2.0], [2.0, 1.0], band=([1.0, 1.0], [4.0, 4.0])).figure() + histogram([1, 2]).figure()
    assert objections(whole(figure)) == []
    assert re.findall(r"#[0-9a-f]{6}|rgb\(|font-family|<style|xlink|\bid=", figure) == []
    assert set(re.findall(r"var\(--(\w+)\)", figure)) <= set(COLOUR)
    assert figure.count('role="img"') == 4
    assert figure == lines([3.0, 2.0], [2.0, 1.0], band=([1.0, 1.0], [4.0, 4.0])).figure() + histogram([1, 2]).figure()


def test_a_page_with_plots_needs_matplotlib_and_names_the_extra_and_others_do_not(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    for refused in (require_plots, lambda: compare_page(a_comparison())):
        with pytest.raises(
            MissingDependencyError, match=r"needs? the package 'matplotlib'.*pip install 'hermetic\[report\]'"
        ):
            refused()
    assert "<svg" in probe_page(everything())

    from hermetic.compare import compare

    with pytest.raises(MissingDependencyError, match="matplotlib"):
        compare(model="nope", data="nope", out=tmp_path / "out")  # before anything is loaded
    assert not (tmp_path / "out").exists()


def test_a_value_that_is_not_a_number_does_not_break_the_picture_of_a_probe():
    report = everything()
    report.influence[1, 0] = math.nan
    report.gradients[0, 0] = math.inf
    assert objections(probe_page(report)) == []
