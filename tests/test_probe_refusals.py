"""What cannot be probed is refused with an error that names it, whatever is thrown; and small things are probed."""

import pytest
import torch
from models import calling, packed, tiny
from torch import nn

import hermetic
from hermetic.errors import NotPackedError, ProbeError, UnsupportedError
from hermetic.probe import layers, probe_call


class Tokenwise(nn.Module):
    """Each token sees itself alone; rows of more than ``longest`` tokens fail with ``failure``."""

    def __init__(self, failure=None, longest=0):
        super().__init__()
        torch.manual_seed(0)
        self.embedding, self.head = nn.Embedding(32, 8), nn.Linear(8, 32)
        self.failure, self.longest = failure, longest

    def forward(self, input_ids, position_ids=None, document_ids=None):  # noqa: ARG002 - what callers pass
        if self.failure is not None and input_ids.shape[-1] > self.longest:
            raise self.failure
        return self.head(self.embedding(input_ids))


FAILURES = [
    KeyError("no such column"),
    IndexError("out of range"),
    ZeroDivisionError("division by zero"),
    AssertionError("one row, please"),
    AttributeError("no such attribute"),
    NotImplementedError("not packed"),
]


@pytest.mark.parametrize("failure", FAILURES, ids=lambda failure: type(failure).__name__)
def test_whatever_a_model_raises_on_packed_rows_alone_makes_it_unsupported(failure):
    found = hermetic.probe(Tokenwise(failure, longest=13))
    assert (found.verdict, found.findings[0].code) == ("unsupported", "HM601")
    assert type(failure).__name__ in found.findings[0].what


@pytest.mark.parametrize("failure", FAILURES, ids=lambda failure: type(failure).__name__)
def test_whatever_a_subject_raises_on_one_document_is_a_typed_error(failure):
    model = Tokenwise(failure)
    for subject in (model, lambda batch: model(batch.input_ids[None])):
        with pytest.raises(ProbeError, match=rf"failed on .*document.*{type(failure).__name__}"):
            hermetic.probe(subject)


def test_layers_of_a_model_that_fails_on_packed_rows_are_an_error_and_not_an_empty_list():
    with pytest.raises(UnsupportedError, match="fails on packed ones"):
        layers(tiny("qwen3_5"))


@pytest.mark.parametrize(
    ("lengths", "message"),
    [
        ((-1, 3), r"lengths has -1; expected tokens of each document, such as \(11, 13, 6, 1\)"),
        ((3.5, 3), r"lengths has 3\.5"),
        (5, r"lengths is 5"),
    ],
)
def test_lengths_that_are_none_are_refused(lengths, message):
    for measure in (hermetic.probe, layers):
        with pytest.raises(ProbeError, match=message):
            measure(Tokenwise(), lengths=lengths)


@pytest.mark.parametrize(("call", "verdict"), [("all_ones_mask", "leak"), ("only_position_ids", "sealed")])
def test_a_function_over_a_vocabulary_of_two_is_probed(call, verdict):
    found = hermetic.probe(calling(tiny("llama", vocab_size=2, pad_token_id=None, eos_token_id=1), call))
    assert found.verdict == verdict


@pytest.mark.parametrize("output", [(torch.zeros(3, 4), None), {"logits": torch.zeros(3, 4)}, None], ids=repr)
def test_an_output_without_logits_is_refused_with_the_way_to_take_them_out(output):
    with pytest.raises(ProbeError, match=rf"returned a {type(output).__name__}, .*lambda batch: model"):
        hermetic.probe(lambda _, output=output: output)


def test_a_call_of_what_is_no_module_is_refused():
    with pytest.raises(ProbeError, match="a call of a function; expected the torch module"):
        probe_call(lambda ids: ids, (packed((3, 2)).input_ids[None],), {})


def test_what_is_no_module_is_not_guarded():
    with pytest.raises(ProbeError, match="cannot guard a function; expected the torch module that the loop calls"):
        hermetic.guard(lambda batch: batch)


def test_a_call_without_tokens_is_not_packed_and_a_guard_waits_for_the_next():
    empty = torch.zeros(1, 0, dtype=torch.long)
    with pytest.raises(NotPackedError, match=r"input_ids has shape \(1, 0\), so there are no documents"):
        probe_call(Tokenwise(), (), {"input_ids": empty, "position_ids": empty})
    model = Tokenwise()
    with hermetic.guard(model) as guarded:
        model(empty)
        assert isinstance(guarded.unprobed, NotPackedError)
        model(torch.tensor([[5, 6, 7, 8]]), document_ids=torch.tensor([[0, 0, 1, 1]]))
    assert [report.verdict for report in guarded.reports] == ["sealed"]


def test_document_numbers_and_edges_may_be_lists():
    batch = packed((3, 2), vocabulary=32)
    numbers, edges = batch.boundaries.document_ids.tolist(), batch.boundaries.cu_seqlens.tolist()

    class Reading(Tokenwise):
        def forward(self, input_ids, document_ids=None, cu_seq_lens_q=None):
            seen.append((document_ids, cu_seq_lens_q))
            return super().forward(input_ids)

    for name, value in (("document_ids", numbers), ("cu_seq_lens_q", edges)):
        seen = []
        assert probe_call(Reading(), (), {"input_ids": batch.input_ids[None], name: value}).verdict == "sealed"
        assert (value, None) in seen or (None, value) in seen


@pytest.mark.parametrize("place", ["missing/report.html", "."])
def test_a_page_that_cannot_be_written_is_a_typed_error_that_names_the_path(tmp_path, place):
    report = hermetic.probe(Tokenwise())
    with pytest.raises(ProbeError, match=rf"cannot be written to {tmp_path / place} \("):
        report.to_html(tmp_path / place)
    assert list(tmp_path.iterdir()) == []
