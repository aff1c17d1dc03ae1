"""DeepSpeed's JSON, which says how work is split, and nothing of data.

What it does, read in 0.19: Ulysses hands each device whole rows for some of the heads. It throws 4-D masks away, and
builds a causal one anew for FlexAttention, so that only flash attention, which reads positions, keeps documents apart.
"""

from typing import Final

from hermetic.audit.setup import Parallel, Setting, Settings, Setup, Versions
from hermetic.audit.stacks.reading import Reader, more_than_one

MARKS: Final = frozenset(
    {
        *("zero_optimization.stage", "train_batch_size", "train_micro_batch_size_per_gpu", "gradient_clipping"),
        *("bf16.enabled", "fp16.enabled", "steps_per_print", "wall_clock_breakdown", "zero_allow_untested_optimizer"),
        *("sequence_parallel_size", "sequence_parallel.size", "zero_force_ds_cpu_optimizer"),
    }
)


def setup_of(settings: Settings, *, versions: Versions) -> Setup:
    """The facts of a DeepSpeed configuration."""
    read = Reader(settings, "DeepSpeed")
    size = _size(read)
    rows = settings.get("train_micro_batch_size_per_gpu")
    return Setup(
        stack="deepspeed",
        versions=versions,
        layout="unknown",
        packing=read.default("not known before it runs", "packing"),
        rows_per_device=rows,
        parallel=(Parallel(kind="ulysses", size=size),) if size is not None and more_than_one(size) else (),
        remarks=("DeepSpeed's file says nothing of packing: audit the trainer's configuration or command, too.",),
    )


def _size(read: Reader) -> Setting | None:
    for name in ("sequence_parallel_size", "sequence_parallel.size"):
        if name in read.settings:
            return read.number(name, None)
    return None
