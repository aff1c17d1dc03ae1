"""For the tests of hermetic.attention: random problems, and how far roundings alone may move their results."""

from dataclasses import dataclass

import torch
from hypothesis import strategies as st

from hermetic.attention import available_backends, packed_attention
from hermetic.attention.options import AttentionOptions
from hermetic.attention.reference import visible
from hermetic.batch import Boundaries

TRAINED_HERE = tuple(
    name for name, status in available_backends("cpu").items() if {torch.float64, torch.bfloat16} <= {*status.backward}
)
"""The backends with a backward pass on the CPU."""

NAMES = ("output", "gradient of q", "gradient of k", "gradient of v")


@dataclass(frozen=True, kw_only=True)
class Problem:
    """One call of packed_attention, in float64; ``tensors`` are q, k, v and the gradient of the output."""

    lengths: tuple[int, ...]
    tensors: tuple[torch.Tensor, ...]
    options: dict

    @property
    def boundaries(self) -> Boundaries:
        return Boundaries(document_lengths=self.lengths)

    @property
    def num_tokens(self) -> int:
        return sum(self.lengths)

    def solve(self, backend: str, dtype: torch.dtype = torch.float64) -> list[torch.Tensor]:
        """Output and gradients of q, k and v."""
        *inputs, upstream = (x.to(dtype) for x in self.tensors)
        q, k, v = (x.clone().requires_grad_() for x in inputs)
        out = packed_attention(q, k, v, self.boundaries, backend=backend, **self.options)
        out.backward(upstream)
        return [out.detach(), q.grad, k.grad, v.grad]


def problem(lengths, *, tail=0, heads=2, groups=1, key_width=4, value_width=4, seed=0, **options) -> Problem:
    generator = torch.Generator().manual_seed(seed)
    slots = sum(lengths) + tail
    shapes = [(heads * groups, key_width), (groups, key_width), (groups, value_width), (heads * groups, value_width)]
    # Values that bfloat16 holds exactly, so that every dtype solves the same problem.
    draw = [torch.randn(slots, *shape, generator=generator).bfloat16().double() for shape in shapes]
    return Problem(lengths=tuple(lengths), tensors=tuple(draw), options=options)


@st.composite
def problems(draw, *, max_tail: int = 3) -> Problem:
    causal = draw(st.booleans())
    return problem(
        draw(st.lists(st.integers(0, 9), min_size=1, max_size=5)),
        tail=draw(st.integers(0, max_tail)),
        heads=draw(st.integers(1, 3)),
        groups=draw(st.integers(1, 2)),
        key_width=draw(st.integers(1, 5)),
        value_width=draw(st.integers(1, 5)),
        seed=draw(st.integers(0, 2**16)),
        causal=causal,
        window=draw(st.none() | st.integers(1, 6)) if causal else None,
        chunk=draw(st.none() | st.integers(1, 6)),
        scale=draw(st.none() | st.sampled_from([0.3, 1.0])),
    )


def rounding_bounds(p: Problem, dtype: torch.dtype) -> list[torch.Tensor]:
    """How far output and gradients in ``dtype`` may be from the exact ones, element by element.

    Standard backward error analysis: replace every term by its magnitude and multiply by the unit roundoff times
    the roundings on the way. Those are: a dot product of n terms, n; softmax, dropout scale, sums and stores, 16
    in all; a score s that is off by r*|s| moves its exponential by that factor, twice (numerator and sum).
    Half precision is accumulated in float32, so there the long sums cost its roundings instead.
    """
    u = torch.finfo(dtype).eps / 2
    accumulation = min(u, torch.finfo(torch.float32).eps / 2)
    q, k, v, upstream = (x.abs() for x in p.tensors)
    heads_per_group = q.shape[1] // k.shape[1]
    scale = p.options.get("scale") or q.shape[2] ** -0.5
    bounds = [torch.zeros_like(upstream), torch.zeros_like(q), torch.zeros_like(k), torch.zeros_like(v)]
    exact_q, exact_k = p.tensors[0], p.tensors[1]
    begin = 0
    for length in p.lengths:
        at = slice(begin, begin + length)
        begin += length
        if length == 0:
            continue
        sums = length + q.shape[2] + v.shape[2]
        mask = visible(length, attention_options(p.options), torch.device("cpu"))
        for head in range(q.shape[1]):
            group = head // heads_per_group
            scores = scale * exact_q[at, head] @ exact_k[at, group].T
            if p.options.get("softcap") is not None:
                scores = p.options["softcap"] * torch.tanh(scores / p.options["softcap"])
            weights = scores.masked_fill(~mask, -torch.inf).softmax(dim=-1)
            steepness = float((scale * q[at, head] @ k[at, group].T).max())
            factor = u * (16 + 2 * steepness) + accumulation * 2 * sums * (1 + steepness)
            out = weights @ v[at, group]
            slope = upstream[at, head] @ v[at, group].T + (upstream[at, head] * out).sum(-1, keepdim=True)
            flow = scale * weights * slope
            bounds[0][at, head] += factor * out
            bounds[1][at, head] += factor * flow @ k[at, group]
            bounds[2][at, group] += factor * flow.T @ q[at, head]
            bounds[3][at, group] += factor * weights.T @ upstream[at, head]
    return bounds


def attention_options(options: dict) -> AttentionOptions:
    blank = {"causal": True, "window": None, "chunk": None, "scale": 1.0, "softcap": None, "sinks": None}
    return AttentionOptions(**{**blank, "dropout": 0.0, **options})
