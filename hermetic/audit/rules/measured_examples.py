"""What the examples of measured rules share: the door, and the calls that several of them hold against a bad one."""

from typing import Final

from hermetic.audit.rule import Example


def run(text: str) -> Example:
    """Python that leaves a report of the probe or the doctor."""
    return Example(door="run", text=text)


BY_POSITIONS: Final = run("""\
import hermetic
from hermetic.atlas import build_tiny

model = build_tiny("llama")


def forward(batch):
    positions = batch.boundaries.position_ids[None]
    return model(
        input_ids=batch.input_ids[None],
        position_ids=positions,
        use_cache=False,
    ).logits


report = hermetic.probe(forward)
""")
"""Token ids and positions that restart, no mask, no cache."""

WITH_LABELS: Final = run("""\
import hermetic
from hermetic.atlas import build_tiny

model = build_tiny("llama")

report = hermetic.probe(lambda batch: model(**batch.model_inputs()))
""")
"""What ``hermetic.collate`` makes, labels and all: the model's own loss is probed as well."""


def of(model: str) -> str:
    """Lines that make a tiny model."""
    return f"import hermetic\nfrom hermetic.atlas import build_tiny\n\nmodel = {model}\n"


def sealed(model_type: str) -> Example:
    """A tiny model of this type, sealed, and probed as it is."""
    return run(of(f'hermetic.seal(build_tiny("{model_type}"))') + "\nreport = hermetic.probe(model)\n")
