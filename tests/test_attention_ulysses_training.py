"""Ulysses as it is trained with: four ranks, groups, recomputation, DDP, a transformers model."""

import json
from functools import partial

import pytest
import torch
from rank_helpers import on_ranks
from torch.nn.parallel import DistributedDataParallel
from ulysses_helpers import (
    BOUND,
    Case,
    Model,
    batch_of,
    distances,
    joined,
    part_of,
    solve_alone,
    solve_on_rank,
    tensor,
)

from hermetic.attention import packed_attention
from hermetic.attention.ulysses import ulysses_attention
from hermetic.batch import Boundaries
from hermetic.batch.dialects import shift_labels
from hermetic.constants import IGNORE_INDEX

pytestmark = pytest.mark.slow

FOUR_RANKS = {
    "a head for each rank": Case(shards=(3, 3, 3, 2)),
    "two key heads on four ranks": Case(key_heads=2, shards=(1, 0, 7, 3)),
    "one key head on four ranks": Case(key_heads=1, shards=(3, 3, 3, 2), options={"window": 2}),
    "six key heads on four ranks": Case(heads=12, key_heads=6, tail=3, shards=(2, 6, 3, 3)),
}
PAIRS = {"two groups of two ranks, each with a stream": Case(key_heads=2)}
"""Ranks 0 and 1 share one stream, ranks 2 and 3 another: context parallelism inside data parallelism."""


def everything_on_four_ranks(rank, folder):
    groups = [torch.distributed.new_group(members) for members in ([0, 1], [2, 3])]
    attend = partial(ulysses_attention, group=groups[rank // 2])
    found = {name: solve_on_rank(case, rank) for name, case in FOUR_RANKS.items()}
    found |= {name: solve_on_rank(case, rank % 2, attend) for name, case in PAIRS.items()}
    (folder / f"rank{rank}.json").write_text(json.dumps(found))


def test_logits_gradients_and_isolation_of_four_ranks_are_those_of_one_process(tmp_path):
    on_ranks(everything_on_four_ranks, tmp_path, ranks=4)
    ranks = [json.loads((tmp_path / f"rank{rank}.json").read_text()) for rank in range(4)]
    streams = [(case, joined([rank[name] for rank in ranks])) for name, case in FOUR_RANKS.items()]
    streams += [
        (case, joined([rank[name] for rank in pair])) for name, case in PAIRS.items() for pair in (ranks[:2], ranks[2:])
    ]

    assert len(streams) == 6
    for case, found in streams:
        expected = solve_alone(case)
        assert max(distances(found, expected).values()) < BOUND
        assert torch.equal(tensor(found["influence"]) == 0, tensor(expected["influence"]) == 0)


RECOMPUTED = Case(checkpoint=True, key_heads=2)
AVERAGED = Case(key_heads=1)


def averaged_gradients(case, rank):
    """DDP averages over the ranks, so the loss is divided by the count over their number."""
    part = part_of(case, rank)
    model = DistributedDataParallel(Model(case, ulysses_attention))
    batch = batch_of(case)
    logits = model(part(batch.input_ids), part(batch.boundaries.position_ids))
    targets = part(shift_labels(batch.labels, batch.boundaries))
    lost = torch.nn.functional.cross_entropy(logits, targets, ignore_index=IGNORE_INDEX, reduction="sum")
    (lost / (batch.num_supervised_tokens / 2)).backward()
    return {name: weight.grad.tolist() for name, weight in model.module.weights.items()}


def train_on_rank(rank, folder):
    found = {"recomputed": solve_on_rank(RECOMPUTED, rank), "averaged": averaged_gradients(AVERAGED, rank)}
    (folder / f"rank{rank}.json").write_text(json.dumps(found))


def test_recomputed_layers_exchange_again_and_ddp_averages_to_the_gradient_of_one_process(tmp_path):
    on_ranks(train_on_rank, tmp_path)
    ranks = [json.loads((tmp_path / f"rank{rank}.json").read_text()) for rank in (0, 1)]
    recomputed = joined([rank["recomputed"] for rank in ranks])
    expected = solve_alone(AVERAGED)

    assert max(distances(recomputed, solve_alone(RECOMPUTED)).values()) < BOUND
    for rank in ranks:
        assert max(distances(expected | {"gradients": rank["averaged"]}, expected).values()) < BOUND


def registered(attend):
    """An attention function for transformers, as the documentation registers one."""

    def attention(_module, query, key, value, _mask, *, scaling, boundaries, sliding_window, **_):
        q, k, v = (x[0].transpose(0, 1) for x in (query, key, value))
        return attend(q, k, v, boundaries, scale=scaling, window=sliding_window)[None], None

    return attention


def solve_mistral(attend, part):
    from transformers import AttentionInterface, AttentionMaskInterface, MistralConfig, MistralForCausalLM

    AttentionInterface.register("a_test_s", registered(attend))
    AttentionMaskInterface.register("a_test_s", lambda **_: None)
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2}
    model = MistralForCausalLM(MistralConfig(vocab_size=64, num_hidden_layers=2, sliding_window=3, **sizes)).double()
    model.set_attn_implementation("a_test_s")
    boundaries = Boundaries.from_lengths([7, 4])
    ids, positions = (part(x)[None] for x in (torch.arange(11), boundaries.position_ids))
    logits = model(input_ids=ids, position_ids=positions, boundaries=boundaries, use_cache=False).logits[0]
    logits.square().sum().backward()
    gradients = {name: weight.grad.tolist() for name, weight in model.named_parameters()}
    return {"logits": logits.tolist(), "gradients": gradients, "influence": []}


def mistral_on_rank(rank, folder):
    found = solve_mistral(ulysses_attention, lambda x: x.split([5, 6])[rank])
    (folder / f"rank{rank}.json").write_text(json.dumps(found))


def test_a_transformers_model_on_two_ranks_gives_the_logits_and_gradients_of_one_process(tmp_path):
    on_ranks(mistral_on_rank, tmp_path)
    found = joined([json.loads((tmp_path / f"rank{rank}.json").read_text()) for rank in (0, 1)])

    assert max(distances(found, solve_mistral(packed_attention, lambda x: x)).values()) < BOUND
