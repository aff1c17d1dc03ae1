"""Show a leak, seal it, and train the same documents in four ways.

Algorithm: conversations are generated, packed and inspected; a tiny Llama is probed on them, packed naively
and sealed; then each arm of ``hermetic.demo.arms`` starts from the same weights, takes the same documents in
the same steps, and is measured on held-out conversations, one at a time.
Guarantee: what is printed was measured in this run, whatever came out.
Price: about three minutes on two cores.
"""

import contextlib
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from hermetic.constants import IGNORE_INDEX
from hermetic.data import (
    PackedData,
    PackedSummary,
    inspect_packed,
    load_tokenizer,
    open_packed,
    pack_sources,
    tokenize_file,
)
from hermetic.data.dependencies import import_optional
from hermetic.demo.conversations import write_conversations
from hermetic.loss import token_loss
from hermetic.probe import LeakReport, probe
from hermetic.seal import seal
from hermetic.train import TrainSettings, fit, make_trainer, metrics_of

TOKENIZER = Path(__file__).parent / "tokenizer"
CAPACITY = 512


@dataclass(frozen=True, kw_only=True, slots=True)
class DemoSize:
    """How much the demo does; the default takes about three minutes on two cores."""

    conversations: int = 3000
    heldout: int = 200
    settings: TrainSettings = field(
        default_factory=lambda: TrainSettings(epochs=2.0, rows_per_batch=4, learning_rate=3e-3)
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class ArmResult:
    """What one arm came to."""

    train_loss: float
    """Mean token-level loss of the last tenth of the steps, in nats."""
    heldout_loss: float
    """Token-level loss of held-out conversations, each run alone, in nats."""
    utilization: float
    steps: int
    tokens_per_second: float
    logit_difference: float
    """Largest difference to the padded logits on the first batch, before training."""
    gradient_difference: float
    """Relative difference to the padded parameter gradients on the first batch, before training."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DemoResult:
    """All that the demo measured."""

    summary: PackedSummary
    naive: LeakReport
    sealed: LeakReport
    arms: dict[str, ArmResult]

    def to_dict(self) -> dict[str, Any]:
        """``arms`` and ``probe``, plain numbers and verdicts."""
        names = ArmResult.__dataclass_fields__
        return {
            "arms": {arm: {name: getattr(result, name) for name in names} for arm, result in self.arms.items()},
            "probe": {"naive": self.naive.verdict, "sealed": self.sealed.verdict},
        }


def run_demo(*, size: DemoSize | None = None, on_stage: Callable[[str], None] = print) -> DemoResult:
    """Run the whole demo in a temporary folder; ``on_stage`` is told what is being done."""
    from hermetic.demo.arms import all_arms

    size = size or DemoSize()
    with tempfile.TemporaryDirectory(prefix="hermetic-demo-") as name, _quiet_transformers():
        folder = Path(name)
        on_stage("packing generated conversations")
        packed = _packed(folder, size)
        heldout = _heldout(folder, size)
        load = _model_maker(folder)
        on_stage("probing the naive and the sealed model")
        rows = _first_rows(load(), packed, size.settings)
        naive, sealed = _probed(load, rows)
        arms = {}
        reference: _FirstBatch | None = None
        for arm in all_arms():
            on_stage(f"training the {arm.name} arm")
            network = seal(load()) if arm.sealed else load()
            first = _first_batch(network, arm, rows)
            reference = reference or first
            fitted = fit(network, packed, size.settings, pack=arm.sealed, collator=arm.collator)
            metrics = metrics_of(fitted, packed, pack=arm.packed, settings=size.settings)
            arms[arm.name] = ArmResult(
                train_loss=metrics.train_loss,
                heldout_loss=_heldout_loss(network, heldout),
                utilization=metrics.utilization,
                steps=metrics.steps,
                tokens_per_second=metrics.tokens_per_second,
                logit_difference=first.logit_distance(reference),
                gradient_difference=first.gradient_distance(reference),
            )
        return DemoResult(summary=inspect_packed(packed.path), naive=naive, sealed=sealed, arms=arms)


def _packed(folder: Path, size: DemoSize) -> PackedData:
    source = folder / "conversations.jsonl"
    write_conversations(source, count=size.conversations, seed=0)
    pack_sources(source, folder / "packed", tokenizer=TOKENIZER, capacity=CAPACITY)
    return open_packed(folder / "packed")


def _heldout(folder: Path, size: DemoSize) -> list[dict[str, torch.Tensor]]:
    source = folder / "heldout.jsonl"
    write_conversations(source, count=size.heldout, seed=1, split="heldout")
    documents = tokenize_file(source, tokenizer=load_tokenizer(TOKENIZER))
    return [
        {name: torch.tensor(values, dtype=torch.long)[None] for name, values in document.items()}
        for document in map(documents.document, range(len(documents)))
    ]


def _model_maker(folder: Path) -> Callable[[], Any]:
    """A function that loads the same tiny untrained Llama each time."""
    transformers = import_optional("transformers")
    tokenizer = load_tokenizer(TOKENIZER)
    config = transformers.LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=192,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=CAPACITY,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        transformers.LlamaForCausalLM(config).save_pretrained(folder / "model")
    return lambda: transformers.AutoModelForCausalLM.from_pretrained(folder / "model")


def _first_rows(network: nn.Module, packed: PackedData, settings: TrainSettings) -> Any:
    """The rows of the batch that the Trainer of every arm takes first."""
    trainer = make_trainer(network, packed, settings, pack=False, collator=list)
    return next(iter(trainer.get_train_dataloader()))


def _probed(load: Callable[[], Any], rows: Sequence[Any]) -> tuple[LeakReport, LeakReport]:
    """The naive call of an unsealed model, and the sealed model, on the same documents of the first row."""
    documents = rows[0][:4]
    plain, sealed = load(), seal(load())

    def naive(batch: Any) -> torch.Tensor:
        logits: torch.Tensor = plain(
            input_ids=batch.input_ids[None], attention_mask=torch.ones_like(batch.input_ids)[None]
        ).logits
        return logits

    naive.__qualname__ = f"{type(plain).__name__} packed naively"  # how the report calls it
    return probe(naive, documents=documents), probe(sealed, documents=documents)


@dataclass(frozen=True, kw_only=True, slots=True)
class _FirstBatch:
    """Logits of each document and the gradient of the loss on the first batch of an untrained model."""

    logits: list[torch.Tensor]
    gradient: torch.Tensor

    def logit_distance(self, other: "_FirstBatch") -> float:
        return max(float((a - b).abs().max()) for a, b in zip(self.logits, other.logits, strict=True))

    def gradient_distance(self, other: "_FirstBatch") -> float:
        size = torch.linalg.vector_norm(other.gradient)
        return float(torch.linalg.vector_norm(self.gradient - other.gradient) / size)


def _first_batch(network: nn.Module, arm: Any, rows: Sequence[Any]) -> _FirstBatch:
    inputs = arm.collator(rows)
    labels = inputs.pop("labels")
    logits = network(**inputs).logits
    token_loss(logits, labels).backward()
    gradients = [p.grad.flatten() for p in network.parameters() if p.grad is not None]
    network.zero_grad(set_to_none=True)
    return _FirstBatch(logits=arm.split(logits.detach(), rows), gradient=torch.cat(gradients))


@torch.no_grad()
def _heldout_loss(network: nn.Module, documents: Sequence[dict[str, torch.Tensor]]) -> float:
    network.eval()
    device = next(network.parameters()).device  # the Trainer moved it
    total, count = 0.0, 0
    for document in ({name: ids.to(device) for name, ids in held.items()} for held in documents):
        labels = document["labels"]
        logits = network(input_ids=document["input_ids"], use_cache=False).logits
        total += float(token_loss(logits, labels, denominator=1))
        count += int((labels != IGNORE_INDEX).sum())
    return total / count


@contextlib.contextmanager
def _quiet_transformers() -> Iterator[None]:
    """The demo's own stages are its progress; loading and saving a tiny model ten times is none."""
    from hermetic.integrations.transformers import without_progress_bars

    logging = import_optional("transformers.utils.logging")
    before = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        with without_progress_bars():
            yield
    finally:
        logging.set_verbosity(before)
