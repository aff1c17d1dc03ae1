"""Data sets that the package makes itself, with a tiny model of random weights: what ``compare`` runs out of the box.

=================  ==================================================================================
conversations      the demo's: one in eight repeats the facts of an earlier one, in other words
near-duplicates    pairs that share an answer, side by side in the file and so in the row
=================  ==================================================================================
"""

import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, Protocol

import torch
from torch import nn

from hermetic.compare import Comparison, compare, settings_with
from hermetic.data import load_tokenizer
from hermetic.data.dependencies import import_optional
from hermetic.demo.conversations import Split, write_conversations
from hermetic.demo.near_duplicates import write_near_duplicates
from hermetic.errors import TrainError
from hermetic.train import TrainSettings

TOKENIZER: Final = Path(__file__).parent / "tokenizer"


class _Writer(Protocol):
    def __call__(self, path: str | os.PathLike[str], *, count: int, seed: int, split: Split) -> None: ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Preset:
    """Documents that are made, how they are packed, and how a tiny model is trained on them."""

    about: str
    write: _Writer
    conversations: int
    heldout: int
    capacity: int
    settings: TrainSettings
    pack_options: dict[str, Any]
    make: Callable[[int], nn.Module]
    """The untrained model of a seed."""


def tiny_llama(seed: int, *, deviation: float = 0.02) -> nn.Module:
    """An untrained Llama of three layers and 64 features over the demo's vocabulary; weights of this deviation."""
    transformers = import_optional("transformers")
    tokenizer = load_tokenizer(TOKENIZER)
    config = transformers.LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=192,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        initializer_range=deviation,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        network: nn.Module = transformers.LlamaForCausalLM(config)
    return network.eval()


PRESETS: Final = {
    "conversations": Preset(
        about="generated conversations, one in eight a near-duplicate of an earlier one",
        write=write_conversations,
        conversations=3000,
        heldout=200,
        capacity=512,
        settings=TrainSettings(epochs=2.0, rows_per_batch=4, learning_rate=3e-3),
        pack_options={},
        make=tiny_llama,
    ),
    "near-duplicates": Preset(
        about="generated pairs of conversations that share an answer, each with its twin in its row",
        write=write_near_duplicates,
        conversations=2000,
        heldout=120,
        capacity=112,  # two to a row: each with its twin
        settings=TrainSettings(epochs=2.0, rows_per_batch=8, learning_rate=3e-3),
        # in the order of the file: a shuffled plan would take nearly all pairs apart
        pack_options={"strategy": "next_fit", "seed": None},
        make=partial(tiny_llama, deviation=0.1),  # with smaller weights it learns to copy much later
    ),
}
"""By the names that ``hermetic compare --data`` takes."""


def compare_data(
    data: str | os.PathLike[str],
    *,
    model: str | os.PathLike[str] | None = None,
    capacity: int | None = None,
    heldout: str | os.PathLike[str] | None = None,
    given: dict[str, Any] | None = None,
    **options: Any,
) -> Comparison:
    """``hermetic.compare.compare`` on files, or on documents that are made for it.

    Args:
        data: one of ``PRESETS``, or what ``compare`` takes; a file of such a name is meant by ``./name``.
        model: folder or hub id; for a preset by default a tiny Llama with random weights, other ones for each seed.
        capacity: tokens per row; by default that of the preset or of a packed folder.
        heldout: as ``compare`` takes it; a preset makes its own.
        given: fields of ``TrainSettings`` that replace those of the preset, ``None`` where it is left as it is.
        **options: of ``compare``.

    Raises:
        TrainError: a file came without a model, or a preset with documents to hold out.
    """
    preset = PRESETS.get(os.fspath(data))
    settings = settings_with(preset.settings if preset else TrainSettings(), **given or {})
    if preset is None:
        if model is None:
            raise TrainError(
                f"{os.fspath(data)} came without a model; expected the folder or hub id of one with its tokenizer, or "
                f"documents that bring their own: {', '.join(PRESETS)}"
            )
        return compare(model=model, data=data, heldout=heldout, capacity=capacity, settings=settings, **options)
    if heldout is not None:
        raise TrainError(f"{data} makes the documents that it holds out; expected no others, and got {heldout}")
    return compare_preset(preset, model=model, capacity=capacity, settings=settings, **options)


def compare_preset(
    preset: Preset,
    *,
    model: str | os.PathLike[str] | None = None,
    capacity: int | None = None,
    settings: TrainSettings | None = None,
    **options: Any,
) -> Comparison:
    """``hermetic.compare.compare`` on documents that are made for it; arguments as in :func:`compare_data`."""
    chosen: dict[str, Any] = {"model": preset.make, "tokenizer": TOKENIZER} if model is None else {"model": model}
    with tempfile.TemporaryDirectory(prefix="hermetic-preset-") as name:
        train, heldout = write_documents(preset, Path(name))
        return compare(
            data=train,
            heldout=heldout,
            data_name=preset.about,
            capacity=preset.capacity if capacity is None else capacity,
            settings=settings or preset.settings,
            **preset.pack_options | chosen | options,
        )


def write_documents(preset: Preset, folder: Path) -> tuple[Path, Path]:
    """The files to train on and to hold out; the two share no facts."""
    train, heldout = folder / "train.jsonl", folder / "heldout.jsonl"
    preset.write(train, count=preset.conversations, seed=0, split="train")
    preset.write(heldout, count=preset.heldout, seed=1, split="heldout")
    return train, heldout
