"""A user's compiled function calls packed_attention between its graphs, and gets each batch's own numbers."""

import pytest
import torch

from hermetic.attention import packed_attention
from hermetic.batch import Boundaries

BATCHES = ((3, 5, 1), (9,), (2, 2, 2, 3), (1, 8))
OPTIONS = {
    "plain": {},
    "windowed sinks": {"window": 2, "sinks": torch.tensor([0.5, -0.5])},
    "chunks both ways": {"chunk": 2, "causal": False},
}


def double_attention(q, k, v, boundaries, **options):
    return 2.0 * packed_attention(torch.sin(q), k, v, boundaries, **options)


# The compiler itself looks at .grad of what flows from one graph into the next.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf Tensor:UserWarning")
@pytest.mark.parametrize("backend", ["reference", "sdpa"])
@pytest.mark.parametrize("name", OPTIONS)
def test_a_compiled_caller_gets_the_numbers_and_gradients_of_an_uncompiled_one_for_every_batch(name, backend):
    torch.compiler.reset()
    compiled = torch.compile(double_attention, backend="aot_eager")
    generator = torch.Generator().manual_seed(0)
    inputs = [torch.randn(9, heads, 4, generator=generator, requires_grad=True) for heads in (2, 1, 1)]
    seen = []
    for lengths in BATCHES:
        boundaries = Boundaries(document_lengths=lengths)
        results = []
        for function in (compiled, double_attention):
            out = function(*inputs, boundaries, backend=backend, **OPTIONS[name])
            results.append([out, *torch.autograd.grad(out.sum(), inputs)])
        for one, other in zip(*results, strict=True):
            torch.testing.assert_close(one, other, rtol=0, atol=1e-6)
        seen.append(results[0][0])

    assert not any(torch.equal(seen[0], other) for other in seen[1:]), "all batches look alike, so this shows nothing"


def test_one_whole_graph_cannot_be_asked_for():
    torch.compiler.reset()
    compiled = torch.compile(double_attention, backend="aot_eager", fullgraph=True)
    x = torch.ones(9, 1, 4)

    with pytest.raises(torch._dynamo.exc.Unsupported, match="disable"):
        compiled(x, x, x, Boundaries(document_lengths=(9,)))
