"""The problems that a backend is given, their exact solutions, and how far roundings may move them.

Every row has the same number of slots, so that a backend that compiles for a shape compiles once per feature.
Document edges lie inside, at and across the blocks of 16, 64 and 128 tokens that kernels work in. All numbers are
such that bfloat16 holds them exactly: every dtype is given the same problem.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

import torch

from hermetic.attention import packed_attention
from hermetic.batch import Boundaries
from hermetic.batch.dialects import dense_mask
from hermetic.testing import low_precision
from hermetic.testing.low_precision import Tensors

SLOTS = 256
"""Tokens of a row with its tail."""

UNALIGNED = (37, 141, 1, 5, 46)
ALIGNED = (128, 64, 16, 48)


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """One feature of packed attention, named for what it is about; the defaults are plain causal attention."""

    name: str
    lengths: tuple[int, ...] = UNALIGNED
    heads: int = 2
    key_heads: int = 2
    key_width: int = 64
    value_width: int = 64
    causal: bool = True
    window: int | None = None
    chunk: int | None = None
    scale: float | None = None
    softcap: float | None = None
    sinks: bool = False

    @property
    def num_tokens(self) -> int:
        """Tokens without the tail."""
        return sum(self.lengths)

    @property
    def documents(self) -> tuple[tuple[int, slice], ...]:
        """Each document that has tokens: its index and where it lies."""
        edges = [0, *accumulate(self.lengths)]
        spans = (slice(begin, end) for begin, end in pairwise(edges))
        return tuple((index, span) for index, span in enumerate(spans) if span.start < span.stop)

    def options(self, sinks: torch.Tensor | None) -> dict[str, Any]:
        """The keyword arguments of ``packed_attention``."""
        return {
            "causal": self.causal,
            "window": self.window,
            "chunk": self.chunk,
            "scale": self.scale,
            "softcap": self.softcap,
            "sinks": sinks,
        }

    def __str__(self) -> str:
        """One line for people."""
        shape = f"{self.heads} heads over {self.key_heads} of widths {self.key_width} and {self.value_width}"
        said = {"window": self.window, "chunk": self.chunk, "scale": self.scale, "softcap": self.softcap}
        options = [f"causal={self.causal}", *(f"{name}={value}" for name, value in said.items() if value is not None)]
        options += ["sinks"] if self.sinks else []
        return f"documents of {list(self.lengths)} tokens in {SLOTS} slots, {shape}, {', '.join(options)}"


CASES = (
    Case(name="plain"),
    Case(name="aligned edges", lengths=ALIGNED),
    Case(name="tiny documents", lengths=(0, 1, 0, 1, 1, 119, 0, 0, 1, 100, 0)),
    Case(name="no tokens", lengths=(0, 0)),
    Case(name="bidirectional", causal=False),
    Case(name="window", window=7),
    Case(name="chunk", chunk=10),
    Case(name="window and chunk", window=7, chunk=10),
    Case(name="scale", scale=0.3),
    Case(name="softcap", softcap=1.0),
    Case(name="window and softcap", window=7, softcap=1.0),
    Case(name="sinks", heads=4, key_heads=4, sinks=True),
    Case(name="window and sinks", heads=4, key_heads=4, window=7, sinks=True),
    Case(name="grouped heads", heads=4, key_heads=2),
    Case(name="narrow values", value_width=32),
    Case(name="width of 40", key_width=40, value_width=40),
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Problem:
    """A case with numbers, in float64 on the CPU, and its exact solution."""

    case: Case
    inputs: Tensors
    """``q``, ``k``, ``v`` and, if the case has them, ``sinks``."""
    upstream: torch.Tensor
    """``[T, H, V]``: the gradient of the output."""
    exact: Tensors
    """Output and gradients, as ``solved`` names them."""

    @property
    def boundaries(self) -> Boundaries:
        """Of the case's documents."""
        return Boundaries(document_lengths=self.case.lengths)

    def mask(self, num_slots: int) -> torch.Tensor:
        """``[num_slots, num_slots]``: which query (row) may see which key."""
        case = self.case
        return dense_mask(
            self.boundaries, causal=case.causal, window=case.window, chunk=case.chunk, num_slots=num_slots
        )


def problem(case: Case, seed: int) -> Problem:
    """Draw the numbers of a case and solve it by the definition."""
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator).bfloat16().double()

    inputs = {
        "q": draw(SLOTS, case.heads, case.key_width),
        "k": draw(SLOTS, case.key_heads, case.key_width),
        "v": draw(SLOTS, case.key_heads, case.value_width),
    }
    if case.sinks:
        inputs["sinks"] = draw(case.heads)
    upstream = draw(SLOTS, case.heads, case.value_width)
    boundaries = Boundaries(document_lengths=case.lengths)

    def define(x: Tensors) -> torch.Tensor:
        options = case.options(x.get("sinks"))
        return packed_attention(x["q"], x["k"], x["v"], boundaries, backend="reference", **options)

    return Problem(case=case, inputs=inputs, upstream=upstream, exact=solved(define, leaves_of(inputs), upstream))


def leaves_of(inputs: Tensors) -> Tensors:
    """Copies that require gradients."""
    return {name: x.clone().requires_grad_() for name, x in inputs.items()}


def solved(attend: Callable[[Tensors], torch.Tensor], leaves: Tensors, upstream: torch.Tensor) -> Tensors:
    """Output and gradients by name; an input that gets no gradient is left out."""
    out = attend(leaves)
    if not out.requires_grad:
        return {"output": out}
    gradients = torch.autograd.grad(out, list(leaves.values()), upstream, allow_unused=True)
    found = {f"gradient of {name}": g for name, g in zip(leaves, gradients, strict=True) if g is not None}
    return {"output": out.detach(), **found}


def floors(problem: Problem, dtype: torch.dtype, device: torch.device) -> dict[str, float]:
    """The largest error of each result over all orders of the naive evaluation, on the tested device."""
    case, real = problem.case, problem.case.num_tokens
    mask = problem.mask(real).to(device)
    inputs = {name: (x if name == "sinks" else x[:real]).to(device, dtype) for name, x in problem.inputs.items()}
    upstream = problem.upstream[:real].to(device, dtype)
    scale = case.key_width**-0.5 if case.scale is None else case.scale
    worst = dict.fromkeys(problem.exact, 0.0)
    if real == 0:
        return worst
    for order in low_precision.orders(case.key_width, real, device):

        def evaluate(x: Tensors, order: low_precision.Order = order) -> torch.Tensor:
            return low_precision.attention(x, mask, scale=scale, softcap=case.softcap, order=order)

        for name, found in solved(evaluate, leaves_of(inputs), upstream).items():
            worst[name] = max(worst[name], error(found, problem.exact[name], real))
    return worst


def error(found: torch.Tensor, exact: torch.Tensor, num_tokens: int) -> float:
    """The largest absolute error over the real tokens; NaN if one is."""
    difference = (found[:num_tokens].cpu().double() - exact[:num_tokens]).abs()
    return float(difference.max()) if difference.numel() else 0.0
