"""Training on packed rows is training on the same documents padded, step by step."""

import torch
from train_helpers import largest_relative, packed_folder, tiny_network, weights_of

from hermetic.integrations.transformers import PaddedCollator
from hermetic.seal import seal
from hermetic.train import TrainSettings, fit

LENGTHS = (3, 41, 17, 8, 26, 2, 33, 12, 19, 5, 28, 9, 37, 14, 6, 22)
SETTINGS = TrainSettings(epochs=2.0, rows_per_batch=2, learning_rate=1e-3)


class WiderCollator(PaddedCollator):
    """The same padded rows with seven slots of padding more: the same computation in another shape."""

    def __call__(self, rows):
        inputs = super().__call__(rows)
        blanks = {"input_ids": 0, "labels": -100, "attention_mask": 0}
        return {name: torch.nn.functional.pad(value, (0, 7), value=blanks[name]) for name, value in inputs.items()}


def trained(packed, settings=SETTINGS, *, family="llama", pack=True, collator=None):
    network = tiny_network(family)
    if pack:
        seal(network)
    result = fit(network, packed, settings, pack=pack, collator=collator)
    return result, weights_of(network)


def assert_same_run(found, expected, noise):
    """Losses and weights differ no more than eight times what another batch shape alone makes."""
    (found_run, found_weights), (run, weights), (noise_run, noise_weights) = found, expected, noise
    floor = max(largest_relative(noise_run.losses, run.losses), 1e-7)
    assert floor < 1e-5
    assert len(run.losses) > 3
    assert largest_relative(found_run.losses, run.losses) <= min(8 * floor, 1e-5)
    weight_floor = float((noise_weights - weights).abs().max())
    moved = float((weights - weights_of(tiny_network())).abs().max())
    assert float((found_weights - weights).abs().max()) <= 8 * weight_floor < moved / 10


def test_packed_and_padded_training_take_the_same_losses_to_the_same_weights(tmp_path):
    packed = packed_folder(tmp_path, LENGTHS, capacity=64)
    padded = trained(packed, pack=False)
    noise = trained(packed, pack=False, collator=WiderCollator())
    assert_same_run(trained(packed), padded, noise)


def test_the_comparison_of_runs_tells_another_learning_rate(tmp_path):
    packed = packed_folder(tmp_path, LENGTHS, capacity=64)
    padded, other = trained(packed, pack=False), TrainSettings(epochs=2.0, rows_per_batch=2, learning_rate=1.1e-3)
    assert largest_relative(trained(packed, other)[0].losses, padded[0].losses) > 1e-5


def test_four_micro_batches_of_a_row_train_as_one_of_four_rows(tmp_path):
    packed = packed_folder(tmp_path, LENGTHS * 2, capacity=64)
    at_once = TrainSettings(epochs=2.0, rows_per_batch=4, learning_rate=1e-3)
    one_by_one = TrainSettings(epochs=2.0, accumulation_steps=4, learning_rate=1e-3)
    padded = trained(packed, at_once, pack=False)
    noise = trained(packed, at_once, pack=False, collator=WiderCollator())
    assert_same_run(trained(packed, one_by_one), trained(packed, at_once), noise)
    assert_same_run(trained(packed, one_by_one), padded, noise)


def test_the_same_seed_trains_to_the_same_bits_and_another_one_does_not(tmp_path):
    packed = packed_folder(tmp_path, LENGTHS, capacity=64)
    (first, first_weights), (second, second_weights) = trained(packed), trained(packed)
    other, _ = trained(packed, TrainSettings(epochs=2.0, rows_per_batch=2, learning_rate=1e-3, seed=1))
    assert first.losses == second.losses
    assert torch.equal(first_weights, second_weights)
    assert other.losses != first.losses


def test_gradient_checkpointing_runs_each_layer_twice_and_changes_no_loss(tmp_path):
    packed = packed_folder(tmp_path, LENGTHS, capacity=64)
    runs = []
    for checkpointing in (False, True):
        network, calls = tiny_network(), []
        network.model.layers[0].input_layernorm.register_forward_hook(lambda *_, calls=calls: calls.append(1))
        settings = TrainSettings(epochs=2.0, learning_rate=1e-3, gradient_checkpointing=checkpointing)
        losses = fit(network, packed, settings, pack=False).losses
        runs.append((losses, weights_of(network), len(calls)))
        fitted, weights = trained(packed, settings)
        assert largest_relative(fitted.losses, losses) < 1e-5
        assert float((weights - runs[0][1]).abs().max()) < 1e-4
    assert runs[0][0] == runs[1][0]
    assert torch.equal(runs[0][1], runs[1][1])
    assert (runs[0][2], runs[1][2]) == (10, 20)


def test_learned_positions_train_packed_as_padded_too(tmp_path):
    packed = packed_folder(tmp_path, LENGTHS, capacity=64)
    padded = trained(packed, family="gpt2", pack=False)
    assert largest_relative(trained(packed, family="gpt2")[0].losses, padded[0].losses) < 1e-5
