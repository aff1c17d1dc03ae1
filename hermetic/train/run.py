"""Fine-tune on packed rows with transformers' Trainer: sealed, probed on the first batch, honestly counted.

Algorithm: a source file is packed (or a packed folder opened), the model is sealed, and ``SealedTrainer``
trains it with a token-level loss over each whole optimizer step. ``pack=False`` trains the same rows of
documents padded instead: the same documents in the same steps, one to a row.
Guarantee: the folder is written whole, after training, or not at all; nothing is trained on a leak.
Price: what the Trainer costs; the probe and the seal take seconds, and the weights are read once to find NaN.
"""

import json
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from hermetic.data import PackedData, load_tokenizer, open_packed, pack_sources, tokenizer_fingerprint
from hermetic.data.dependencies import import_optional
from hermetic.data.folders import check_free, new_folder
from hermetic.errors import TrainError
from hermetic.seal import seal
from hermetic.train.fitting import fit
from hermetic.train.records import TrainMetrics, TrainSettings, metrics_of

if TYPE_CHECKING:
    from hermetic.probe import LeakReport

METRICS_NAME = "hermetic_metrics.json"
REPORT_NAME = "leak_report.json"


def train(
    *,
    model: str | os.PathLike[str],
    data: str | os.PathLike[str],
    out: str | os.PathLike[str],
    capacity: int,
    settings: TrainSettings | None = None,
    pack: bool = True,
    backend: str = "sdpa",
    on_overflow: str = "error",
    trust_remote_code: bool = False,
    on_stage: Callable[[str], None] | None = None,
) -> TrainMetrics:
    """Fine-tune a causal language model and write it with its metrics and leak report.

    Args:
        model: folder or hub id of a model with its tokenizer.
        data: a file that ``hermetic pack`` reads, or a folder that it made.
        out: new folder for the model and its tokenizer (``from_pretrained`` loads them),
            ``hermetic_metrics.json``, ``leak_report.json`` when packed, and, when ``data`` is a file, its rows in
            ``packed``. With several processes (``torchrun``) the first one writes.
        capacity: tokens per row.
        settings: how to train.
        pack: ``False`` trains the padded baseline: the same documents in the same steps, one to a row.
        backend: attention backend of the seal.
        on_overflow: what to do with documents longer than ``capacity``, when ``data`` is a file.
        trust_remote_code: whether model and tokenizer may bring code of their own and run it.
        on_stage: called with what is being done, at least once for every optimizer step.

    Raises:
        DataError: ``data`` cannot be read or packed, or ``out`` holds something already.
        TrainError: model, tokenizer and data do not fit each other.
        SealError: the model cannot be sealed.
        LeakError: the probe's verdict on the first batch is not ``sealed``.
    """
    settings = settings or TrainSettings()
    say = on_stage or _say_nothing
    tokenizer = load_tokenizer(model, trust_remote_code=trust_remote_code)
    with _folder_of_this_process(Path(out)) as folder:
        packed = packed_data(
            data,
            tokenizer,
            capacity=capacity,
            folder=folder,
            pack_options={
                "tokenizer": model,
                "on_overflow": on_overflow,
                "trust_remote_code": trust_remote_code,
                "on_progress": lambda now: say(f"{now.stage}, {now.documents:,} documents"),
            },
        )
        say(f"loading {model}")
        # Small steps vanish in bfloat16 weights, so trained weights are float32; adapters leave theirs alone.
        dtype = None if settings.lora else torch.float32
        network = load_model(model, trust_remote_code=trust_remote_code, dtype=dtype)
        check_vocabulary(network, packed, data)
        check_weights(network)
        if settings.lora:
            network = add_lora(network)
        if pack:
            say("sealing")
            seal(network, backend=backend)
        result = fit(network, packed, settings, pack=pack, pad_token_id=tokenizer.pad_token_id or 0, on_stage=say)
        metrics = metrics_of(result, packed, pack=pack, settings=settings)
        say(f"writing {out}")
        _save(folder, network, tokenizer, metrics, result.report)
    return metrics


def is_first_process() -> bool:
    """Whether this is the only process of a training run, or the one that writes."""
    return os.environ.get("RANK", "0") == "0"  # as torchrun and accelerate tell each of their processes


def _say_nothing(stage: str) -> None:
    """Nobody asked what is being done."""


@contextmanager
def _folder_of_this_process(target: Path) -> Iterator[Path]:
    """Where to write: the first process to ``target``, the others, which hold the same, to where it is gone."""
    check_free(target)
    if is_first_process():
        with new_folder(target) as folder:
            yield folder
        return
    with tempfile.TemporaryDirectory(prefix="hermetic-train-") as name:
        yield Path(name)


def _save(folder: Path, network: Any, tokenizer: Any, metrics: TrainMetrics, report: "LeakReport | None") -> None:
    from hermetic.integrations.transformers import without_progress_bars

    with without_progress_bars():
        network.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    text = json.dumps(asdict(metrics), indent=2, allow_nan=False)
    (folder / METRICS_NAME).write_text(text + "\n", encoding="utf-8")
    if report is not None:
        (folder / REPORT_NAME).write_text(report.to_json() + "\n", encoding="utf-8")


def packed_data(
    data: str | os.PathLike[str], tokenizer: Any, *, capacity: int, folder: Path, pack_options: dict[str, Any]
) -> PackedData:
    """Open a packed folder, or pack a file into ``folder``.

    Args:
        data: a file that ``hermetic pack`` reads, or a folder that it made.
        tokenizer: that of the model, loaded.
        capacity: tokens per row; that of the folder, if it is one.
        folder: where a file's rows go, as ``packed``.
        pack_options: of ``pack_sources``, ``tokenizer`` among them.

    Raises:
        DataError: ``data`` cannot be read or packed.
        TrainError: the folder was packed for another capacity or with another tokenizer.
    """
    if not Path(data).is_dir():
        pack_sources(data, folder / "packed", capacity=capacity, **pack_options)
        return open_packed(folder / "packed")
    packed = open_packed(data)
    if packed.manifest.capacity != capacity:
        raise TrainError(
            f"{data} was packed for rows of {packed.manifest.capacity} tokens and --capacity is {capacity}; "
            "expected the same. Pass its capacity, or pack the source again"
        )
    if packed.manifest.tokenizer_fingerprint != tokenizer_fingerprint(tokenizer):
        raise TrainError(
            f"{data} was tokenized with another tokenizer than that of the model; its token ids mean something else. "
            "Pack the source again with this model's tokenizer"
        )
    return packed


def load_model(
    model: str | os.PathLike[str],
    *,
    trust_remote_code: bool = False,
    attention: str | None = None,
    dtype: torch.dtype | None = None,
) -> Any:
    """Load a causal language model from a folder or the hub.

    Args:
        model: folder or hub id.
        trust_remote_code: whether the model may bring code of its own and run it.
        attention: the attention implementation, as transformers names it; by default the model's own choice.
        dtype: of the weights; by default that of the checkpoint.

    Raises:
        TrainError: there is no such model.
    """
    transformers = import_optional("transformers")
    import_optional("accelerate")
    from safetensors import SafetensorError

    from hermetic.integrations.transformers import without_progress_bars

    if os.sep in os.fspath(model) and os.fspath(model)[0] in {".", os.sep, "~"} and not Path(model).exists():
        raise TrainError(f"{model} does not exist; expected a folder with a config and weights, or a hub id")
    choices = {"attn_implementation": attention, "dtype": dtype}
    options = {name: choice for name, choice in choices.items() if choice is not None}
    try:
        with without_progress_bars():
            return transformers.AutoModelForCausalLM.from_pretrained(
                os.fspath(model), trust_remote_code=trust_remote_code, **options
            )
    except (OSError, ValueError, RuntimeError, SafetensorError) as error:
        reason = " ".join(str(error).split())
        raise TrainError(
            f"{model} cannot be loaded as a causal language model ({reason}); expected a folder with a config and "
            "weights, or a hub id"
        ) from error


def check_vocabulary(network: Any, packed: PackedData, data: str | os.PathLike[str]) -> None:
    """Raise a TrainError if ``data`` holds token ids that the model does not embed."""
    size = network.get_input_embeddings().num_embeddings
    rows = packed.dataset.with_format("numpy", columns=["input_ids"])
    largest = max(int(ids.max()) for batch in rows.iter(batch_size=1024) for ids in batch["input_ids"])
    if largest >= size:
        raise TrainError(
            f"{os.fspath(data)} holds the token id {largest} and the model embeds {size} tokens; expected ids below "
            "that. Pack the source with this model's tokenizer"
        )


def check_weights(network: nn.Module) -> None:
    """Raise a TrainError if a weight is NaN or infinite."""
    for name, parameter in network.named_parameters():
        if not bool(torch.isfinite(parameter).all()):
            raise TrainError(
                f"the weights of {name} are not all finite; expected numbers. The checkpoint is damaged or comes from "
                "a diverged run: take an earlier one"
            )


def add_lora(network: nn.Module) -> nn.Module:
    """Wrap a model with trainable low-rank adapters on all of its linear layers but the output."""
    peft = import_optional("peft")
    config = peft.LoraConfig(r=16, lora_alpha=32, lora_dropout=0.0, target_modules="all-linear", task_type="CAUSAL_LM")
    adapted: nn.Module = peft.get_peft_model(network, config)
    return adapted
