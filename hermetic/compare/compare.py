"""Compare ways of packing on a model and a data set of yours: from files to one result.

Algorithm: a source is packed (or a packed folder opened), some rows are held out, and ``run_comparison`` trains every
arm on the rest with every seed. A model folder gives the same weights to every seed; a function that makes a model may
draw others.
Guarantee: with ``out``, the folder appears after the last run, with the result in it, or not at all; its page is drawn
when it is there, so that an error while drawing loses nothing that was measured.
Price: that of ``hermetic.compare.run``; the model is loaded anew for each run.
"""

import json
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from hermetic.attention import BACKENDS
from hermetic.compare.arms import ARMS, arms_by_name
from hermetic.compare.page import page
from hermetic.compare.progress import OnStep
from hermetic.compare.records import Comparison
from hermetic.compare.rows import check_heldout, rows_of
from hermetic.compare.run import Subject, run_comparison
from hermetic.data import load_tokenizer
from hermetic.data.folders import new_folder
from hermetic.errors import BackendError, TrainError
from hermetic.files import write_text
from hermetic.markup import require_plots
from hermetic.train import TrainSettings, check_vocabulary, check_weights, load_model

RESULT_NAME = "comparison.json"
PAGE_NAME = "comparison.html"


def compare(
    *,
    model: str | os.PathLike[str] | Callable[[int], nn.Module],
    data: str | os.PathLike[str],
    capacity: int | None = None,
    heldout: str | os.PathLike[str] | None = None,
    tokenizer: str | os.PathLike[str] | None = None,
    data_name: str | None = None,
    settings: TrainSettings | None = None,
    seeds: int = 5,
    arms: Sequence[str] = ARMS,
    backend: str = "sdpa",
    trust_remote_code: bool = False,
    out: str | os.PathLike[str] | None = None,
    on_step: OnStep | None = None,
    **pack_options: Any,
) -> Comparison:
    """Train the same documents in several layouts over several seeds, and measure what differs.

    Args:
        model: folder or hub id of a causal language model with its tokenizer; or a function from a seed to an untrained
            model, which needs ``tokenizer``.
        data: a file that ``hermetic pack`` reads, or a folder that it made.
        capacity: tokens per row; by default that of a packed folder.
        heldout: another such file or folder to measure on; by default one row in ten of ``data`` is held out.
        tokenizer: folder or hub id; by default that of the model.
        data_name: what the result calls the data; by default its file name.
        settings: how to train; its seed is the first one.
        seeds: how many seeds.
        arms: some of ``ARMS``.
        backend: attention backend of the sealed arm.
        trust_remote_code: whether model and tokenizer may bring code of their own and run it.
        out: new folder for ``comparison.json``, ``comparison.html`` and, if files were packed, their rows.
        on_step: told what is being done, how many optimizer steps are done, and of how many.
        **pack_options: of ``hermetic.data.pack_sources``, such as ``on_overflow``.

    Returns:
        All that was measured; an arm that the model cannot run is in it with the reason.

    Raises:
        DataError: a source cannot be read or packed, or ``out`` holds something already.
        BackendError: there is no such backend; one that this machine cannot run is the sealed arm's own reason.
        TrainError: seeds, arms, model, tokenizer and data do not fit each other.
        ArmError: the model fails on padded documents, so that there is nothing to compare with.
        MissingDependencyError: ``out`` is given, and matplotlib is not installed, which draws the curves of its page.

    Example:
        ``compare(model="./model", data="chats.jsonl", capacity=4096, seeds=3).arm("naive").spread("train_illusion")``
    """
    if type(seeds) is not int or seeds < 1:
        raise TrainError(f"seeds is {seeds!r}; expected a whole number of at least 1")
    if backend not in BACKENDS:
        raise BackendError(f"backend is {backend!r}; expected one of {', '.join(map(repr, BACKENDS))}")
    if out is not None:
        require_plots()
    settings = settings or TrainSettings()
    tokens_of = _tokenizer_of(model, tokenizer)
    loaded = load_tokenizer(tokens_of, trust_remote_code=trust_remote_code)
    pad_token_id = loaded.pad_token_id or 0
    chosen = arms_by_name(arms, pad_token_id=pad_token_id)
    with _folder(out) as folder, quiet_transformers():
        options = {"tokenizer": tokens_of, "trust_remote_code": trust_remote_code, **pack_options}
        rows = rows_of(data, heldout, loaded, capacity=capacity, folder=folder, pack_options=options)
        make = model if callable(model) else _loader(model, trust_remote_code=trust_remote_code)
        first = make(settings.seed)
        check_vocabulary(first, rows.trained, data)
        check_heldout(first, rows, data if heldout is None else heldout)
        check_weights(first)
        subject = Subject(
            name=type(first).__name__ if callable(model) else os.fspath(model),
            data=data_name or Path(data).name,
            make=make,
            rows=rows,
            pad_token_id=pad_token_id,
            backend=backend,
        )
        del first
        result = run_comparison(
            subject,
            arms=chosen,
            seeds=range(settings.seed, settings.seed + seeds),
            settings=settings,
            on_step=on_step or _say_nothing,
        )
        if out is not None:
            write_text(folder / RESULT_NAME, json.dumps(result.to_dict(), indent=2, allow_nan=False) + "\n")
    if out is not None:
        write_text(Path(out) / PAGE_NAME, page(result))
    return result


def settings_with(base: TrainSettings, **given: Any) -> TrainSettings:
    """Settings with those replaced that are not ``None``.

    Raises:
        TrainError: a value is not a valid one.
    """
    return replace(base, **{name: value for name, value in given.items() if value is not None})


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """No log lines and bars for a model that is loaded once for each run."""
    from transformers.utils import logging

    from hermetic.integrations.transformers import without_progress_bars

    before = logging.get_verbosity()
    logging.set_verbosity_error()  # type: ignore[no-untyped-call]  # transformers has no types here
    try:
        with without_progress_bars():
            yield
    finally:
        logging.set_verbosity(before)


def _tokenizer_of(model: Any, tokenizer: str | os.PathLike[str] | None) -> str | os.PathLike[str]:
    if tokenizer is None and callable(model):
        raise TrainError(
            "model is a function and no tokenizer was given; expected the folder or hub id of the tokenizer that its "
            "documents are encoded with"
        )
    found: str | os.PathLike[str] = model if tokenizer is None else tokenizer
    return found


def _loader(model: str | os.PathLike[str], *, trust_remote_code: bool) -> Callable[[int], nn.Module]:
    """The same weights for every seed, in float32: small steps vanish in bfloat16 weights."""

    def load(_seed: int) -> nn.Module:
        network: nn.Module = load_model(model, trust_remote_code=trust_remote_code, dtype=torch.float32)
        return network

    return load


@contextmanager
def _folder(out: str | os.PathLike[str] | None) -> Iterator[Path]:
    """Where to write: to ``out``, or to where it is gone."""
    if out is not None:
        with new_folder(Path(out)) as folder:
            yield folder
        return
    with tempfile.TemporaryDirectory(prefix="hermetic-compare-") as name:
        yield Path(name)


def _say_nothing(_what: str, _done: int, _total: int) -> None:
    """Nobody asked what is being done."""
