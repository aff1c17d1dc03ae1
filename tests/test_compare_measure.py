"""What arms are measured by: losses in and out of their rows, gradients, and memory."""

import gc
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from train_helpers import tiny_network

from hermetic.compare import all_arms
from hermetic.compare.curves import stretches
from hermetic.compare.measure import first_batch, first_batch_alone, layout_loss, solo_loss
from hermetic.compare.memory import peak_memory
from hermetic.compare.records import Spread
from hermetic.compare.run import steps_of
from hermetic.errors import TrainError
from hermetic.seal import seal
from hermetic.seal.measure import FLOOR_FACTOR
from hermetic.train import TrainSettings

ROWS = [
    [{"input_ids": [10, 11, 12], "labels": [-100, 11, 12]}, {"input_ids": [20, 21, 22, 23]}],
    [{"input_ids": [30, 31, 32]}, {"input_ids": [40]}, {"input_ids": [50, 51, 52, 53], "loss_mask": [0, 0, 1, 0]}],
]
ARMS = {arm.name: arm for arm in all_arms()}
CPU = torch.device("cpu")


class Lookup(torch.nn.Module):
    """A model that guesses the token which the last but one was, and so copies from whatever came before."""

    def __init__(self, sure=5.0):
        super().__init__()
        self.sure = torch.nn.Parameter(torch.tensor(sure))

    def forward(self, input_ids, **_):
        guesses = torch.nn.functional.one_hot(input_ids.roll(1, dims=1), 64).float()
        guesses[:, 0] = 0.0
        return type("Output", (), {"logits": guesses * self.sure})


def test_the_solo_loss_is_the_mean_over_supervised_tokens_whatever_their_rows():
    network = tiny_network()
    with torch.no_grad():
        losses = []
        for row in ROWS:
            for document in row:
                ids = torch.tensor([document["input_ids"]])
                chances = network(input_ids=ids).logits[0].log_softmax(-1)
                mask = document.get("loss_mask", [1] * ids.shape[1])
                losses += [-float(chances[t - 1, ids[0, t]]) for t in range(1, ids.shape[1]) if mask[t]]
    assert len(losses) == 2 + 3 + 2 + 0 + 1
    expected = sum(losses) / len(losses)
    assert solo_loss(network, [ROWS]) == pytest.approx(expected, rel=1e-6)
    assert solo_loss(network, [[row] for row in ROWS]) == pytest.approx(expected, rel=1e-6)


def test_in_a_layout_that_keeps_documents_apart_the_loss_is_the_solo_loss():
    plain, sealed = tiny_network(), seal(tiny_network())
    alone = solo_loss(plain, [ROWS])
    floor = abs(alone - layout_loss(plain, ARMS["padded"], [[row] for row in ROWS]))  # the same, in other shapes
    for name in ("padded", "mask_only", "sealed"):
        found = layout_loss(sealed if name == "sealed" else plain, ARMS[name], [ROWS])
        assert abs(found - alone) <= FLOOR_FACTOR * max(floor, torch.finfo(torch.float32).eps * alone)
    for name in ("naive", "positions_only"):
        assert abs(layout_loss(plain, ARMS[name], [ROWS]) - alone) > 0.01


def test_a_planted_twin_lowers_the_loss_of_a_naive_row_and_not_of_a_sealed_one():
    # each token of the second document is the one before the last in the row, and nowhere in the document
    twins = [[{"input_ids": [7, 9]}, {"input_ids": [8, 9], "labels": [-100, 9]}]]
    network = Lookup()
    naive = layout_loss(network, ARMS["naive"], [twins])
    alone = solo_loss(network, [twins])
    assert alone == pytest.approx(math.log(64), rel=1e-6)  # it knows nothing
    sure = math.log(math.e**5 + 63) - 5
    assert naive == pytest.approx((math.log(64) + sure) / 2, rel=1e-6)
    assert alone - naive > 1.0
    assert layout_loss(network, ARMS["padded"], [twins]) == pytest.approx(alone, rel=1e-6)


def test_rows_without_supervised_tokens_have_no_loss_to_measure():
    rows = [[[{"input_ids": [3, 4], "labels": [-100, -100]}]]]
    for measure in (lambda: solo_loss(Lookup(), rows), lambda: layout_loss(Lookup(), ARMS["naive"], rows)):
        with pytest.raises(TrainError, match="no token of the rows to measure is supervised"):
            measure()


def test_the_first_batch_of_every_arm_has_the_logits_and_the_gradient_of_padded_where_documents_are_apart():
    reference = first_batch(tiny_network(), ARMS["padded"], ROWS)
    floor = reference.gradient_distance(first_batch_alone(tiny_network(), ROWS))
    assert 0.0 < floor < 1e-5
    found = {}
    for name, arm in ARMS.items():
        network = seal(tiny_network()) if arm.sealed else tiny_network()
        found[name] = first_batch(network, arm, ROWS)
        assert all(parameter.grad is None for parameter in network.parameters())
    distances = {name: first.gradient_distance(reference) for name, first in found.items()}
    assert distances["padded"] == 0.0
    assert max(distances["mask_only"], distances["sealed"]) < FLOOR_FACTOR * floor
    assert min(distances["naive"], distances["positions_only"]) > 0.01
    assert found["naive"].logit_distance(reference) > 0.01


def test_a_planted_difference_of_one_weight_is_seen_in_the_gradient():
    reference = first_batch(tiny_network(), ARMS["padded"], ROWS)
    network = tiny_network()
    with torch.no_grad():
        next(network.parameters())[11, 0] += 0.01
    changed = first_batch(network, ARMS["padded"], ROWS)
    assert changed.gradient_distance(reference) > 1e-4
    assert changed.logit_distance(reference) > 1e-4


# memory


def test_the_peak_counts_tensors_that_live_at_once_and_no_others():
    def one_after_the_other():
        for _ in range(5):
            torch.zeros(1000)

    def together():
        return [torch.zeros(1000) for _ in range(5)]

    def views():
        whole = torch.zeros(1000)
        return whole[:10], whole.view(10, 100), whole.add_(1)

    given = torch.zeros(1000)
    peaks = [peak_memory(work, CPU)[1] for work in (one_after_the_other, together, views, lambda: given.view(10, 100))]
    assert peaks == [4000, 20000, 4000, 0]


def test_what_autograd_keeps_counts_until_the_backward_and_gradients_after_it():
    weight, x = torch.randn(50, 40, requires_grad=True), torch.randn(30, 50)

    def forward_only():
        with torch.no_grad():
            return (x @ weight).exp().exp().sum()

    def forward_and_backward():
        (x @ weight).exp().exp().sum().backward()

    without, with_graph = (peak_memory(work, CPU)[1] for work in (forward_only, forward_and_backward))
    activation, gradient = 30 * 40 * 4, 50 * 40 * 4
    assert 2 * activation <= without <= 2 * activation + 8
    assert with_graph >= gradient + activation
    assert weight.grad.shape == (50, 40)


def test_the_peak_of_a_step_is_the_same_whenever_it_is_measured():
    peaks = []
    for _ in range(2):
        gc.collect()
        network = tiny_network()
        peaks.append(peak_memory(lambda network=network: first_batch(network, ARMS["padded"], ROWS), CPU)[1])
    assert peaks[0] == peaks[1] > sum(parameter.nbytes for parameter in network.parameters())


# counting


@given(st.lists(st.floats(-100, 100), min_size=1, max_size=300), st.integers(1, 150))
def test_stretches_are_at_most_so_many_and_keep_the_mean(losses, points):
    found = stretches(losses, points)
    edges = [len(losses) * at // len(found) for at in range(len(found) + 1)]
    total = sum(mean * (b - a) for mean, a, b in zip(found, edges, edges[1:], strict=False))
    assert len(found) == min(points, len(losses))
    assert total == pytest.approx(sum(losses), abs=1e-9 * 100 * len(losses))


def test_the_spread_of_one_seed_is_unknown_and_of_two_is_theirs():
    assert Spread.over([3.0]) == Spread(mean=3.0, deviation=None)
    assert Spread.over([1.0, 3.0]) == Spread(mean=2.0, deviation=math.sqrt(2.0))


@pytest.mark.parametrize(
    ("rows", "options"), [(7, {}), (7, {"rows_per_batch": 3, "accumulation_steps": 2}), (5, {"epochs": 1.5})]
)
def test_the_steps_that_are_foreseen_are_those_that_the_trainer_makes(tmp_path, rows, options):
    from train_helpers import packed_folder

    from hermetic.train import fit

    packed = packed_folder(tmp_path, [8] * rows, capacity=8)
    settings = TrainSettings(**options)
    fitted = fit(tiny_network(), packed, settings, pack=False)
    assert steps_of(rows, settings) == len(fitted.losses)
    assert steps_of(rows, TrainSettings(max_steps=2)) == 2
