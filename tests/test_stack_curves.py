"""A training curve of any stack, sealed and packed, lies on the padded curve."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))
import curves

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::lightning.fabric.utilities.warnings.PossibleUserWarning"),
    pytest.mark.filterwarnings("ignore:.*does not have many workers.*"),
]

STEPS = 30


@pytest.mark.parametrize("stack", sorted(curves.STACKS))
def test_the_curve_of_a_stack_is_no_further_from_the_padded_one_than_padding_otherwise_moves_it(stack):
    found = curves.measure(STEPS, [stack])

    assert found["learned"] > 0.1
    assert 0 < found["bar"] < 1e-4
    assert found[stack] <= 2 * found["bar"]  # both are a few roundings of a loss, which are not the same ones


def test_a_curve_over_other_documents_is_seen(monkeypatch):
    honest = curves.STACKS["plain loop"]
    monkeypatch.setitem(curves.STACKS, "plain loop", lambda model, rows, folder: honest(model, rows[::-1], folder))
    found = curves.measure(STEPS, ["plain loop"])

    assert found["plain loop"] > 1000 * found["bar"]
