"""Documents in, a folder of packed rows out.

Algorithm: read, check and tokenize every record of the source, plan the rows, gather their tokens, and let
``datasets`` write them. Guarantee: the folder is complete, with a manifest that adds up, or it does not
exist; every document is in it exactly once, and what an overflow policy cut or dropped is counted and was
asked for. Price: the tokens are in memory twice while the rows are written, 16 bytes a token in all.

The folder opens with ``datasets.load_from_disk`` and has, for each row,

    input_ids      list<int32>   the tokens of its documents, end to end
    labels         list<int32>   unshifted, -100 on each document's first token and on unsupervised tokens
    seq_lengths    list<int32>   tokens of each document, as TRL's packed format has it
    document_ids   list<int64>   0-based record of the source that each document is, or is cut from

For documents ``[5, 6, 7]`` and ``[8, 9]`` in one row: input_ids ``[5, 6, 7, 8, 9]``, labels ``[-100, 6, 7,
-100, 9]``, seq_lengths ``[3, 2]``, document_ids ``[0, 1]``.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

import hermetic
from hermetic.data.dependencies import import_optional
from hermetic.data.documents import TokenizedDocuments, tokenize_file
from hermetic.data.folders import check_free, new_folder
from hermetic.data.manifest import FORMAT_VERSION, MANIFEST_NAME, PackManifest
from hermetic.data.rows import RowBlock, row_blocks
from hermetic.data.sources import sha256_of_file
from hermetic.data.statistics import padding_waste
from hermetic.data.tokenizer import load_tokenizer, tokenizer_fingerprint
from hermetic.errors import DataError, DocumentTooLongError
from hermetic.plan import Plan, plan_rows

__all__ = ["pack_file"]


def pack_file(
    source: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    tokenizer: str | os.PathLike[str],
    capacity: int,
    strategy: str = "best_fit_decreasing",
    on_overflow: str = "error",
    seed: int | None = 0,
    trust_remote_code: bool = False,
    on_progress: Callable[[int], None] | None = None,
) -> PackManifest:
    """Pack the documents of a file into a new folder of rows.

    Args:
        source: a ``.jsonl``, ``.json`` (one object a line) or ``.parquet`` file of ``messages``, ``prompt``
            and ``completion``, ``text``, or ``input_ids`` with ``labels`` or ``loss_mask``.
        out: the folder to make; it may exist if it is empty.
        tokenizer: a folder with a Hugging Face tokenizer, or a model id.
        capacity: tokens per row.
        strategy: as in ``hermetic.plan_rows``.
        on_overflow: as in ``hermetic.plan_rows``.
        seed: as in ``hermetic.plan_rows``; None keeps the strategy's natural order.
        trust_remote_code: whether the tokenizer may bring code of its own and run it.
        on_progress: called with the number of documents tokenized so far.

    Returns:
        What was written, as it stands in the folder's ``manifest.json``.

    Raises:
        SourceError: If the source is missing, empty or malformed.
        RecordError: If a record is malformed.
        TemplateError: If a conversation cannot be rendered.
        DocumentTooLongError: If a document does not fit and ``on_overflow`` is ``"error"``.
        PlanError: If capacity, strategy, policy or seed are not valid.
        PackedDataError: If ``out`` holds something already.
        DataError: If the tokenizer cannot be loaded, or every document was dropped.
    """
    target = Path(out)
    check_free(target)
    # A wrong capacity or policy is better found now than after the whole source has been tokenized.
    plan_rows([1], capacity, strategy=strategy, on_overflow=on_overflow, seed=seed)
    loaded = load_tokenizer(tokenizer, trust_remote_code=trust_remote_code)
    fingerprint = tokenizer_fingerprint(loaded)
    documents = tokenize_file(source, tokenizer=loaded, on_progress=on_progress)
    plan = _plan(documents, capacity, strategy=strategy, on_overflow=on_overflow, seed=seed)
    blocks = list(row_blocks(documents, plan))
    with new_folder(target) as folder:
        _write_rows(blocks, folder)
        files = {path.name: sha256_of_file(path) for path in sorted(folder.iterdir())}
        manifest = _manifest(documents, plan, blocks, fingerprint, files)
        (folder / MANIFEST_NAME).write_text(manifest.to_json(), encoding="utf-8")
    return manifest


def _plan(documents: TokenizedDocuments, capacity: int, **options: Any) -> Plan:
    lengths = documents.lengths
    try:
        plan = plan_rows(lengths, capacity, **options)
    except DocumentTooLongError as error:
        first = int(np.argmax(lengths > capacity))
        raise DocumentTooLongError(f"{documents.where(first)}: {error}") from error
    if plan.num_rows == 0:
        raise DataError(
            f"{documents.source}: all {len(documents)} documents are longer than the capacity of {capacity} "
            "tokens and were dropped, expected at least one that fits; raise the capacity or choose another "
            "policy"
        )
    return plan


def _write_rows(blocks: Sequence[RowBlock], folder: Path) -> None:
    datasets = import_optional("datasets")
    int32, int64 = datasets.Value("int32"), datasets.Value("int64")
    kinds = {"input_ids": int32, "labels": int32, "seq_lengths": int32, "document_ids": int64}
    features = datasets.Features({name: datasets.List(kind) for name, kind in kinds.items()})
    with _without_progress_bars(datasets):
        datasets.Dataset.from_dict(_columns(blocks), features=features).save_to_disk(os.fspath(folder))


def _columns(blocks: Sequence[RowBlock]) -> dict[str, Any]:
    """Arrow columns that share the memory of the blocks; chunk by chunk, so that 32-bit offsets suffice."""
    import pyarrow as pa

    def column(name: str, edges: str) -> Any:
        chunks = [
            pa.ListArray.from_arrays(pa.array(getattr(block, edges), pa.int32()), pa.array(getattr(block, name)))
            for block in blocks
        ]
        return pa.chunked_array(chunks)

    return {
        "input_ids": column("input_ids", "token_edges"),
        "labels": column("labels", "token_edges"),
        "seq_lengths": column("lengths", "document_edges"),
        "document_ids": column("document_ids", "document_edges"),
    }


@contextmanager
def _without_progress_bars(datasets: Any) -> Iterator[None]:
    """Writing is the short part; whoever packs shows progress of the long one."""
    if datasets.are_progress_bars_disabled():
        yield
        return
    datasets.disable_progress_bars()
    try:
        yield
    finally:
        datasets.enable_progress_bars()


def _manifest(
    documents: TokenizedDocuments,
    plan: Plan,
    blocks: Sequence[RowBlock],
    fingerprint: str,
    files: dict[str, str],
) -> PackManifest:
    supervised = np.concatenate([block.supervised_per_document for block in blocks])
    placed_lengths = np.concatenate([block.lengths for block in blocks])
    return PackManifest(
        format_version=FORMAT_VERSION,
        hermetic_version=hermetic.__version__,
        source_name=documents.source.name,
        source_sha256=sha256_of_file(documents.source),
        tokenizer_fingerprint=fingerprint,
        capacity=plan.capacity,
        strategy=plan.strategy,
        on_overflow=plan.on_overflow,
        seed=plan.seed,
        documents_read=len(documents),
        documents_placed=len(np.unique(np.concatenate([block.document_ids for block in blocks]))),
        documents_dropped=len(plan.dropped),
        documents_truncated=_truncated(plan),
        fragments=_fragments(plan),
        documents_without_supervision=int((supervised == 0).sum()),
        tokens_read=len(documents.tokens),
        tokens_placed=int(placed_lengths.sum()),
        tokens_lost=plan.lost_tokens,
        supervised_tokens=int(supervised.sum()),
        rows=plan.num_rows,
        utilization=plan.utilization,
        lower_bound=plan.lower_bound,
        longest_document=int(placed_lengths.max()),
        mean_document=float(placed_lengths.mean()),
        padding_waste=padding_waste(placed_lengths),
        files=files,
    )


def _truncated(plan: Plan) -> int:
    return int((plan.lengths > plan.capacity).sum()) if plan.on_overflow == "truncate" else 0


def _fragments(plan: Plan) -> int:
    """Pieces that are not a whole document, under the policy that makes such pieces."""
    if plan.fragments is None:
        return 0
    return int((plan.fragments.length < plan.lengths[plan.fragments.document]).sum())
