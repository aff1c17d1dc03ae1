"""Two laws: whatever the library makes is silent, and every single corruption of one view is found by its code."""

from dataclasses import make_dataclass

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import hermetic
from hermetic.audit.batch.audit import audit_batch
from hermetic.audit.batch.checks import CHECKS
from hermetic.audit.batch.facts import facts_of
from hermetic.audit.batch.tensors import tensors_of
from hermetic.audit.rules import RULES
from hermetic.batch import Boundaries, views
from hermetic.batch.dialects import (
    additive_mask,
    dense_mask,
    flash_kwargs,
    jax_segments,
    mamba_seq_idx,
    packed_seq_kwargs,
    segment_ids,
    shift_labels,
    stacked_cu_seqlens,
    trl_seq_lengths,
    xformers_seqlens,
)

LENGTHS = st.lists(st.integers(0, 5), min_size=1, max_size=6).filter(lambda lengths: max(lengths) > 1)
ROWS = st.lists(st.lists(st.integers(1, 4), min_size=1, max_size=4), min_size=1, max_size=3)
NAMES = ("qkv_format", "max_seqlen_q", "max_seqlen_kv", "cu_seqlens_q", "cu_seqlens_kv")
PARAMS = make_dataclass("Params", [*NAMES, "cu_seqlens_q_padded", "cu_seqlens_kv_padded"])


def codes(batch):
    return {finding.code for finding in audit_batch(batch).findings}


def collated(lengths, tail=0):
    """Documents of tokens that are all different, so that no two of them look like padding."""
    tokens = np.split(np.arange(5, 5 + sum(lengths)), np.cumsum(lengths)[:-1])
    documents = [{"input_ids": document.tolist()} for document in tokens]
    return hermetic.collate(documents, pad_to=sum(lengths) + tail if tail else None)


@settings(max_examples=40)
@given(LENGTHS, st.integers(0, 5), st.data())
def test_every_packed_batch_and_its_model_inputs_are_silent(lengths, tail, data):
    batch = collated(lengths, tail)
    hidden = data.draw(st.lists(st.booleans(), min_size=batch.num_slots, max_size=batch.num_slots))
    labels = batch.labels.masked_fill(torch.tensor(hidden), -100)
    masked = hermetic.PackedBatch(input_ids=batch.input_ids, labels=labels, boundaries=batch.boundaries)
    expected = set() if masked.num_supervised_tokens else {"HM462"}

    assert codes(batch) == codes(batch.model_inputs()) == set()
    assert codes(masked) == codes(masked.model_inputs()) == expected


@settings(max_examples=40)
@given(LENGTHS, st.integers(0, 5))
def test_every_dialect_of_one_stream_is_silent(lengths, tail):
    batch = collated(lengths, tail)
    boundaries, slots = batch.boundaries, batch.num_slots
    ids = {"input_ids": batch.input_ids[None]}
    said = {
        "flash": flash_kwargs(boundaries, num_slots=slots),
        "documents": {"document_ids": views.document_ids_from_lengths(lengths, num_slots=slots)[None]},
        "state": {"seq_idx": mamba_seq_idx([boundaries], capacity=slots)},
        "lengths": {"seq_lengths": trl_seq_lengths([boundaries])},
        "xformers": {"seq_lens": [xformers_seqlens(boundaries, num_slots=slots)]},
        "additive": {"attention_mask": additive_mask(boundaries, dtype=torch.float32, num_slots=slots)},
        "window": {"attention_mask": additive_mask(boundaries, dtype=torch.bfloat16, window=2, num_slots=slots)},
        "chunk": {"attention_mask": additive_mask(boundaries, dtype=torch.float32, chunk=2, num_slots=slots)},
    }

    targets = {"shift_labels": shift_labels(batch.labels, boundaries)[None], "labels": batch.labels[None]}
    found = {name: codes(ids | dialect) for name, dialect in said.items()}

    assert {name: some for name, some in found.items() if some} == {}
    assert codes({**ids, **targets, **said["flash"], **said["documents"], **said["state"], **said["lengths"]}) == set()
    assert codes(ids | {"attention_mask": dense_mask(boundaries, num_slots=slots)[None, None]}) == {"HM109"}


@settings(max_examples=40)
@given(LENGTHS, st.integers(1, 3))
def test_megatrons_dialect_is_silent(lengths, ranks):
    boundaries = Boundaries.from_lengths(lengths)
    kwargs = packed_seq_kwargs(boundaries, PARAMS, context_parallel=ranks)
    slots = int(kwargs["cu_seqlens_q_padded"][-1])

    assert codes({"tokens": torch.arange(slots)[None], **kwargs}) == set()


@settings(max_examples=40)
@given(ROWS, st.integers(0, 3))
def test_every_dialect_of_several_rows_is_silent(rows, more):
    capacity = max(map(sum, rows)) + more
    boundaries = [Boundaries.from_lengths(row) for row in rows]
    ids = {"input_ids": np.arange(len(rows) * capacity).reshape(len(rows), capacity)}
    numbers, positions = jax_segments(boundaries, capacity=capacity)
    full = [[*row, *([capacity - sum(row)] if sum(row) < capacity else [])] for row in rows]
    stacked = stacked_cu_seqlens(Boundaries.from_lengths(np.concatenate(full)), capacity)
    said = {
        "from 0": {"segment_ids": segment_ids(boundaries, capacity=capacity, first_id=0)},
        "from 1": {"segment_ids": segment_ids(boundaries, capacity=capacity, first_id=1)},
        "jax": {"segment_ids": numbers, "positions": positions},
        "state": {"seq_idx": mamba_seq_idx(boundaries, capacity=capacity)},
        "stacked": {"cu_seqlens": stacked},
        "lengths": {"seq_lengths": trl_seq_lengths(boundaries)},
    }

    found = {name: codes(ids | dialect) for name, dialect in said.items()}

    assert {name: some for name, some in found.items() if some} == {}


def edges(inputs, change, names=("cu_seq_lens_q",)):
    changed = {name: torch.tensor(change(inputs[name].tolist()), dtype=torch.int32) for name in names}
    return inputs | changed


def positions(inputs, change):
    return inputs | {"position_ids": torch.tensor([change(inputs["position_ids"][0].tolist())])}


def labels(inputs, change):
    return inputs | {"labels": change(inputs["labels"].clone())}


def at(values, index, value):
    return [*values[:index], value, *values[index + 1 :]]


def put(tensor, slot, value):
    tensor[0, slot] = value
    return tensor


def without(inputs, name):
    return {other: value for other, value in inputs.items() if other != name}


def full_labels(inputs):
    return inputs["input_ids"].clone()


BOTH = ("cu_seq_lens_q", "cu_seq_lens_k")
CORRUPTIONS = {
    "no leading zero": ("HM160", lambda x, _: edges(x, lambda e: e[1:])),
    "a sentinel at the end": ("HM161", lambda x, _: edges(x, lambda e: [*e, -1])),
    "two edges exchanged": ("HM161", lambda x, _: edges(x, lambda e: [0, e[2], e[1], *e[3:]])),
    "no last edge": ("HM162", lambda x, _: edges(x, lambda e: e[:-1])),
    "an edge too far": ("HM162", lambda x, _: edges(x, lambda e: [*e[:-1], e[-1] + 3])),
    "edges of 64 bits": ("HM163", lambda x, _: x | {"cu_seq_lens_q": x["cu_seq_lens_q"].long()}),
    "numbers of 64 bits": ("HM163", lambda x, _: x | {"seq_idx": x["seq_idx"].long()}),
    "no edges of keys": ("HM164", lambda x, _: without(x, "cu_seq_lens_k")),
    "no longest length": ("HM164", lambda x, _: without(x, "max_length_q")),
    "a number that comes back": ("HM165", lambda x, d: x | {"seq_idx": put(x["seq_idx"].clone(), d[1] + 1, 0)}),
    "the tail in the last document": (
        "HM166",
        lambda x, _: edges(x, lambda e: [*e[:-2], e[-1]], BOTH) | {"max_length_q": 99, "max_length_k": 99},
    ),
    "an edge for each pad": ("HM167", lambda x, _: edges(x, lambda e: [*e[:-1], *range(e[-2] + 1, e[-1] + 1)], BOTH)),
    "a position 0 for each pad": ("HM167", lambda x, d: positions(x, lambda p: [*p[: d[-1]], *[0] * (len(p) - d[-1])])),
    "an edge that is moved": ("HM603", lambda x, _: edges(x, lambda e: at(e, 1, e[1] - 1))),
    "an edge that is lost": ("HM603", lambda x, _: edges(x, lambda e: [0, *e[2:]])),
    "a number that is moved": ("HM603", lambda x, d: x | {"document_ids": put(x["document_ids"].clone(), d[1] - 1, 1)}),
    "a restart too early": ("HM603", lambda x, d: positions(x, lambda p: at(p, d[1] - 1, 0))),
    "a length that is too small": ("HM260", lambda x, _: x | {"max_length_k": x["max_length_k"] - 1}),
    "positions that run on": ("HM201", lambda x, _: positions(x, lambda p: list(range(len(p))))),
    "positions that jump": ("HM261", lambda x, d: positions(x, lambda p: at(p, d[1] - 1, 90))),
    "a document that starts elsewhere": (
        "HM262",
        lambda x, d: positions(x, lambda p: [v + 7 if d[1] <= i < d[2] else v for i, v in enumerate(p)]),
    ),
    "a label on a seam": ("HM401", lambda x, d: labels(x, lambda y: put(y, d[1], int(x["input_ids"][0, d[1]])))),
    "labels that are shifted": ("HM403", lambda x, _: x | {"labels": full_labels(x).roll(-1)}),
    "labels that are shifted twice": ("HM403", lambda x, _: x | {"labels": full_labels(x).roll(-2)}),
    "labels that are shifted back": ("HM460", lambda x, _: x | {"labels": full_labels(x).roll(1)}),
    "a label on padding": ("HM461", lambda x, _: labels(x, lambda y: put(y, -1, 0))),
    "no label at all": ("HM462", lambda x, _: labels(x, lambda y: y.fill_(-100))),
    "targets of another batch": (
        "HM464",
        lambda x, d: x | {"shift_labels": put(x["shift_labels"].clone(), d[1] - 2, 4)},
    ),
    "positions that were not padded": ("HM660", lambda x, d: positions(x, lambda p: p[: d[-1]])),
    "an id below 0": ("HM661", lambda x, _: x | {"input_ids": put(x["input_ids"].clone(), -1, -1)}),
    "a mask of ones": ("HM101", lambda x, _: x | {"attention_mask": torch.ones_like(x["input_ids"])}),
    "a cache": ("HM102", lambda x, _: x | {"use_cache": True}),
    "numbers in a mask": ("HM103", lambda x, _: x | {"attention_mask": x["document_ids"] + 1}),
    "a mask with zeros": ("HM170", lambda x, _: x | {"attention_mask": (x["document_ids"] >= 0).long()}),
}
"""The code that has to be found, and what is done to one view of a sound batch, whose documents start at ``d``."""


def everything(lengths, tail):
    """A batch in every view, and where its documents start and end."""
    batch = collated(lengths, tail)
    boundaries, slots = batch.boundaries, batch.num_slots
    inputs = batch.model_inputs() | {
        "document_ids": views.document_ids_from_lengths(lengths, num_slots=slots)[None],
        "seq_idx": mamba_seq_idx([boundaries], capacity=slots),
        "shift_labels": shift_labels(batch.labels, boundaries)[None],
    }
    return inputs, [0, *np.cumsum(lengths).tolist()]


@pytest.mark.parametrize(("code", "corrupt"), CORRUPTIONS.values(), ids=CORRUPTIONS)
@settings(max_examples=5)
@given(lengths=st.lists(st.integers(3, 6), min_size=3, max_size=4), tail=st.integers(3, 4))
def test_a_single_corruption_of_one_view_is_found_by_its_code(code, corrupt, lengths, tail):
    inputs, starts = everything(lengths, tail)

    assert codes(inputs) == set()
    assert code in codes(corrupt(inputs, starts))


def test_every_check_of_a_batch_has_a_rule_and_every_rule_over_a_batch_a_check():
    assert {code for code in CHECKS if code not in RULES} == set()
    assert {code for code in RULES if 60 <= int(code[-2:]) < 80} <= set(CHECKS)


def test_every_check_of_a_batch_yields_its_own_code_alone():
    inputs, starts = everything([4, 5, 3], 3)
    for _, corrupt in CORRUPTIONS.values():
        facts = facts_of(tensors_of(corrupt(inputs, starts)))
        for code, check in CHECKS.items():
            assert {finding.code for finding in check(facts)} <= {code}


@settings(max_examples=25)
@given(lengths=st.lists(st.integers(2, 5), min_size=2, max_size=4), data=st.data())
def test_a_mask_with_one_more_open_cell_between_documents_is_found(lengths, data):
    boundaries = Boundaries.from_lengths(lengths)
    mask = additive_mask(boundaries, dtype=torch.float32)
    second = data.draw(st.integers(lengths[0], boundaries.num_tokens - 1))
    batch = {
        "input_ids": torch.arange(boundaries.num_tokens)[None],
        "attention_mask": mask.clone(),
        "position_ids": boundaries.position_ids[None],
    }
    batch["attention_mask"][0, 0, second, 0] = 0.0

    assert codes(batch | {"attention_mask": mask}) == set()
    assert "HM173" in codes(batch)
