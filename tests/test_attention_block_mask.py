"""The BlockMask made from boundaries is the one that create_block_mask finds by evaluating the rule cell by cell."""

import dataclasses

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from hermetic.attention import block_mask as module
from hermetic.attention.block_mask import block_mask_from_boundaries
from hermetic.attention.reference import allowed
from hermetic.batch import Boundaries
from hermetic.errors import AttentionError

TENSORS = (
    "kv_num_blocks",
    "kv_indices",
    "full_kv_num_blocks",
    "full_kv_indices",
    "q_num_blocks",
    "q_indices",
    "full_q_num_blocks",
    "full_q_indices",
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Row:
    """Documents, their padded tail, and who sees whom."""

    lengths: tuple[int, ...]
    tail: int = 0
    block_size: int = 128
    causal: bool = True
    window: int | None = None
    chunk: int | None = None

    @property
    def segments(self) -> tuple[int, ...]:
        """The tail is one more document."""
        return (*self.lengths, self.tail)

    @property
    def num_slots(self) -> int:
        return sum(self.segments)

    def mask(self) -> BlockMask:
        return block_mask_from_boundaries(
            Boundaries(document_lengths=self.lengths),
            num_slots=self.num_slots,
            causal=self.causal,
            window=self.window,
            chunk=self.chunk,
            block_size=self.block_size,
        )

    def cells(self) -> torch.Tensor:
        """``[T, T]``: what the definition allows, with the documents told apart by their ids."""
        sizes = torch.tensor(self.segments)
        ids = torch.arange(len(sizes)).repeat_interleave(sizes)
        position = torch.arange(self.num_slots) - (sizes.cumsum(0) - sizes)[ids]
        inside = allowed(position[:, None], position[None, :], causal=self.causal, window=self.window, chunk=self.chunk)
        return inside & (ids[:, None] == ids[None, :])

    def evaluated(self) -> BlockMask:
        """What PyTorch makes of those cells."""
        cells, size = self.cells(), self.num_slots
        return create_block_mask(
            lambda _b, _h, q, k: cells[q, k], 1, 1, size, size, device="cpu", BLOCK_SIZE=self.block_size
        )


@st.composite
def rows(draw) -> Row:
    block_size = draw(st.sampled_from([1, 3, 16, 128]))
    length = st.sampled_from([0, 1, 2, block_size - 1, block_size, block_size + 1, 2 * block_size, 3 * block_size + 5])
    size = st.none() | st.integers(1, 3 * block_size + 2)
    causal = draw(st.booleans())
    lengths = draw(st.lists(length | st.integers(0, 40), min_size=1, max_size=4))
    tail = draw(st.integers(0, 2) | length)
    return Row(
        lengths=tuple(lengths),
        tail=tail if sum(lengths) else max(tail, 1),
        block_size=block_size,
        causal=causal,
        window=draw(size) if causal else None,
        chunk=draw(size),
    )


def assert_same(found: BlockMask, expected: BlockMask) -> None:
    assert found.shape == expected.shape
    assert found.BLOCK_SIZE == expected.BLOCK_SIZE
    for name in TENSORS:
        one, other = getattr(found, name), getattr(expected, name)
        assert one.dtype == other.dtype, name
        assert torch.equal(one, other), name


def cells_of(mask: BlockMask) -> torch.Tensor:
    token = torch.arange(mask.shape[-1])
    zero = torch.zeros((), dtype=torch.int64)
    return mask.mask_mod(zero, zero, token[:, None], token[None, :])


@settings(max_examples=100)
@given(row=rows())
def test_all_eight_tensors_are_those_that_create_block_mask_makes_of_the_definition(row):
    assert_same(row.mask(), row.evaluated())


@settings(max_examples=100)
@given(row=rows())
def test_the_mask_mod_allows_exactly_the_cells_that_the_definition_allows(row):
    assert torch.equal(cells_of(row.mask()), row.cells())


@pytest.mark.parametrize(
    "row",
    [
        Row(lengths=(300,) * 6, tail=248),
        Row(lengths=(1000, 24, 1, 0, 500, 523), causal=False),
        Row(lengths=(2500, 1000), tail=100, window=700),
        Row(lengths=(2000, 1500), tail=84, chunk=600),
        Row(lengths=(3000,), causal=False, chunk=256),
    ],
    ids=str,
)
def test_the_tensors_are_the_same_in_long_rows(row):
    assert_same(row.mask(), row.evaluated())


def test_both_comparisons_see_a_first_key_that_is_off_by_one(monkeypatch):
    row = Row(lengths=(128, 128))
    exact = module.visible_interval

    def one_too_early(*args, **options):
        first, last = exact(*args, **options)
        return (first - 1).clamp(min=0), last

    monkeypatch.setattr(module, "visible_interval", one_too_early)
    with pytest.raises(AssertionError, match="kv_num_blocks"):
        assert_same(row.mask(), row.evaluated())
    assert not torch.equal(cells_of(row.mask()), row.cells())


def test_two_documents_of_3_and_5_have_21_cells_where_a_plain_causal_row_has_36():
    packed = Row(lengths=(3, 5), block_size=1).mask().to_dense()[0, 0]
    plain = Row(lengths=(8,), block_size=1).mask().to_dense()[0, 0]

    assert int(packed.sum()) == 21
    assert int(packed[3:, :3].sum()) == 0
    assert packed.diagonal().tolist() == [1] * 8
    assert (int(plain.sum()), int(plain[3:, :3].sum())) == (36, 15)


def test_a_window_of_4_counts_the_current_token_and_changes_nothing_for_documents_of_3():
    long = Row(lengths=(7,), window=4, block_size=1).mask().to_dense()[0, 0]
    short = Row(lengths=(3, 3, 3), window=4, block_size=1).mask()

    assert long[6].tolist() == [0, 0, 0, 1, 1, 1, 1]
    assert long[5].tolist() == [0, 0, 1, 1, 1, 1, 0]
    assert int(short.to_dense().sum()) == 18
    assert_same(short, Row(lengths=(3, 3, 3), block_size=1).mask())


def test_the_tail_is_one_more_document():
    assert_same(Row(lengths=(200, 100), tail=84).mask(), Row(lengths=(200, 100, 84)).mask())


def test_without_slots_given_the_row_ends_with_its_last_document():
    assert block_mask_from_boundaries(Boundaries.from_lengths([200, 100])).shape == (1, 1, 300, 300)


class LargestTensor(TorchDispatchMode):
    """Remembers how many elements the largest result of any operation had."""

    elements = 0

    def __torch_dispatch__(self, function, _types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        sizes = [leaf.numel() for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)]
        self.elements = max([self.elements, *sizes])
        return result


def test_no_tensor_on_the_way_is_larger_than_the_tokens_or_the_tables():
    row = Row(lengths=(300,) * 27, tail=92)  # 8,192 slots, 64 blocks
    with LargestTensor() as ours:
        row.mask()
    with LargestTensor() as theirs:
        Row(lengths=(300,) * 6, tail=248).evaluated()

    assert ours.elements == 8192
    assert theirs.elements >= 2048**2


def test_one_compilation_serves_batches_of_other_documents_and_other_patterns():
    compilations = []

    def remember(graph, _inputs):
        compilations.append(graph)
        return graph

    torch._dynamo.reset()
    compiled = torch.compile(flex_attention, backend=remember, fullgraph=True)
    q = torch.randn(1, 1, 384, 16, generator=torch.Generator().manual_seed(0))
    batches = [Row(lengths=(100, 284)), Row(lengths=(7,) * 50, tail=34), Row(lengths=(384,), causal=False, chunk=9)]
    for row in batches:
        scores = (q[0, 0] @ q[0, 0].T / 4).masked_fill(~row.cells(), -torch.inf)
        torch.testing.assert_close(compiled(q, q, q, block_mask=row.mask())[0, 0], scores.softmax(-1) @ q[0, 0])
    assert len(compilations) == 1

    longer = torch.zeros(1, 1, 512, 16)  # the count can move
    compiled(longer, longer, longer, block_mask=Row(lengths=(512,)).mask())
    assert len(compilations) == 2
    torch._dynamo.reset()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_slots": 7}, "num_slots is 7 and boundaries describe 8 tokens; expected at least one slot and one for"),
        ({"window": 0}, "window is 0; expected a Python int of at least 1 token"),
        ({"chunk": 2.0}, "chunk is 2.0; expected a Python int"),
        ({"block_size": -128}, "block_size is -128; expected a Python int"),
        ({"window": 2, "causal": False}, "window is 2 with causal=False; .* needs causal=True"),
    ],
    ids=str,
)
def test_what_does_not_fit_is_refused_by_name(options, message):
    with pytest.raises(AttentionError, match=message):
        block_mask_from_boundaries(Boundaries.from_lengths([3, 5]), **options)


def test_a_row_without_slots_is_refused():
    with pytest.raises(AttentionError, match="num_slots is 0 and boundaries describe 0 tokens"):
        block_mask_from_boundaries(Boundaries.from_lengths([0]))
