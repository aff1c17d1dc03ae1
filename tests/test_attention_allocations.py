"""No allocation of the sdpa backend grows with the square of a row: every tensor of a step is seen and measured."""

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - the name that everyone uses
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from hermetic.attention import packed_attention
from hermetic.batch import Boundaries

HEADS, KEY_HEADS, WIDTH = 4, 2, 8
FOUR_BYTES = 4

SAME, MIXED, SHORT = (256,), (256, 7, 500, 128, 1, 132), (16, 9, 15, 24)
"""Documents whose lengths sum to a power of two: a row repeats them."""

OPTIONS = [
    {},
    {"causal": False},
    {"window": 64},
    {"chunk": 100},
    {"window": 32, "chunk": 100},
    {"sinks": torch.zeros(HEADS)},
    {"sinks": torch.zeros(HEADS), "causal": False},
    {"sinks": torch.zeros(HEADS), "window": 64, "chunk": 100},
]


class Allocations(TorchDispatchMode):
    """The bytes of each tensor that an operation returns, forward and backward, and is not a view."""

    def __init__(self):
        super().__init__()
        self.sizes = []

    def __torch_dispatch__(self, function, _types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        if not function.is_view:
            self.sizes += [x.numel() * x.element_size() for x in tree_leaves(result) if isinstance(x, torch.Tensor)]
        return result


def allocations(step, tokens):
    """The bytes of all tensors that a forward and backward of ``step(q, k, v)`` makes."""
    generator = torch.Generator().manual_seed(0)
    heads = (HEADS, KEY_HEADS, KEY_HEADS)
    q, k, v = (torch.randn(tokens, each, WIDTH, generator=generator, requires_grad=True) for each in heads)
    with Allocations() as seen:
        step(q, k, v).sum().backward()
    return seen.sizes


def of_sdpa(documents, tokens, **options):
    boundaries = Boundaries.from_lengths(documents * (tokens // sum(documents)))
    assert boundaries.num_tokens == tokens
    return allocations(lambda q, k, v: packed_attention(q, k, v, boundaries, **options), tokens)


def most_bytes_per_token(documents):
    """What the largest single tensor of a step may take: queries, or keys and values that a window repeats.

    Queries have H heads, keys G <= H / 2 heads here and are in at most two blocks of a window. Sinks widen them by H /
    G columns and add a token to each document or chunk, and padding at most a quarter.
    """
    tokens_with_sinks = (sum(documents) + sum(-(-length // 100) for length in documents)) / sum(documents)
    return 1.25 * tokens_with_sinks * HEADS * (WIDTH + HEADS // KEY_HEADS) * FOUR_BYTES


every_option = pytest.mark.parametrize("options", OPTIONS, ids=lambda options: " ".join(options) or "plain")
all_documents = pytest.mark.parametrize("documents", [SAME, MIXED, SHORT], ids=["same", "mixed", "short"])


@every_option
@all_documents
def test_the_largest_tensor_of_a_step_is_a_constant_times_the_tokens_and_all_together_grow_as_they_do(
    documents, options
):
    small, large = (of_sdpa(documents, tokens, **options) for tokens in (4_096, 16_384))

    assert max(small) >= 4_096 * HEADS * WIDTH * FOUR_BYTES  # the output was seen
    assert max(small) <= most_bytes_per_token(documents) * 4_096
    assert max(large) <= most_bytes_per_token(documents) * 16_384
    assert sum(large) <= 4.04 * sum(small)  # a copy of the row for each document would make it 16


@pytest.mark.slow
@every_option
@all_documents
def test_at_64k_tokens_it_is_the_same_constant(documents, options):
    assert max(of_sdpa(documents, 65_536, **options)) <= most_bytes_per_token(documents) * 65_536


@pytest.mark.parametrize("window", [None, 64])
def test_a_single_document_that_fills_the_row_takes_no_more_than_many(window):
    small, large = (of_sdpa((tokens,), tokens, window=window) for tokens in (2_048, 4_096))

    assert max(large) <= most_bytes_per_token((4_096,)) * 4_096
    assert sum(large) <= 2.02 * sum(small)


def of_dense_mask(tokens):
    """Attention of one head over the whole row under a block-diagonal mask."""
    ids = torch.arange(tokens) // 256

    def step(q, k, v):
        q, k, v = (x[:, :1].transpose(0, 1)[None] for x in (q, k, v))
        mask = (ids[:, None] == ids[None, :]).tril()
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)

    return allocations(step, tokens)


def test_the_same_measurement_screams_for_a_dense_mask():
    small, large = of_dense_mask(4_096), of_dense_mask(8_192)

    assert max(small) > 10 * most_bytes_per_token(SAME) * 4_096
    assert max(large) >= 4 * max(small)
    assert sum(large) > 3.5 * sum(small)


@pytest.mark.gpu
@every_option
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_on_cuda_no_kernel_makes_the_scores_of_a_document(dtype, options):
    boundaries = Boundaries.from_lengths([8_192, 7_000])
    options = {name: x.cuda() if isinstance(x, torch.Tensor) else x for name, x in options.items()}
    q, k, v = (
        torch.randn(15_192, each, WIDTH, device="cuda", dtype=dtype, requires_grad=True)
        for each in (HEADS, KEY_HEADS, KEY_HEADS)
    )
    packed_attention(q, k, v, boundaries, **options).sum().backward()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    packed_attention(q, k, v, boundaries, **options).sum().backward()

    assert torch.cuda.max_memory_allocated() - before < 8_192**2  # half of one head's scores in bfloat16
