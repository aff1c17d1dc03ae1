"""What a probe costs, in training steps of the same batch: passes, seconds and memory.

A Llama in float32 or bfloat16 and a row of 2,048 tokens, in few or many documents. Passes are token-passes in units of
the row, so that a forward over four documents cut to 194 tokens counts 194/2048: a forward is 1, a backward to the
embeddings 1, a backward to the parameters too 2, and a step 3. Seconds of the processor and the peak of memory are
those of fresh processes: the model and what is computed, without the imports. Prints a table and, last, one line of
JSON.

``--full`` takes a model of 110 million parameters; ``--documents 7`` one row only.
"""

import argparse
import json
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM, logging

import hermetic
from hermetic.probe import INSTRUMENTS

TOKENS = 2048
FULL = {"hidden": 768, "layers": 12, "vocabulary": 32_000}
LIMIT_STEPS, LIMIT_MEMORY = 5.0, 1.2


def llama(hidden: int, layers: int, vocabulary: int, dtype: str) -> nn.Module:
    """A sealed untrained model whose heads are 64 wide and whose output matrix is its embedding's."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=hidden,
        intermediate_size=hidden * 8 // 3,
        num_hidden_layers=layers,
        num_attention_heads=hidden // 64,
        max_position_embeddings=4 * TOKENS,
        tie_word_embeddings=True,
        pad_token_id=0,
    )
    return hermetic.seal(LlamaForCausalLM(config).eval().to(getattr(torch, dtype)))


def lengths_of(documents: int) -> list[int]:
    """Documents of about equal length that fill the row, each of another length than the next."""
    middle = TOKENS // documents
    lengths = [middle + (number % 5 - 2) * (middle // 20) for number in range(documents)]
    lengths[-1] += TOKENS - sum(lengths)
    return lengths


@dataclass(kw_only=True, slots=True)
class Passes:
    """Token-passes, in tokens."""

    forward: int = 0
    backward: float = 0.0


@contextmanager
def counted(model: nn.Module) -> Iterator[Passes]:
    """Count what goes through the head of a model, and comes back."""
    passes = Passes()
    head = model.lm_head.weight

    def hook(_module: nn.Module, arguments: tuple[torch.Tensor], _output: torch.Tensor) -> None:
        (hidden,) = arguments
        tokens = hidden[..., 0].numel()
        passes.forward += tokens
        if hidden.requires_grad:
            price = 2.0 if head.requires_grad or any(p.requires_grad for p in model.parameters()) else 1.0

            def back(_gradient: torch.Tensor) -> None:
                passes.backward += price * tokens

            hidden.register_hook(back)

    handle = model.lm_head.register_forward_hook(hook)
    try:
        yield passes
    finally:
        handle.remove()


def step(model: nn.Module, batch: hermetic.PackedBatch) -> None:
    """Forward and backward of a training step; its optimizer is left out."""
    model(**batch.model_inputs()).loss.backward()
    for parameter in model.parameters():
        parameter.grad = None


def measure(arguments: argparse.Namespace, what: str) -> dict[str, Any]:
    """Run one thing in this process: the probe once, and a step twice, of which the faster counts."""
    imported = peak()
    model = llama(arguments.hidden, arguments.layers, arguments.vocabulary, arguments.dtype)
    generator = torch.Generator().manual_seed(0)
    ids = [torch.randint(3, arguments.vocabulary, (n,), generator=generator) for n in lengths_of(arguments.documents)]
    documents = [{"input_ids": part} for part in ids]
    batch = hermetic.collate(documents)
    seconds = []
    for _ in range(2 if what == "step" else 1):
        with counted(model) as passes:
            started = time.process_time()
            if what == "step":
                step(model, batch)
            else:
                instruments = None if what == "probe" else [what]
                hermetic.probe(model, documents=documents, instruments=instruments)
            seconds.append(time.process_time() - started)
    return {
        "what": what,
        "documents": arguments.documents,
        "forwards": passes.forward / TOKENS,
        "backwards": passes.backward / TOKENS,
        "steps_counted": (passes.forward + passes.backward) / TOKENS / 3,
        "seconds": min(seconds),
        "peak_mib": peak() - imported,
    }


def peak() -> float:
    """The largest resident size of this process so far, in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def in_fresh_process(arguments: argparse.Namespace, documents: int, what: str) -> dict[str, Any]:
    """One measurement by itself, for a peak of memory never falls."""
    sizes = ("hidden", "layers", "vocabulary", "dtype", "threads")
    options = [part for name in sizes for part in (f"--{name}", str(getattr(arguments, name)))]
    command = [sys.executable, __file__, *options, "--documents", str(documents), "--only", what]
    done = subprocess.run(command, check=True, capture_output=True, text=True)  # noqa: S603 - this very file
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def compared(arguments: argparse.Namespace, documents: int) -> list[dict[str, Any]]:
    """A step, the probe and, if asked, each instrument by itself, over one row."""
    names = ["step", "probe", *(INSTRUMENTS if arguments.instruments else ())]
    rows = [in_fresh_process(arguments, documents, name) for name in names]
    for row in rows:
        row["steps"] = row["seconds"] / rows[0]["seconds"]
        row["memory"] = row["peak_mib"] / rows[0]["peak_mib"]
    return rows


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hidden", type=int, default=256, help="width, a multiple of 64")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--vocabulary", type=int, default=8000)
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--full", action="store_true", help=f"{FULL}")
    parser.add_argument("--documents", type=int, nargs="+", default=[4, 7, 48])
    parser.add_argument("--instruments", action="store_true", help="each instrument by itself, too")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--only", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.full:
        vars(arguments).update(FULL)
    logging.set_verbosity_error()
    torch.set_num_threads(arguments.threads)
    if arguments.only:
        (arguments.documents,) = arguments.documents
        print(json.dumps(measure(arguments, arguments.only)))
        return
    rows = [row for documents in arguments.documents for row in compared(arguments, documents)]
    table = Table(
        title=f"probe of {TOKENS} tokens, hidden {arguments.hidden}, {arguments.layers} layers, {arguments.dtype}"
    )
    for column in rows[0]:
        table.add_column(column.replace("_", " "))
    for row in rows:
        table.add_row(*(f"{value:.2f}" if isinstance(value, float) else str(value) for value in row.values()))
    Console(width=140).print(table)
    print(json.dumps({"probe": rows, "limits": {"steps": LIMIT_STEPS, "memory": LIMIT_MEMORY}}))


if __name__ == "__main__":
    main()
