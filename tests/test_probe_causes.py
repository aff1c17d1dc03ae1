"""What stands beside a leak is a fact of the very call: seen in its arguments, or measured by calling otherwise."""

import pytest
import torch
import transformers
from models import CALLS, calling, packed, tiny
from torch import nn

import hermetic
from hermetic.atlas import build_tiny
from hermetic.batch.dialects import additive_mask, dense_mask
from hermetic.probe import probe_call
from hermetic.probe.observe import observe
from hermetic.probe.subject import subject_from

LENGTHS = (11, 13)


def codes(report):
    assert report.verdict == "leak"
    return [finding.code for finding in report.findings]


def row(batch, **arguments):
    positions = batch.boundaries.position_ids[None]
    return {"input_ids": batch.input_ids[None], "position_ids": positions, "use_cache": False, **arguments}


def function(model, arguments):
    """The model, called with what ``arguments`` makes of a batch."""
    return lambda batch: model(**arguments(batch)).logits


@pytest.mark.filterwarnings("ignore:.past_key_values. is deprecated:FutureWarning")
@pytest.mark.parametrize("name", ["past_key_values", "cache"])
def test_a_cache_that_is_handed_in_is_named(name):
    model = tiny("llama")

    def with_cache(batch, **others):
        return row(batch) | {name: transformers.DynamicCache()} | others

    report = hermetic.probe(function(model, with_cache))
    assert codes(report) == ["HM100", "HM106"]
    assert report.findings[1].where == name
    assert codes(hermetic.probe(function(model, lambda batch: with_cache(batch, use_cache=None)))) == [
        "HM100",
        "HM102",
        "HM106",
    ]


def test_a_cache_that_a_model_makes_by_itself_is_none_that_was_handed_in():
    assert codes(hermetic.probe(calling(tiny("llama"), "default_cache"))) == ["HM100", "HM102"]


def test_a_call_in_which_nothing_says_where_documents_start_is_named():
    arguments = {"use_cache": False, "labels": None}
    call = function(build_tiny("mamba"), lambda batch: {"input_ids": batch.input_ids[None], **arguments})
    report = hermetic.probe(call)
    assert codes(report) == ["HM301", "HM107"]
    assert (
        "MambaForCausalLM was given input_ids, use_cache, and no module was given positions" in report.findings[1].what
    )


@pytest.mark.parametrize(
    ("name", "leak", "unread"),
    [
        ("gpt_oss", "HM100", "cu_seq_lens_q, cu_seq_lens_k, max_length_q, max_length_k: "),
        ("lfm2", "HM302", "cu_seq_lens_q, cu_seq_lens_k, max_length_q, max_length_k: "),
        ("bloom", "HM100", "cu_seq_lens_q, cu_seq_lens_k, max_length_q, max_length_k, position_ids: "),
    ],
)
def test_boundaries_that_nobody_reads_are_named_and_positions_that_are_read_are_not(name, leak, unread):
    found = hermetic.probe(tiny(name))
    assert codes(found) == [leak, "HM108"]
    assert found.findings[1].what.startswith(unread + "passed and read by nobody")


def test_boundaries_that_are_passed_by_place_are_left_out_as_well():
    class Reading(nn.Module):
        """Sums over each document, and over the row too where ``leaks``."""

        def __init__(self, *, reads):
            super().__init__()
            torch.manual_seed(0)
            self.embedding, self.head, self.reads = nn.Embedding(32, 8), nn.Linear(8, 32), reads

        def forward(self, input_ids, document_ids=None):
            hidden = self.embedding(input_ids)
            own = 0 if document_ids is None or not self.reads else document_ids[..., None]
            return self.head(hidden.cumsum(1) + hidden * own)

    batch = packed(LENGTHS, vocabulary=32)
    for reads, expected in ((False, ["HM108"]), (True, [])):
        report = probe_call(Reading(reads=reads), (batch.input_ids[None], batch.boundaries.document_ids[None]), {})
        assert codes(report)[1:] == expected


def test_what_else_turned_isolation_off_is_told_and_not_that_edges_are_unread():
    inputs = {"all_ones_mask": "HM101", "default_cache": "HM102"}
    for call, code in inputs.items():

        def with_edges(batch, call=call):
            edges = batch.boundaries.cu_seqlens
            return CALLS[call](batch) | {"cu_seq_lens_q": edges, "cu_seq_lens_k": edges}

        assert codes(hermetic.probe(function(tiny("llama"), with_edges))) == ["HM100", code]


def test_a_leak_outside_of_modules_is_no_reason_to_blame_them_for_what_they_do_not_read():
    model = tiny("llama")

    def mixed(batch):
        logits = model(**{k: v for k, v in batch.model_inputs().items() if k != "labels"}).logits
        return logits + logits.cumsum(1)

    report = hermetic.probe(mixed)
    assert codes(report) == ["HM100"]
    assert report.findings[0].where == "outside of the modules that were seen"


@pytest.mark.parametrize(
    ("implementation", "dtype"), [("eager", torch.bool), ("eager", torch.float32), ("sdpa", torch.float32)]
)
def test_a_mask_over_pairs_of_another_kind_than_the_model_adds_is_named(implementation, dtype):
    model = tiny("llama", implementation=implementation)

    def masked(batch):
        return row(batch, attention_mask=dense_mask(batch.boundaries)[None, None].to(dtype))

    report = hermetic.probe(function(model, masked))
    assert codes(report) == ["HM100", "HM109"]
    assert report.findings[1].what.startswith("a mask of booleans" if dtype == torch.bool else "a mask of ones and")
    assert codes(probe_call(model, (), masked(packed(LENGTHS)))) == ["HM100", "HM109"]


def test_a_mask_over_pairs_that_lets_documents_see_each_other_is_not_blamed_on_its_kind():
    everybody = torch.ones(24, 24, dtype=torch.bool).tril()[None, None]

    def masked(batch):
        alone = batch.boundaries.num_documents == 1
        mask = dense_mask(batch.boundaries)[None, None] if alone else everybody
        return row(batch, attention_mask=mask[..., : batch.num_slots, : batch.num_slots])

    report = hermetic.probe(function(tiny("llama"), masked), lengths=LENGTHS, instruments=("swap", "gradient"))
    assert codes(report) == ["HM100"]


@pytest.mark.parametrize("sealed", [False, True])
@pytest.mark.parametrize("moved", [-1, 1])
def test_edges_that_are_off_by_one_are_named_and_a_mask_of_ones_is_not_held_against_a_seal(sealed, moved):
    model = tiny("llama")
    model = hermetic.seal(model) if sealed else model

    def off(batch):
        edges = batch.boundaries.cu_seqlens.clone()
        edges[1:-1] += moved
        ones = torch.ones_like(batch.input_ids[None])
        return {
            "input_ids": batch.input_ids[None],
            "attention_mask": ones,
            "cu_seq_lens_q": edges,
            "cu_seq_lens_k": edges,
        }

    report = hermetic.probe(function(model, off), lengths=LENGTHS)
    beside = ["HM110"] if sealed else ["HM110", "HM101", "HM102"]
    assert codes(report) == ["HM104" if sealed else "HM100", *beside, "HM201"]
    edge, said = min((11, "no edge"), (11 + moved, "an edge"))
    assert f"cu_seq_lens_q has other documents than the batch: {said} at token {edge}" in report.findings[1].what


@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize("name", ["document_ids", "seq_idx"])
def test_right_numbers_of_documents_are_not_called_wrong_whatever_they_start_with(name, first):
    model = build_tiny("mamba2")

    def numbered(batch):
        numbers = (batch.boundaries.document_ids + first)[None]
        return {"input_ids": batch.input_ids[None], name: numbers, "use_cache": False}

    assert codes(hermetic.probe(function(model, numbered), lengths=LENGTHS)) == ["HM301", "HM108"]


def test_the_call_that_is_read_is_that_of_the_module_that_is_fed_the_tokens_and_not_of_the_last():
    model = tiny("llama")
    head = nn.Linear(97, 7)
    batch = packed(LENGTHS)

    def headed(packed_batch):
        ones = torch.ones_like(packed_batch.input_ids[None])
        return head(model(packed_batch.input_ids[None], ones, use_cache=False).logits)

    seen = observe(subject_from(headed, seed=0), batch)
    assert seen.outermost is model
    assert seen.attention_mask is not None
    assert "HM101" in codes(hermetic.probe(headed))


def test_the_additive_form_of_a_mask_is_silent_where_its_booleans_leak():
    model = tiny("llama", implementation="eager")
    numbers = function(model, lambda b: row(b, attention_mask=additive_mask(b.boundaries, dtype=torch.float32)))
    assert hermetic.probe(numbers).verdict == "sealed"
