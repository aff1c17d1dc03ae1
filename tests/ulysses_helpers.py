"""A small model over a stream that may lie on several ranks, solved there and by one process."""

from dataclasses import dataclass, field
from itertools import chain

import torch
from torch.utils.checkpoint import checkpoint

from hermetic.attention import packed_attention
from hermetic.attention.ulysses import ulysses_attention
from hermetic.batch import Boundaries, collate
from hermetic.batch.dialects import shift_labels
from hermetic.constants import IGNORE_INDEX

VOCABULARY, WIDTH, K, V = 11, 6, 4, 3

BOUND = 1e-12
"""The exchange only moves numbers; what may differ from one process is the order of sums. None here has more than a
few hundred terms of about 1, and 1e-12 is 9,000 roundings of a 1 in float64. Measured: 5e-15 at most."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """A packed row, how it lies on the ranks, and a model."""

    lengths: tuple[int, ...] = (4, 0, 5, 2)
    tail: int = 0
    shards: tuple[int, ...] = (6, 5)
    heads: int = 4
    key_heads: int = 4
    sinks: bool = False
    checkpoint: bool = False
    options: dict = field(default_factory=dict)

    @property
    def boundaries(self):
        return Boundaries(document_lengths=self.lengths)


class Model(torch.nn.Module):
    """Two layers over a flat stream in float64; ``attend`` is packed_attention or ulysses_attention."""

    def __init__(self, case, attend):
        super().__init__()
        self.case, self.attend = case, attend
        torch.manual_seed(0)
        shapes = {"token": (VOCABULARY, WIDTH), "position": (max(case.lengths) + 1, WIDTH), "head": (WIDTH, VOCABULARY)}
        for layer in (0, 1):
            shapes[f"q{layer}"] = (WIDTH, case.heads * K)
            shapes[f"k{layer}"] = (WIDTH, case.key_heads * K)
            shapes[f"v{layer}"] = (WIDTH, case.key_heads * V)
            shapes[f"o{layer}"] = (case.heads * V, WIDTH)
            if case.sinks:
                shapes[f"sinks{layer}"] = (case.heads,)
        weights = {name: torch.nn.Parameter(torch.randn(shape).double() / 2) for name, shape in shapes.items()}
        self.weights = torch.nn.ParameterDict(weights)

    def embed(self, ids, positions):
        return self.weights["token"][ids] + self.weights["position"][positions]

    def forward(self, ids, positions):
        return self.run(self.embed(ids, positions))

    def run(self, x):
        for layer in (0, 1):
            mix = self.attention_layer
            x = x + (checkpoint(mix, x, layer, use_reentrant=False) if self.case.checkpoint else mix(x, layer))
        return x @ self.weights["head"]

    def attention_layer(self, x, layer):
        q, k, v = (
            (x @ self.weights[f"{name}{layer}"]).unflatten(1, (-1, width))
            for name, width in (("q", K), ("k", K), ("v", V))
        )
        sinks = self.weights[f"sinks{layer}"] if self.case.sinks else None
        out = self.attend(q, k, v, self.case.boundaries, sinks=sinks, **self.case.options)
        return out.flatten(1) @ self.weights[f"o{layer}"]


def batch_of(case):
    generator = torch.Generator().manual_seed(1)
    documents = [torch.randint(1, VOCABULARY, (length,), generator=generator).tolist() for length in case.lengths]
    return collate([{"input_ids": ids} for ids in documents], pad_to=sum(case.lengths) + case.tail)


def solve(case, attend, part):
    """Logits, the gradients of a training step, and which token's embedding moves which document's logits.

    ``part`` cuts a tensor of the whole stream to what this process holds.
    """
    batch = batch_of(case)
    positions = torch.nn.functional.pad(batch.boundaries.position_ids, (0, case.tail))
    documents = torch.nn.functional.pad(batch.boundaries.document_ids, (0, case.tail), value=-1)
    targets = shift_labels(batch.labels, batch.boundaries)  # of the whole stream: the next token may lie elsewhere
    model = Model(case, attend)
    x = model.embed(part(batch.input_ids), part(positions))
    logits = model.run(x)
    lost = torch.nn.functional.cross_entropy(logits, part(targets), ignore_index=IGNORE_INDEX, reduction="sum")
    (lost / batch.num_supervised_tokens).backward()
    return {
        "logits": logits.tolist(),
        "gradients": {name: weight.grad.tolist() for name, weight in model.weights.items()},
        "influence": influence(model, x.detach(), part(documents), len(case.lengths)),
    }


def influence(model, x, documents, num_documents):
    """``[D][T]``: how much each embedding moves the sum of a document's squared logits."""
    rows = []
    for document in range(num_documents):
        leaf = x.clone().requires_grad_()
        model.run(leaf)[documents == document].square().sum().backward()
        rows.append(leaf.grad.abs().amax(dim=1).tolist())
    return rows


def part_of(case, rank):
    """Cuts a tensor of the stream to what ``rank`` holds; ranks count within the group that shares the stream."""
    return lambda x: x.split(list(case.shards))[rank]


def solve_on_rank(case, rank, attend=ulysses_attention):
    return solve(case, attend, part_of(case, rank))


def solve_alone(case):
    return solve(case, packed_attention, lambda x: x)


def tensor(numbers):
    return torch.as_tensor(numbers, dtype=torch.float64)


def joined(parts):
    """What the ranks found, as one process would have it: tokens side by side, gradients summed."""
    names = parts[0]["gradients"]
    return {
        "logits": [row for part in parts for row in part["logits"]],
        "gradients": {name: sum(tensor(part["gradients"][name]) for part in parts) for name in names},
        "influence": [list(chain(*rows)) for rows in zip(*(part["influence"] for part in parts), strict=True)],
    }


def distances(found, expected):
    """The largest difference of the logits and of each parameter's gradient."""
    pairs = {"logits": (found["logits"], expected["logits"])}
    pairs |= {name: (found["gradients"][name], expected["gradients"][name]) for name in expected["gradients"]}
    tensors = {name: [tensor(x) for x in pair] for name, pair in pairs.items()}
    return {name: float((a - b).abs().max()) for name, (a, b) in tensors.items()}
