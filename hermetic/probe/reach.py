"""Which token reaches which, measured: what all masks and states of a model come to, over all of its layers.

Algorithm: one forward over a short batch, then for each token a backward from its logits to the embeddings of all.
Guarantee: a 0.0 is exact: no gradient of that token's logits arrives there. The logits are contracted with random
signs, so that no sum cancels by construction.
Price: one backward for each token, so at most ``MAX_TOKENS`` of them; a probe does not take it by itself.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from hermetic.errors import ProbeError
from hermetic.probe.probe import layers, packed_documents
from hermetic.probe.report import LeakReport
from hermetic.probe.subject import Forward, Subject, packed_run, subject_from
from hermetic.seal.measure import frozen, tapped_embeddings

MAX_TOKENS = 64
"""Of a batch whose tokens are asked one by one."""


def token_reach(
    model: nn.Module | Forward,
    *,
    documents: Sequence[Mapping[str, Any]] | None = None,
    lengths: Sequence[int] = (11, 13, 6, 1),
    seed: int = 0,
) -> torch.Tensor:
    """The largest gradient of each token's logits at each token's embeddings.

    Args:
        model: as for ``probe``.
        documents: what to pack, at most 64 tokens together; by default random tokens of the given ``lengths``.
        lengths: tokens of each default document.
        seed: of the default documents and of the signs that contract the logits.

    Returns:
        ``[T, T]`` float64: row t, column s is what token s may do to token t; 0.0 is exact.

    Raises:
        ProbeError: more than 64 tokens; the tokens are embedded by no ``torch.nn.Embedding``, or no gradient comes
            back; or the subject fails on packed documents (``UnsupportedError``).

    Example:
        >>> import torch, hermetic
        >>> from hermetic.probe import token_reach
        >>> table = torch.nn.Embedding(8, 2)
        >>> token_reach(lambda batch: table(batch.input_ids), lengths=(1, 2))
        tensor([[1., 0., 0.],
                [0., 1., 0.],
                [0., 0., 1.]], dtype=torch.float64)
    """
    subject = subject_from(model, seed=seed)
    batch = packed_documents(subject, documents, lengths)
    count = batch.boundaries.num_tokens
    if count > MAX_TOKENS:
        raise ProbeError(
            f"token_reach got {count} tokens; expected at most {MAX_TOKENS}, for each takes a backward of its own. "
            "Pass shorter documents"
        )
    ids = batch.input_ids[:count].to(subject.device)
    with packed_run(subject.name), frozen(subject.parameters()), torch.enable_grad(), tapped_embeddings(ids) as taps:
        per_token = _contracted(subject, subject.logits(batch))
        if not taps or not per_token.requires_grad:
            raise ProbeError(
                f"{subject.name} lets no gradient of its logits reach a torch.nn.Embedding that was fed the batch's "
                "input_ids, so no token can be asked; expected a model that embeds input_ids, without torch.no_grad()"
            )
        rows = []
        for total in per_token:
            total.backward(retain_graph=True)
            rows.append(torch.stack([tap.gradient_per_token(count) for tap in taps]).amax(dim=0))
    return torch.stack(rows)


def _contracted(subject: Subject, logits: torch.Tensor) -> torch.Tensor:
    """``[T]``: the logits of each token, summed with random signs."""
    generator = torch.Generator().manual_seed(subject.seed)
    signs = torch.randint(0, 2, logits.shape, generator=generator).to(logits) * 2 - 1
    return (logits * signs).sum(dim=-1)


def with_details(
    report: LeakReport, model: nn.Module | Forward, *, per_layer: bool = False, per_token: bool = False
) -> LeakReport:
    """The report of a probe of ``model`` with what it does not measure by itself.

    What cannot be measured stays ``None``: nothing of a model that fails on packed documents, and no tokens where the
    gradient instrument did not run, or of more than 64 of them.

    Args:
        report: of ``probe(model)``.
        model: what was probed.
        per_layer: read the layers also where nothing leaks.
        per_token: take ``token_reach`` of documents of the same lengths.
    """
    if report.verdict == "unsupported":
        return report
    if per_layer and report.layers is None:
        report = replace(report, layers=layers(model, lengths=report.lengths))
    if per_token and "gradient" in report.instruments and sum(report.lengths) <= MAX_TOKENS:
        report = replace(report, reach=token_reach(model, lengths=report.lengths))
    return report
