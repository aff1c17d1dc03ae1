"""Zigzag shards hold every token once, weigh the same, and come back in order."""

import doctest
import inspect

import pytest
import torch
from attention_helpers import problem, rounding_bounds
from hypothesis import given
from hypothesis import strategies as st

from hermetic.attention import context_parallel, packed_attention
from hermetic.attention.context_parallel import (
    padded_lengths,
    shard,
    shard_cu_seqlens,
    shard_indices,
    shard_position_ids,
    unshard,
    unshard_indices,
)
from hermetic.attention.reference import allowed
from hermetic.batch import Boundaries, PackedBatch, collate
from hermetic.batch.dialects import shift_labels
from hermetic.constants import IGNORE_INDEX
from hermetic.errors import AttentionError
from hermetic.loss import packed_loss

DOCUMENTS = st.builds(Boundaries.from_lengths, st.lists(st.integers(0, 40), max_size=6))
RANKS = st.integers(1, 5)


def all_indices(boundaries, ranks):
    return [shard_indices(boundaries, ranks=ranks, rank=rank) for rank in range(ranks)]


def all_shards(x, boundaries, ranks, fill=0):
    return [shard(x, boundaries, ranks=ranks, rank=rank, fill=fill) for rank in range(ranks)]


def causal_work(boundaries, ranks, rank):
    """Per document: the keys that the rank's slots see, summed."""
    positions = shard_position_ids(boundaries, ranks=ranks, rank=rank)
    held = [slots // ranks for slots in padded_lengths(boundaries, ranks=ranks)]
    return [int((part + 1).sum()) for part in positions.split(held)]


@given(DOCUMENTS, RANKS)
def test_every_token_is_on_exactly_one_rank(boundaries, ranks):
    tokens = torch.cat(all_indices(boundaries, ranks))

    assert tokens[tokens >= 0].sort().values.tolist() == list(range(boundaries.num_tokens))
    assert set(tokens[tokens < 0].tolist()) <= {-1}


@given(DOCUMENTS, RANKS)
def test_all_shards_have_the_slots_of_their_edges_and_fewer_than_two_per_rank_and_document_are_padding(
    boundaries, ranks
):
    edges = shard_cu_seqlens(boundaries, ranks=ranks)
    padding = sum(int((tokens < 0).sum()) for tokens in all_indices(boundaries, ranks))

    assert [len(tokens) for tokens in all_indices(boundaries, ranks)] == [int(edges[-1])] * ranks
    assert padding == sum(padded_lengths(boundaries, ranks=ranks)) - boundaries.num_tokens
    assert padding <= (2 * ranks - 1) * boundaries.num_documents


@given(DOCUMENTS, RANKS)
def test_the_causal_work_of_each_document_is_the_same_on_all_ranks(boundaries, ranks):
    work = [causal_work(boundaries, ranks, rank) for rank in range(ranks)]

    assert work == [[n * (n + 1) // 2 // ranks for n in padded_lengths(boundaries, ranks=ranks)]] * ranks


def test_contiguous_halves_would_not_be_equal_work():
    positions = torch.arange(8)

    assert [int((half + 1).sum()) for half in positions.chunk(2)] == [10, 26]
    assert [causal_work(Boundaries.from_lengths([8]), 2, rank) for rank in (0, 1)] == [[18], [18]]


@given(DOCUMENTS, RANKS, st.integers(0, 3))
def test_unsharding_the_shards_gives_the_stream_without_its_tail(boundaries, ranks, tail):
    x = torch.randn(boundaries.num_tokens + tail, 2)

    assert torch.equal(unshard(all_shards(x, boundaries, ranks, fill=7), boundaries), x[: boundaries.num_tokens])


@given(DOCUMENTS, RANKS)
def test_padding_holds_the_fill_and_every_other_slot_its_token(boundaries, ranks):
    tokens = torch.arange(boundaries.num_tokens)

    for part, indices in zip(
        all_shards(tokens, boundaries, ranks, fill=-1), all_indices(boundaries, ranks), strict=True
    ):
        assert torch.equal(part, indices)


@given(DOCUMENTS, RANKS)
def test_a_slot_s_position_is_that_of_its_token_and_padding_stands_behind_the_document(boundaries, ranks):
    for rank, indices in enumerate(all_indices(boundaries, ranks)):
        positions = shard_position_ids(boundaries, ranks=ranks, rank=rank)
        real = indices >= 0
        held = torch.tensor(padded_lengths(boundaries, ranks=ranks), dtype=torch.int64) // ranks

        assert torch.equal(positions[real], boundaries.position_ids[indices[real]])
        assert bool((positions >= boundaries.lengths.repeat_interleave(held))[~real].all())


@given(DOCUMENTS, RANKS)
def test_rank_r_holds_pieces_r_and_twice_ranks_minus_one_minus_r_of_each_padded_document(boundaries, ranks):
    """As Megatron-Core documents the partition of its THD format, spelled with lists."""
    documents = [list(part) for part in torch.arange(boundaries.num_tokens).split(list(boundaries.document_lengths))]
    for rank, found in enumerate(all_indices(boundaries, ranks)):
        expected = []
        for document in documents:
            padded = document + [-1] * (-len(document) % (2 * ranks))
            size = len(padded) // (2 * ranks)
            for piece in (rank, 2 * ranks - 1 - rank):
                expected += padded[piece * size : (piece + 1) * size]
        assert found.tolist() == expected


@given(DOCUMENTS, RANKS)
def test_the_edges_of_a_shard_are_the_padded_edges_divided_by_the_ranks(boundaries, ranks):
    padded = Boundaries(document_lengths=padded_lengths(boundaries, ranks=ranks))

    assert torch.equal(shard_cu_seqlens(boundaries, ranks=ranks), padded.cu_seqlens // ranks)
    assert shard_cu_seqlens(boundaries, ranks=ranks).dtype == torch.int32


def test_gradients_pass_through_sharding_and_padding_gives_none():
    boundaries = Boundaries.from_lengths([3, 5])
    x = torch.randn(8, 2, dtype=torch.float64, requires_grad=True)
    weights = torch.randn(2, 6, 2, dtype=torch.float64)
    shards = all_shards(x, boundaries, 2, fill=float("nan"))

    sum((torch.nan_to_num(part) * w).sum() for part, w in zip(shards, weights, strict=True)).backward()

    expected = unshard(list(weights), boundaries)
    assert torch.equal(x.grad, expected)


PROBLEM = problem([3, 0, 9, 5], heads=2, groups=2)


def seen_from_shard(boundaries, ranks, rank, held_by):
    """``[S, S']``: may the slots of ``rank`` see those of ``held_by``: same document, and not later in it."""
    edges = shard_cu_seqlens(boundaries, ranks=ranks)
    documents = torch.arange(len(edges) - 1).repeat_interleave(edges.diff())
    i, j = (shard_position_ids(boundaries, ranks=ranks, rank=r) for r in (rank, held_by))
    causal = allowed(i[:, None], j[None, :], causal=True, window=None, chunk=None)
    return causal & (documents[:, None] == documents[None, :])


def test_edges_and_positions_are_all_that_attention_over_every_rank_s_keys_needs():
    boundaries, (q, k, v, _) = PROBLEM.boundaries, PROBLEM.tensors
    k, v = (x.repeat_interleave(2, dim=1) for x in (k, v))
    queries, keys, values = (all_shards(x, boundaries, 2) for x in (q, k, v))
    outputs = []
    for rank in (0, 1):
        mask = torch.cat([seen_from_shard(boundaries, 2, rank, other) for other in (0, 1)], dim=1)
        scores = torch.einsum("ihk,jhk->hij", queries[rank], torch.cat(keys)) * q.shape[2] ** -0.5
        weights = scores.masked_fill(~mask, -torch.inf).softmax(dim=-1)
        outputs.append(torch.einsum("hij,jhv->ihv", weights, torch.cat(values)))

    error = (unshard(outputs, boundaries) - PROBLEM.solve("reference")[0]).abs()
    assert bool((error <= rounding_bounds(PROBLEM, torch.float64)[0]).all())


def test_packed_attention_on_a_shard_alone_is_wrong():
    boundaries, qkv = PROBLEM.boundaries, PROBLEM.tensors[:3]
    alone = Boundaries.from_cu_seqlens(shard_cu_seqlens(boundaries, ranks=2))
    shards = [[shard(x, boundaries, ranks=2, rank=rank) for x in qkv] for rank in (0, 1)]
    outputs = [packed_attention(*part, alone, backend="reference") for part in shards]

    assert (unshard(outputs, boundaries) - PROBLEM.solve("reference")[0]).abs().max() > 0.5


def batch_and_logits():
    torch.manual_seed(0)
    batch = collate([{"input_ids": [1, 2, 3]}, {"input_ids": [4, 5, 6, 7, 1]}], pad_to=10)
    return batch, torch.randn(10, 8, dtype=torch.float64)


def loss_of_shards(batch: PackedBatch, logits, targets_of_rank):
    parts = all_shards(logits, batch.boundaries, 2)
    sums = [
        torch.nn.functional.cross_entropy(part, targets_of_rank(rank), ignore_index=IGNORE_INDEX, reduction="sum")
        for rank, part in enumerate(parts)
    ]
    return float(sum(sums)) / batch.num_supervised_tokens


def test_losses_of_labels_shifted_before_sharding_sum_to_the_loss_of_the_stream():
    batch, logits = batch_and_logits()
    targets = shift_labels(batch.labels, batch.boundaries)
    found = loss_of_shards(
        batch, logits, lambda rank: shard(targets, batch.boundaries, ranks=2, rank=rank, fill=IGNORE_INDEX)
    )

    assert found == pytest.approx(float(packed_loss(logits, batch)), rel=1e-14)


def test_labels_shifted_after_sharding_train_on_other_targets():
    batch, logits = batch_and_logits()
    alone = Boundaries.from_cu_seqlens(shard_cu_seqlens(batch.boundaries, ranks=2))

    def shifted_after(rank):
        labels = shard(batch.labels, batch.boundaries, ranks=2, rank=rank, fill=IGNORE_INDEX)
        return shift_labels(labels, alone)

    assert abs(loss_of_shards(batch, logits, shifted_after) - float(packed_loss(logits, batch))) > 0.1


BOUNDARIES = Boundaries.from_lengths([3, 5])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: padded_lengths([3, 5], ranks=2), "boundaries is a list; expected Boundaries, as Boundaries.from_leng"),
        (lambda: shard_cu_seqlens(BOUNDARIES, ranks=0), "ranks is 0; expected the size of the context-parallel group"),
        (lambda: unshard_indices(BOUNDARIES, ranks=True), "ranks is True; expected the size of the context-parallel"),
        (lambda: shard_indices(BOUNDARIES, ranks=2, rank=2), "rank is 2; expected 0 to 1, this process's place"),
        (lambda: shard_position_ids(BOUNDARIES, ranks=2, rank=-1), "rank is -1; expected 0 to 1, this process's place"),
        (
            lambda: shard(torch.zeros(7, 2), BOUNDARIES, ranks=2, rank=0),
            r"x has shape \[7, 2\] and the boundaries describe 8 tokens; expected \[8, ...\] or more: shard the whole",
        ),
        (lambda: shard(torch.tensor(1.0), BOUNDARIES, ranks=2, rank=0), r"x has shape \[\] and the boundaries"),
        (lambda: unshard([], BOUNDARIES), "ranks is 0; expected the size of the context-parallel group"),
        (
            lambda: unshard([torch.zeros(6), torch.zeros(5)], BOUNDARIES),
            r"shards\[1\] has shape \[5\], expected \[6, ...\] for 2 ranks; pass what each rank holds, all ranks in",
        ),
    ],
)
def test_what_cannot_be_sharded_is_an_error_that_says_why(call, message):
    with pytest.raises(AttentionError, match=f"^{message}"):
        call()


def test_every_worked_example_gives_what_it_says():
    functions = [
        function
        for _, function in inspect.getmembers(context_parallel, inspect.isfunction)
        if function.__module__ == context_parallel.__name__ and not function.__name__.startswith("_")
    ]
    results = doctest.testmod(context_parallel)

    assert len(functions) == 7
    assert [function.__name__ for function in functions if ">>>" not in function.__doc__] == []
    assert results.attempted >= len(functions)
    assert results.failed == 0
