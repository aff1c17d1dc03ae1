"""What the rules over batches share: the door, the check by its code, and batches that several examples start from."""

from collections.abc import Callable, Iterator
from typing import Any, Final

from hermetic.audit.rule import Example


def batch(text: str) -> Example:
    """Python that leaves a mapping named ``batch``."""
    return Example(door="batch", text=text)


def check_of(code: str) -> Callable[[Any], Iterator[Any]]:
    """The check of a rule, imported when it is first called, for it needs NumPy."""

    def check(facts: Any) -> Iterator[Any]:
        from hermetic.audit.batch.checks import CHECKS

        return CHECKS[code](facts)

    return check


EDGES: Final = batch("""\
batch = {
    "input_ids": [[5, 6, 7, 8, 9]],
    "cu_seqlens": [0, 3, 5],
}
""")

POSITIONS: Final = batch("""\
batch = {
    "input_ids": [[5, 6, 7, 8, 9]],
    "position_ids": [[0, 1, 2, 0, 1]],
}
""")

LABELS: Final = batch("""\
batch = {
    "input_ids": [[5, 6, 7, 8, 9]],
    "labels": [[-100, 6, 7, -100, 9]],
    "position_ids": [[0, 1, 2, 0, 1]],
}
""")

MODEL_INPUTS: Final = batch("""\
import hermetic

documents = [{"input_ids": [5, 6, 7]}, {"input_ids": [8, 9]}]
batch = hermetic.collate(documents, pad_to=8).model_inputs()
""")

ADDITIVE: Final = batch("""\
import torch
from hermetic import Boundaries
from hermetic.batch.dialects import additive_mask

boundaries = Boundaries.from_lengths([3, 2])
mask = additive_mask(boundaries, dtype=torch.float32)
batch = {
    "input_ids": torch.tensor([[5, 6, 7, 8, 9]]),
    "attention_mask": mask,
    "position_ids": boundaries.position_ids[None],
}
""")
