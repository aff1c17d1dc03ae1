"""A stream spread over several ranks gives the logits, the gradients and the isolation of one process."""

import json
from itertools import chain

import pytest
import torch
from attention_helpers import NAMES, problem, rounding_bounds
from rank_helpers import on_ranks
from ulysses_helpers import BOUND, Case, distances, joined, solve_alone, solve_on_rank, tensor

from hermetic.attention import packed_attention
from hermetic.attention.ulysses import ulysses_attention
from hermetic.batch import Boundaries
from hermetic.errors import AttentionError, BackendError

CASES = {
    "causal": Case(),
    "bidirectional": Case(options={"causal": False}),
    "window": Case(options={"window": 2}),
    "chunk": Case(options={"chunk": 3}),
    "two key heads": Case(key_heads=2),
    "one key head": Case(key_heads=1),
    "three key heads on two ranks": Case(heads=6, key_heads=3),
    "sinks": Case(sinks=True, options={"backend": "reference"}),
    "sinks, one key head, a soft cap and a scale": Case(
        sinks=True, key_heads=1, options={"backend": "reference", "softcap": 2.0, "scale": 0.7}
    ),
    "a padded tail": Case(tail=3, shards=(7, 7)),
    "a tail that is all that rank 1 has": Case(lengths=(3, 4), tail=5, shards=(7, 5)),
    "all tokens on rank 1": Case(shards=(0, 11)),
    "one token on rank 1": Case(shards=(10, 1), key_heads=2),
}


# What is wrong on purpose: each is a mistake that one could make, run on the case "causal".


def with_a_shard_s_boundaries(q, k, v, _boundaries, **options):
    """All ranks pass the documents of rank 0's shard."""
    return ulysses_attention(q, k, v, Boundaries.from_lengths([4, 0, 2]), **options)


def with_one_document(q, k, v, boundaries, **options):
    return ulysses_attention(q, k, v, Boundaries.from_lengths([boundaries.num_tokens]), **options)


def without_exchange(q, k, v, _boundaries, **options):
    """Each rank attends inside its own shard."""
    return packed_attention(q, k, v, Boundaries.from_lengths([q.shape[0]]), **options)


def with_a_lost_gradient(q, k, v, boundaries, **options):
    return ulysses_attention(q, k.detach() + 0 * k, v, boundaries, **options)


FAULTS = (with_a_shard_s_boundaries, with_one_document, without_exchange, with_a_lost_gradient)


# One call of attention, against what roundings alone may do.


ROUNDING_PROBLEMS = {
    "causal": {"groups": 4, "heads": 1},
    "grouped": {"groups": 2, "heads": 2, "window": 3},
    "one key head": {"groups": 1, "heads": 4, "chunk": 3},
}
DTYPES = {"float64": torch.float64, "float32": torch.float32, "bfloat16": torch.bfloat16}


def rounding_problem(name):
    return problem([4, 0, 5, 2], tail=2, key_width=4, value_width=3, **ROUNDING_PROBLEMS[name])


def call_on_rank(name, dtype, rank, shards=(8, 5)):
    p = rounding_problem(name)
    q, k, v, upstream = (x.split(shards)[rank].to(DTYPES[dtype]) for x in p.tensors)
    inputs = [x.clone().requires_grad_() for x in (q, k, v)]
    out = ulysses_attention(*inputs, p.boundaries, **p.options)
    out.backward(upstream)
    assert out.dtype == DTYPES[dtype]
    return [x.tolist() for x in (out, *(x.grad for x in inputs))]


def autocast_on_rank(rank):
    p = rounding_problem("grouped")
    q, k, v, _ = (x.split((8, 5))[rank].float() for x in p.tensors)
    with torch.autocast("cpu", torch.bfloat16):
        out = ulysses_attention(q, k, v.bfloat16(), p.boundaries, **p.options)
    return {"dtype": str(out.dtype), "out": out.tolist()}


# What is refused on two ranks, and what the error says there.


def shard_of(rank, *, heads=4, key_heads=2, tokens=5):
    generator = torch.Generator().manual_seed(rank)
    shapes = ((heads, 4), (key_heads, 4), (key_heads, 4))
    return [torch.randn(tokens, *shape, generator=generator, requires_grad=True) for shape in shapes]


def refusals(rank):
    """Calls by name; the value of ``rank`` differs, so ranks can be made to disagree."""
    whole = Boundaries.from_lengths([7, 3])
    q, k, v = shard_of(rank)
    return {
        "boundaries": lambda: ulysses_attention(q, k, v, Boundaries.from_lengths([[5], [2, 3]][rank])),
        "window": lambda: ulysses_attention(q, k, v, whole, window=rank + 1),
        "backend": lambda: ulysses_attention(q, k, v, whole, backend=("sdpa", "reference")[rank]),
        "key heads": lambda: ulysses_attention(*shard_of(rank, key_heads=(4, 2)[rank]), whole),
        "dtype": lambda: ulysses_attention(*(x.to((torch.float32, torch.float64)[rank]) for x in (q, k, v)), whole),
        "gradient": lambda: ulysses_attention(q if rank else q.detach(), k, v, whole),
        "heads": lambda: ulysses_attention(*shard_of(rank, heads=3, key_heads=1), whole),
        "refused on one rank": lambda: ulysses_attention(*shard_of(rank, heads=(4, 3)[rank], key_heads=1), whole),
        "list on one rank": lambda: ulysses_attention(q, k, v, (whole, [7, 3])[rank]),
        "too many tokens": lambda: ulysses_attention(q, k, v, Boundaries.from_lengths([11])),
        "unknown backend": lambda: ulysses_attention(q, k, v, whole, backend="magic"),
        "flat queries": lambda: ulysses_attention(q.flatten(1), k, v, whole),
        "fewer keys": lambda: ulysses_attention(q, k[:4], v, whole),
        "lengths": lambda: ulysses_attention(q, k, v, [7, 3]),
        "key heads that do not divide": lambda: ulysses_attention(*shard_of(rank, key_heads=3), whole),
        "sinks of one rank": lambda: ulysses_attention(q, k, v, whole, sinks=torch.zeros(2)),
        "dropout": lambda: ulysses_attention(q, k, v, whole, dropout=0.1),
    }


def message_of(call):
    try:
        call()
    except AttentionError as error:
        return f"{type(error).__name__}: {error}"
    return "no error"


def group_of_rank_zero(rank):
    """Rank 0 alone in a group gets its shard's attention; rank 1 is not in it."""
    group = torch.distributed.new_group([0])
    q, k, v = shard_of(rank)
    boundaries = Boundaries.from_lengths([3, 2])
    if rank:
        return message_of(lambda: ulysses_attention(q, k, v, boundaries, group=group))
    alone = packed_attention(q, k, v, boundaries)
    return torch.equal(ulysses_attention(q, k, v, boundaries, group=group), alone)


def swapped_document_on_rank(rank):
    """The stream's outputs before and after another document's tokens are replaced."""
    p = rounding_problem("grouped")
    first, last = 4, 9  # the third document
    other = [x.clone() for x in p.tensors]
    for x in other:
        x[first:last] = torch.randn(last - first, *x.shape[1:], generator=torch.Generator().manual_seed(9)).double()
    shards = [[x.split((8, 5))[rank] for x in tensors[:3]] for tensors in (p.tensors, other)]
    return [ulysses_attention(*qkv, p.boundaries, **p.options).tolist() for qkv in shards]


def everything_on_two_ranks(rank, folder):
    found = {
        "cases": {name: solve_on_rank(case, rank) for name, case in CASES.items()},
        "faults": {fault.__name__: solve_on_rank(CASES["causal"], rank, fault) for fault in FAULTS},
        "calls": {name: {dtype: call_on_rank(name, dtype, rank) for dtype in DTYPES} for name in ROUNDING_PROBLEMS},
        "autocast": autocast_on_rank(rank),
        "refusals": {name: message_of(call) for name, call in refusals(rank).items()},
        "group": group_of_rank_zero(rank),
        "swap": swapped_document_on_rank(rank),
    }
    (folder / f"rank{rank}.json").write_text(json.dumps(found))


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory):
    """All that two ranks are asked, in one start of the processes."""
    folder = tmp_path_factory.mktemp("two_ranks")
    on_ranks(everything_on_two_ranks, folder)
    return [json.loads((folder / f"rank{rank}.json").read_text()) for rank in (0, 1)]


@pytest.mark.parametrize("name", CASES)
def test_logits_and_summed_gradients_of_two_ranks_are_those_of_one_process(two_ranks, name):
    found = joined([rank["cases"][name] for rank in two_ranks])
    expected = solve_alone(CASES[name])

    assert found["gradients"].keys() == expected["gradients"].keys()
    assert max(distances(found, expected).values()) < BOUND
    assert all(tensor(gradient).abs().max() > 1e-3 for gradient in expected["gradients"].values())


@pytest.mark.parametrize("name", CASES)
def test_no_gradient_crosses_documents_and_none_comes_from_the_tail(two_ranks, name):
    case = CASES[name]
    found = tensor(joined([rank["cases"][name] for rank in two_ranks])["influence"])
    owners = torch.nn.functional.pad(case.boundaries.document_ids, (0, case.tail), value=-1)
    own = owners[None, :] == torch.arange(len(case.lengths))[:, None]

    assert found.shape == (len(case.lengths), sum(case.lengths) + case.tail)
    assert torch.count_nonzero(found[~own]) == 0
    assert bool((found[own] > 0).all())


@pytest.mark.parametrize("fault", [fault.__name__ for fault in FAULTS])
def test_a_planted_fault_changes_the_numbers(two_ranks, fault):
    found = joined([rank["faults"][fault] for rank in two_ranks])

    assert max(distances(found, solve_alone(CASES["causal"])).values()) > 1e-2


def test_the_stream_taken_for_one_document_is_seen_as_gradients_across_documents(two_ranks):
    found = tensor(joined([rank["faults"]["with_one_document"] for rank in two_ranks])["influence"])

    assert found[3, :4].min() > 1e-3  # from the last document to the first


def test_sinks_get_the_gradient_of_their_heads_on_their_rank_alone(two_ranks):
    gradients = [tensor(rank["cases"]["sinks"]["gradients"]["sinks0"]) for rank in two_ranks]

    assert [gradient.ne(0).tolist() for gradient in gradients] == [
        [True, True, False, False],
        [False, False, True, True],
    ]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ROUNDING_PROBLEMS)
def test_one_call_is_within_roundings_of_the_exact_result_in_every_dtype(two_ranks, name, dtype):
    p = rounding_problem(name)
    parts = [rank["calls"][name][dtype] for rank in two_ranks]
    bounds = rounding_bounds(p, DTYPES[dtype])
    for what, found, exact, bound in zip(NAMES, zip(*parts, strict=True), p.solve("reference"), bounds, strict=True):
        error = (tensor(list(chain(*found))) - exact).abs()
        assert bool((error <= bound).all()), what


def test_autocast_casts_as_packed_attention_does(two_ranks):
    p = rounding_problem("grouped")
    parts = [rank["autocast"] for rank in two_ranks]
    out = tensor(parts[0]["out"] + parts[1]["out"])

    assert [part["dtype"] for part in parts] == ["torch.bfloat16"] * 2
    assert bool(((out - p.solve("reference")[0]).abs() <= rounding_bounds(p, torch.bfloat16)[0]).all())


def test_another_document_s_content_does_not_move_a_bit(two_ranks):
    before, after = (tensor(two_ranks[0]["swap"][i] + two_ranks[1]["swap"][i]) for i in (0, 1))

    assert torch.equal(before[:4], after[:4])
    assert torch.equal(before[9:], after[9:])
    assert not torch.equal(before[4:9], after[4:9])


@pytest.mark.parametrize(
    ("name", "beginning"),
    [
        ("boundaries", ("boundaries differ between ranks: rank 0 has (5,), other than ranks [1]",) * 2),
        ("window", ("options differ between ranks: rank 0 has ('sdpa', True, 1, None",) * 2),
        ("backend", ("options differ between ranks: rank 0 has ('sdpa', ",) * 2),
        ("key heads", ("heads and widths differ between ranks: rank 0 has (4, 4, 4, 4, 4, 4), ",) * 2),
        ("dtype", ("dtypes differ between ranks: rank 0 has (torch.float32, ",) * 2),
        ("gradient", ("gradients differ between ranks: rank 0 has (False, True, True, False), ",) * 2),
    ],
)
def test_ranks_that_disagree_all_get_an_error_that_names_what_differs(two_ranks, name, beginning):
    messages = [rank["refusals"][name] for rank in two_ranks]

    assert messages[0].startswith(f"AttentionError: {beginning[0]}")
    assert messages[1].startswith(f"AttentionError: {beginning[0].split(' has ')[0].replace('rank 0', 'rank 1')} has ")
    assert all("the same on all ranks of the group, and boundaries of the whole stream" in m for m in messages)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "heads",
            "AttentionError: q has 3 heads on 2 ranks; expected a multiple of 2, for each rank attends for its share",
        ),
        (
            "too many tokens",
            "AttentionError: boundaries describe 11 tokens and q has 10; expected boundaries of this very batch",
        ),
        ("unknown backend", "BackendError: backend is 'magic'; expected one of "),
        (
            "flat queries",
            "AttentionError: q has shape (5, 16) and q has (5, 16); expected [tokens of this shard, heads",
        ),
        ("fewer keys", "AttentionError: k has shape (4, 2, 4) and q has (5, 4, 4); expected [tokens of this shard, "),
        ("lengths", "AttentionError: boundaries is a list; expected Boundaries of the whole stream, as Boundaries."),
        ("key heads that do not divide", "AttentionError: q, k and v have 4, 3 and 3 heads; expected as many value"),
        ("sinks of one rank", "AttentionError: sinks have shape (2,); expected [4], one per head of q"),
        ("dropout", "AttentionError: dropout is 0.1; expected 0.0, for ranks cannot draw the weights that one process"),
    ],
)
def test_what_cannot_be_done_is_refused_on_all_ranks_with_what_was_expected(two_ranks, name, message):
    assert issubclass(BackendError, AttentionError)
    assert all(rank["refusals"][name].startswith(message) for rank in two_ranks)


@pytest.mark.parametrize(
    ("name", "message"),
    [("refused on one rank", "q has 3 heads on 2 ranks"), ("list on one rank", "boundaries is a list; expected")],
)
def test_what_cannot_be_done_on_one_rank_leaves_no_other_waiting(two_ranks, name, message):
    waiting, refused = (rank["refusals"][name] for rank in two_ranks)

    assert refused.startswith(f"AttentionError: {message}")
    assert waiting.startswith("AttentionError: ranks [1] ask for what cannot be done, and say what; expected a call")


def test_a_group_of_one_is_packed_attention_and_a_stranger_to_the_group_is_refused(two_ranks):
    assert two_ranks[0]["group"] is True
    assert two_ranks[1]["group"].startswith("AttentionError: rank 1 is not in the group; expected one of its members")


def test_without_a_process_group_there_is_an_error_with_the_way_out():
    q, k, v = shard_of(0)

    with pytest.raises(AttentionError, match=r"not initialised.*torchrun.*init_process_group, or use packed_attention"):
        ulysses_attention(q, k, v, Boundaries.from_lengths([5]))
