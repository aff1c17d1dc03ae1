"""What reaches farther than the seal's short documents is found by its longer ones."""

import pytest
import torch
from models import tiny
from torch import nn

import hermetic
from hermetic.atlas import build_tiny
from hermetic.errors import SealError
from hermetic.seal.trial import LONGER, Trial


class Echo(nn.Module):
    """Adds to each token the one so many places before it, as a dilated convolution does."""

    def __init__(self, distance):
        super().__init__()
        self.distance = distance

    def forward(self, x):
        return x + nn.functional.pad(x, (0, 0, self.distance, 0))[:, : x.shape[1]]


def with_echo(name, distance, **changes):
    model = tiny(name, **changes)
    if name == "gpt2":
        model.transformer.ln_f = nn.Sequential(model.transformer.ln_f, Echo(distance))
    else:
        model.model.norm = nn.Sequential(model.model.norm, Echo(distance))
    return model


@pytest.mark.parametrize("distance", [18, 60, 150])
def test_a_module_that_reaches_beyond_the_short_documents_is_unpacked(distance):
    model = with_echo("llama", distance, max_position_embeddings=512)
    assert hermetic.probe(model, lengths=(60, 70, 80), instruments=("gradient",)).verdict == "leak"
    hermetic.seal(model)

    unpacked = {module.name for module in hermetic.seal_report(model).modules if module.how == "unpack"}
    assert unpacked == {"model.norm.1"}
    assert hermetic.probe(model, lengths=(60, 70, 80)).verdict == "sealed"


def test_a_module_that_reaches_beyond_the_longer_documents_too_is_not_seen():
    model = with_echo("llama", sum(LONGER) + 1, max_position_embeddings=1024)
    hermetic.seal(model)

    assert not any(module.how == "unpack" for module in hermetic.seal_report(model).modules)


def test_a_model_whose_positions_end_too_early_to_ask_its_modules_is_refused_by_the_name_of_what_leaks():
    with pytest.raises(SealError, match=r"transformer\.ln_f\.1 \(Echo\) carries one document into another"):
        hermetic.seal(with_echo("gpt2", 20))


def test_a_model_that_fails_on_the_longer_row_is_judged_by_the_short_one():
    sealed = hermetic.seal(build_tiny("big_bird"))  # it keeps a table of zeros, one for each position of a row

    assert hermetic.probe(sealed, lengths=(5, 7, 6), instruments=("swap", "gradient")).verdict == "sealed"
    with pytest.raises(RuntimeError, match="173"):
        sealed(input_ids=torch.ones(1, sum(LONGER), dtype=torch.long))


def test_a_model_without_positions_for_the_longer_documents_is_judged_by_the_short_ones():
    model = tiny("gpt2", n_positions=64)

    assert not Trial(model, LONGER).has_positions_for(max(LONGER))
    assert hermetic.seal_report(hermetic.seal(model)).leak == 0.0
    assert torch.isfinite(model(input_ids=torch.arange(5)[None]).logits).all()
