"""Nothing of a document reaches another, and nothing of the padded tail reaches anybody."""

import pytest
import torch
from attention_helpers import TRAINED_HERE, problem, problems
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from hermetic.attention import packed_attention
from hermetic.batch import Boundaries
from hermetic.batch.dialects import dense_mask

backends = pytest.mark.parametrize("backend", TRAINED_HERE)
# The fixture replaces three functions for the whole test; every example wants them replaced.
with_fixture = settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])


@backends
@pytest.mark.usefixtures("poisoned_memory")
@with_fixture
@given(p=problems())
def test_the_tail_is_zeros_in_the_output_and_in_all_gradients_whatever_memory_and_tail_hold(backend, p):
    for x in p.tensors[:3]:
        x[p.num_tokens :] = float("nan")

    for result in p.solve(backend):
        assert bool(result[: p.num_tokens].isfinite().all())
        assert torch.equal(result[p.num_tokens :], torch.zeros_like(result[p.num_tokens :]))


@backends
@pytest.mark.usefixtures("poisoned_memory")
@pytest.mark.parametrize("options", [{}, {"causal": False}, {"window": 2}, {"chunk": 2}], ids=str)
def test_memory_that_nobody_wrote_is_never_read(backend, options):
    p = problem((7, 5, 6, 1, 0, 7), tail=3, **options)

    assert all(bool(result.isfinite().all()) for result in p.solve(backend))


@backends
def test_a_batch_without_tokens_gives_zeros_and_zero_gradients(backend):
    out, *gradients = problem((0, 0), tail=4).solve(backend)

    assert out.shape == (4, 2, 4)
    assert not out.any()
    assert not any(gradient.any() for gradient in gradients)


@backends
@settings(max_examples=60)
@given(p=problems(), data=st.data())
def test_gradients_across_documents_are_exactly_zero(backend, p, data):
    document = data.draw(st.integers(0, len(p.lengths) - 1))
    begin = sum(p.lengths[:document])
    own = slice(begin, begin + p.lengths[document])
    p.tensors[3][:] = torch.zeros_like(p.tensors[3]).index_fill_(0, torch.arange(len(p.tensors[3]))[own], 1.0)

    for gradient in p.solve(backend)[1:]:
        gradient[own] = 0.0
        assert torch.equal(gradient, torch.zeros_like(gradient))


@backends
@settings(max_examples=60)
@given(p=problems(), data=st.data())
def test_swapping_a_document_leaves_all_others_bit_identical(backend, p, data):
    document = data.draw(st.integers(0, len(p.lengths) - 1))
    assume(p.lengths[document] > 0)
    begin = sum(p.lengths[:document])
    own = slice(begin, begin + p.lengths[document])
    before = p.solve(backend, torch.float32)
    for x in p.tensors:
        x[own] = x[own].flip(-1) * -3.0 + 1.0
    after = p.solve(backend, torch.float32)

    assert not torch.equal(before[0][own], after[0][own])
    for one, other in zip(before, after, strict=True):
        one[own] = other[own]
        assert torch.equal(one, other)


class Allocations(TorchDispatchMode):
    """Counts the elements of every tensor that an operation returns: the largest and all together."""

    def __init__(self):
        super().__init__()
        self.largest = self.total = 0

    def __torch_dispatch__(self, function, _types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, torch.Tensor):
                self.largest = max(self.largest, leaf.numel())
                self.total += leaf.numel()
        return result


def allocations(lengths, *, value_width=8, **options):
    tokens = sum(lengths)
    generator = torch.Generator().manual_seed(0)
    shapes = [(4, 8), (2, 8), (2, value_width)]
    q, k, v = (torch.randn(tokens, *shape, generator=generator, requires_grad=True) for shape in shapes)
    with Allocations() as counted:
        packed_attention(q, k, v, Boundaries.from_lengths(lengths), **options).sum().backward()
    return counted


@pytest.mark.parametrize("options", [{}, {"causal": False}, {"window": 64}, {"chunk": 128}], ids=str)
def test_sdpa_allocates_in_proportion_to_the_tokens_and_not_to_their_square(options):
    small, large = allocations([300] * 7, **options), allocations([300] * 28, **options)

    assert small.largest < 2_100**2 / 4
    assert large.largest < 8_400**2 / 4
    assert large.total < 1.01 * 4 * small.total  # 16 times as much would be quadratic


@pytest.mark.parametrize("options", [{}, {"value_width": 12}, {"value_width": 3}, {"causal": False}], ids=str)
def test_sdpa_allocates_no_square_even_for_a_single_document_that_fills_the_row(options):
    assert allocations([2_048], **options).largest < 2_048**2 / 4


def test_the_count_of_allocations_sees_a_dense_mask():
    with Allocations() as counted:
        dense_mask(Boundaries.from_lengths([300] * 6 + [248]))

    assert counted.largest == 2_048**2
