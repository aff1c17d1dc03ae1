"""What must hold of a backend, law by law; each is measured on one problem in one dtype.

A law that allows nothing compares bits or asks for exact zeros. Where roundings are legitimate, the allowance is a
multiple of the floor that ``low_precision`` measures on the very same problem; no number is chosen here.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch

from hermetic.testing.low_precision import ALLOWED_GRADIENT, ALLOWED_OUTPUT, Tensors
from hermetic.testing.memory import poisoned_memory
from hermetic.testing.problems import SLOTS, Problem, error, floors, leaves_of, solved

AttentionFunction = Callable[..., torch.Tensor]
"""``fn(q, k, v, boundaries, *, causal, window, chunk, scale, softcap, sinks)``, as ``packed_attention`` has it."""


_PER_TOKEN = ("gradient of q", "gradient of k", "gradient of v")


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """One number that was measured and the largest that is allowed."""

    what: str
    found: float
    allowed: float

    @property
    def holds(self) -> bool:
        """NaN does not."""
        return self.found <= self.allowed


@dataclass(frozen=True, kw_only=True)  # no slots: the floor is worked out on first use and kept
class Trial:
    """A backend, a problem, and the dtype and device to solve it in."""

    fn: AttentionFunction
    problem: Problem
    dtype: torch.dtype
    device: torch.device

    @cached_property
    def inputs(self) -> Tensors:
        """The problem's inputs as the backend gets them."""
        return {name: x.to(self.device, self.dtype) for name, x in self.problem.inputs.items()}

    @cached_property
    def upstream(self) -> torch.Tensor:
        """The gradient of the output, in the tested dtype."""
        return self.problem.upstream.to(self.device, self.dtype)

    @cached_property
    def floor(self) -> dict[str, float]:
        """How far roundings alone move each result."""
        return floors(self.problem, self.dtype, self.device)

    def allowed(self, name: str) -> float:
        """How far a result may be off. In float64 the definition is rounded as well, so its own floor comes on top."""
        factor = ALLOWED_OUTPUT if name == "output" else ALLOWED_GRADIENT
        return (factor + (self.dtype == torch.float64)) * self.floor[name]

    def attend(self, x: Tensors) -> torch.Tensor:
        """One call of the backend."""
        options = self.problem.case.options(x.get("sinks"))
        return self.fn(x["q"], x["k"], x["v"], self.problem.boundaries, **options)

    def forward(self, x: Tensors) -> torch.Tensor:
        """One call without gradients."""
        with torch.no_grad():
            return self.attend(x)

    def solved(self, x: Tensors, upstream: torch.Tensor) -> Tensors:
        """Output and gradients."""
        return solved(self.attend, leaves_of(x), upstream)


@dataclass(frozen=True, kw_only=True, slots=True)
class Law:
    """One thing that must hold."""

    name: str
    statement: str
    way_out: str
    measure: Callable[[Trial], list[Finding]]
    """No finding means that the law has nothing to say on this problem."""
    of_gradients: bool = False
    needs: tuple[str, ...] = ("contract",)
    """Laws without which this one would say nothing."""


def contract(trial: Trial) -> list[Finding]:
    """Dtype, device and shape of the result; inputs as they were."""
    given = {name: x.clone() for name, x in trial.inputs.items()}
    out: Any = trial.forward(given)
    if not isinstance(out, torch.Tensor):
        raise TypeError(f"the backend returned a {type(out).__name__}; expected one tensor [T, H, V]")
    expected = trial.problem.exact["output"].shape
    agree = {
        f"output of shape {list(out.shape)} where {list(expected)} is expected": out.shape == expected,
        f"output in {out.dtype} where {trial.dtype} is expected": out.dtype == trial.dtype,
        f"output on {out.device.type} where {trial.device.type} is expected": out.device.type == trial.device.type,
    }
    wrong = [Finding(what=what, found=0.0 if right else 1.0, allowed=0.0) for what, right in agree.items()]
    return [*wrong, *_unwritten(given, trial.inputs)]


def repeat(trial: Trial) -> list[Finding]:
    """The same call twice."""
    real = trial.problem.case.num_tokens
    first, second = trial.forward(trial.inputs)[:real], trial.forward(trial.inputs)[:real]
    return [_same("output numbers that differ between two calls", first, second)]


def values(trial: Trial) -> list[Finding]:
    """Output against the float64 definition."""
    case, exact = trial.problem.case, trial.problem.exact["output"]
    found = error(trial.forward(trial.inputs), exact, case.num_tokens)
    return [Finding(what="error of output", found=found, allowed=trial.allowed("output"))]


def strides(trial: Trial) -> list[Finding]:
    """Output of the same numbers laid out in memory head by head, as models that transpose have them."""
    transposed = dict(trial.inputs)
    for name in ("q", "k", "v"):
        transposed[name] = trial.inputs[name].transpose(0, 1).contiguous().transpose(0, 1)
    found = error(trial.forward(transposed), trial.problem.exact["output"], trial.problem.case.num_tokens)
    return [Finding(what="error of output", found=found, allowed=trial.allowed("output"))]


def gradients(trial: Trial) -> list[Finding]:
    """Output under autograd, and each gradient, against the float64 definition."""
    given = leaves_of(trial.inputs)
    found = solved(trial.attend, given, trial.upstream)
    findings = _unwritten(given, trial.inputs)
    for name, exact in trial.problem.exact.items():
        if name not in found:
            findings.append(Finding(what=f"{name} that is missing", found=1.0, allowed=0.0))
            continue
        off = error(found[name], exact, trial.problem.case.num_tokens)
        findings.append(Finding(what=f"error of {name}", found=off, allowed=trial.allowed(name)))
    return findings


def swap(trial: Trial) -> list[Finding]:
    """Replace one document after the other; nobody else may move by a bit."""
    before = trial.forward(trial.inputs)
    findings = []
    for index, own, others in _each_document(trial):
        after = trial.forward(_with_other_content(trial, own))
        what = f"output numbers of others that move when document {index} is replaced"
        findings.append(_same(what, before[others], after[others]))
    return findings


def gradient_isolation(trial: Trial) -> list[Finding]:
    """Send a gradient into one document after the other; none may arrive elsewhere."""
    findings = []
    for index, own, others in _each_document(trial):
        found = trial.solved(trial.inputs, torch.where(own[:, None, None], trial.upstream, 0.0))
        findings += _zero(found, others, f"outside of document {index}, which alone has a loss")
    return findings


def causality(trial: Trial) -> list[Finding]:
    """Replace what one token may not see of its own document; it may not move by a bit."""
    findings = []
    for token, unseen in _unseen_of_one_token(trial):
        before, after = (trial.forward(x)[token] for x in (trial.inputs, _with_other_content(trial, unseen)))
        findings.append(_same(f"output numbers of token {token} that move with what it may not see", before, after))
    return findings


def gradient_causality(trial: Trial) -> list[Finding]:
    """Send a gradient into one token; none may arrive at what it may not see."""
    findings = []
    for token, unseen in _unseen_of_one_token(trial):
        upstream = torch.zeros_like(trial.upstream)
        upstream[token] = trial.upstream[token]
        found = trial.solved(trial.inputs, upstream)
        findings += _zero(found, unseen, f"at what token {token}, which alone has a loss, may not see")
    return findings


def tail(trial: Trial) -> list[Finding]:
    """Zeros on the tail, whatever the tail and memory hold."""
    real = trial.problem.case.num_tokens
    findings = []
    for holds, inputs, memory in _tails(trial):
        with memory:
            out = trial.forward(inputs)
        findings.append(_zero_numbers(f"output on the tail when {holds}", out[real:]))
        findings.append(_finite(f"output numbers that are not finite when {holds}", [out[:real]]))
    return findings


def gradient_tail(trial: Trial) -> list[Finding]:
    """Zero gradients on the tail, whatever the tail and memory hold."""
    real = trial.problem.case.num_tokens
    findings = []
    for holds, inputs, memory in _tails(trial):
        with memory:
            found = trial.solved(inputs, trial.upstream)
        on_tail = torch.arange(SLOTS, device=trial.device) >= real
        findings += _zero(found, on_tail, f"on the tail when {holds}")
        numbers = [x[:real] for x in found.values()]
        findings.append(_finite(f"output and gradient numbers that are not finite when {holds}", numbers))
    return findings


LAWS = (
    Law(
        name="contract",
        statement="The output is one tensor [T, H, V] in the dtype and on the device of q, and no input is written to.",
        way_out="return a new tensor in the dtype of q, tail included, and copy an input before changing it",
        measure=contract,
        needs=(),
    ),
    Law(
        name="repeat",
        statement="The same call gives the same bits.",
        way_out="sum in a fixed order in the forward pass: no atomic additions, no number of splits chosen by load",
        measure=repeat,
    ),
    Law(
        name="values",
        statement="The output is what the float64 definition says, within the roundings of the dtype.",
        way_out="compare with hermetic.packed_attention(backend='reference') on this very problem",
        measure=values,
    ),
    Law(
        name="strides",
        statement="Queries, keys and values may lie in memory head by head.",
        way_out="read the tensors by their strides, or make them contiguous first",
        measure=strides,
        needs=("contract", "values"),
    ),
    Law(
        name="swap",
        statement="Replacing one document changes not one bit of the output of another.",
        way_out="let the kernel start and stop at the document's own edges, to the token",
        measure=swap,
        needs=("contract", "repeat"),
    ),
    Law(
        name="causality",
        statement="Replacing what a token may not see of its own document changes not one bit of its output.",
        way_out="see that a token sees itself and the window - 1 before it, of its own chunk, counted in its document",
        measure=causality,
        needs=("contract", "repeat"),
    ),
    Law(
        name="tail",
        statement="The output is exactly zero on the padded tail, and nothing that the tail or memory holds gets out.",
        way_out="attend over the tokens of the boundaries only, and start from zeros, not from empty memory",
        measure=tail,
    ),
    Law(
        name="gradients",
        statement="Every gradient is what the float64 definition says, within the roundings of the dtype.",
        way_out="compare the backward pass with that of hermetic.packed_attention(backend='reference'), input by input",
        measure=gradients,
        of_gradients=True,
    ),
    Law(
        name="gradient isolation",
        statement="No gradient of one document's output reaches another document's queries, keys or values.",
        way_out="let the backward kernel start and stop at the document's own edges, to the token",
        measure=gradient_isolation,
        of_gradients=True,
    ),
    Law(
        name="gradient causality",
        statement="No gradient of a token's output reaches what it may not see of its own document.",
        way_out="use the mask of the forward pass in the backward pass",
        measure=gradient_causality,
        of_gradients=True,
    ),
    Law(
        name="gradient tail",
        statement="Every gradient is exactly zero on the padded tail, and nothing that tail or memory holds gets out.",
        way_out="start the gradients of q, k and v from zeros, not from empty memory",
        measure=gradient_tail,
        of_gradients=True,
    ),
)


def _same(what: str, one: torch.Tensor, other: torch.Tensor) -> Finding:
    return Finding(what=what, found=float((one != other).sum()), allowed=0.0)  # a NaN differs from every number


def _zero_numbers(what: str, x: torch.Tensor) -> Finding:
    return Finding(what=what, found=float(x.abs().max()) if x.numel() else 0.0, allowed=0.0)


def _zero(found: Tensors, where: torch.Tensor, path: str) -> list[Finding]:
    """Gradients of queries, keys and values are zero at the tokens of a mask."""
    return [_zero_numbers(f"{name} {path}", found[name][where]) for name in _PER_TOKEN if name in found]


def _finite(what: str, tensors: list[torch.Tensor]) -> Finding:
    return Finding(what=what, found=sum(float((~x.isfinite()).sum()) for x in tensors), allowed=0.0)


def _unwritten(given: Tensors, before: Tensors) -> list[Finding]:
    return [_same(f"numbers of {name} that were written to", x, before[name]) for name, x in given.items()]


def _each_document(trial: Trial) -> Iterator[tuple[int, torch.Tensor, torch.Tensor]]:
    """Each document that has tokens: index, and ``[T]`` masks of its and of all other real tokens."""
    slots = torch.arange(SLOTS, device=trial.device)
    for index, span in trial.problem.case.documents:
        own = (slots >= span.start) & (slots < span.stop)
        yield index, own, (slots < trial.problem.case.num_tokens) & ~own


def _unseen_of_one_token(trial: Trial) -> Iterator[tuple[int, torch.Tensor]]:
    """The middle token of the longest document, and a ``[T]`` mask of what it may not see of that document."""
    case = trial.problem.case
    if not case.documents:
        return
    longest = max((own for _, own in case.documents), key=lambda own: own.stop - own.start)
    token = (longest.start + longest.stop) // 2
    seen = trial.problem.mask(SLOTS)[token]
    unseen = torch.zeros(SLOTS, dtype=torch.bool)
    unseen[longest] = ~seen[longest]
    if bool(unseen.any()):
        yield token, unseen.to(trial.device)


def _with_other_content(trial: Trial, where: torch.Tensor) -> Tensors:
    """Other numbers at the tokens of a mask; values so large that a weight far below rounding shows."""
    generator = torch.Generator().manual_seed(1)
    changed = dict(trial.inputs)
    for name in ("q", "k", "v"):
        x = trial.inputs[name]
        other = torch.randn(x.shape, generator=generator).to(x)
        loud = torch.finfo(x.dtype).max ** 0.75 if name == "v" else 1.0
        changed[name] = torch.where(where[:, None, None], other * loud, x)
    return changed


def _tails(trial: Trial) -> Iterator[tuple[str, Tensors, AbstractContextManager[None]]]:
    """What the tail may hold and what memory may hold; a row without a tail has only memory."""
    real = trial.problem.case.num_tokens
    if real == SLOTS:
        yield "memory holds NaN", trial.inputs, poisoned_memory()
        return
    garbage = dict(trial.inputs)
    for name in ("q", "k", "v"):
        garbage[name] = trial.inputs[name].clone()
        garbage[name][real:] = torch.nan
    yield "the tail holds numbers", trial.inputs, nullcontext()
    yield "the tail holds NaN", garbage, nullcontext()
    yield "tail and memory hold NaN", garbage, poisoned_memory()
