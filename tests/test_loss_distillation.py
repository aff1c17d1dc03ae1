"""Divergence from a teacher is summed over each document's own supervised tokens, with logits or without."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from loss_helpers import random_documents
from torch.nn.functional import log_softmax
from torch.utils._python_dispatch import TorchDispatchMode

from hermetic.batch import collate
from hermetic.errors import LossError, NonFiniteError
from hermetic.loss import LinearHead, document_kl, weigh_documents

VOCABULARY, WIDTH = 11, 5


def problem(lengths=(4, 6, 1, 0, 3), *, seed=0, vocabulary=VOCABULARY, pad_to=None):
    """A batch, and float64 logits of a student and a teacher."""
    generator = torch.Generator().manual_seed(seed)
    batch = collate(random_documents(lengths, vocabulary, generator), pad_to=pad_to)
    student, teacher = torch.randn(2, batch.num_slots, vocabulary, dtype=torch.float64, generator=generator)
    return batch, student, teacher


def one_by_one(batch, student, teacher, direction, temperature):
    """The definition: a loop over documents, tokens and entries."""
    found = []
    parts = zip(*(batch.unpack(x) for x in (batch.labels, student, teacher)), strict=True)
    for labels, own, others in parts:
        total = torch.zeros((), dtype=torch.float64)
        for token in range(1, len(labels)):
            if labels[token] != -100:
                q = log_softmax(own[token - 1] / temperature, dim=0)
                p = log_softmax(others[token - 1] / temperature, dim=0)
                p, q = (p, q) if direction == "forward" else (q, p)
                total = total + sum(p[v].exp() * (p[v] - q[v]) for v in range(len(p)))
        found.append(total)
    return torch.stack(found)


@pytest.mark.parametrize("direction", ["forward", "reverse"])
@pytest.mark.parametrize("temperature", [1.0, 2.5])
@pytest.mark.parametrize("chunk_tokens", [None, 1, 4])
def test_divergence_and_gradient_are_those_of_the_definition(direction, temperature, chunk_tokens):
    batch, student, teacher = problem(pad_to=16)
    results = []
    for reduce in (
        lambda own: one_by_one(batch, own, teacher, direction, temperature),
        lambda own: document_kl(
            own, teacher, batch, direction=direction, temperature=temperature, chunk_tokens=chunk_tokens
        ),
    ):
        own = student.clone().requires_grad_()
        found = reduce(own)
        found.backward(torch.arange(1.0, 6.0, dtype=torch.float64))
        results.append((found.detach(), own.grad))

    torch.testing.assert_close(results[1], results[0], rtol=0, atol=1e-13)


def test_the_two_directions_differ():
    batch, student, teacher = problem()
    forward, reverse = (document_kl(student, teacher, batch, direction=d) for d in ("forward", "reverse"))

    assert (forward - reverse).abs().max() > 0.1
    torch.testing.assert_close(document_kl(teacher, student, batch), reverse, rtol=0, atol=1e-13)


@pytest.mark.parametrize("direction", ["forward", "reverse"])
@given(seed=st.integers(0, 999), order=st.permutations(range(5)))
@settings(deadline=None, max_examples=20)
def test_a_documents_divergence_does_not_depend_on_what_it_was_packed_with(direction, seed, order):
    generator = torch.Generator().manual_seed(seed)
    docs = random_documents((4, 6, 1, 0, 3), VOCABULARY, generator)
    student, teacher = torch.randn(2, VOCABULARY, VOCABULARY, dtype=torch.float64, generator=generator)

    def divergences(numbers):
        batch = collate([docs[number] for number in numbers], pad_to_multiple=8)
        own, others = student[batch.input_ids], teacher[batch.input_ids]
        return document_kl(own, others, batch, direction=direction, chunk_tokens=3)

    whole = divergences(range(5))
    assert torch.allclose(divergences(order), whole[list(order)], rtol=0, atol=1e-12)
    assert torch.allclose(torch.cat([divergences([number]) for number in range(5)]), whole, rtol=0, atol=1e-12)


@pytest.mark.parametrize("direction", ["forward", "reverse"])
def test_equal_models_diverge_by_exactly_0_with_zero_gradients(direction):
    batch, student, _ = problem()
    own = student.clone().requires_grad_()
    found = document_kl(own, student, batch, direction=direction)
    found.sum().backward()

    assert torch.equal(found, torch.zeros_like(found))
    assert own.grad.abs().max() < 1e-15


def heads(batch, *, seed=0, softcap=None):
    generator = torch.Generator().manual_seed(seed)
    shapes = ((batch.num_slots, WIDTH), (VOCABULARY, WIDTH), (VOCABULARY,))
    hidden, weight, bias = (torch.randn(*shape, dtype=torch.float64, generator=generator) for shape in shapes)
    return LinearHead(
        hidden=hidden.requires_grad_(),
        weight=weight.requires_grad_(),
        bias=bias.requires_grad_(),
        logit_scale=0.5,
        logit_softcap=softcap,
    )


@pytest.mark.parametrize("direction", ["forward", "reverse"])
@pytest.mark.parametrize("softcap", [None, 2.0])
def test_from_hidden_states_it_is_that_of_their_logits_in_value_and_gradients(direction, softcap):
    batch, _, _ = problem()
    results = []
    for of in (lambda head: head, lambda head: head.logits()):
        student, teacher = heads(batch, softcap=softcap), heads(batch, seed=1)
        found = document_kl(of(student), of(teacher), batch, direction=direction, chunk_tokens=2)
        found.sum().backward()
        results.append([found.detach(), student.hidden.grad, student.weight.grad, student.bias.grad])
        assert teacher.hidden.grad is teacher.weight.grad is teacher.bias.grad is None

    torch.testing.assert_close(results[0], results[1], rtol=0, atol=1e-12)


def test_from_hidden_states_no_tensor_is_as_large_as_tokens_times_vocabulary():
    generator = torch.Generator().manual_seed(0)
    batch = collate(random_documents((300,), VOCABULARY, generator, kept=1.0))
    largest = []

    class Sizes(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            out = func(*args, **(kwargs or {}))
            largest.extend(out.numel() for out in [out] if isinstance(out, torch.Tensor))
            return out

    with Sizes():
        document_kl(heads(batch), heads(batch, seed=1), batch, chunk_tokens=10).sum().backward()

    assert max(largest) == 300 * WIDTH < 299 * VOCABULARY


@pytest.mark.parametrize("direction", ["forward", "reverse"])
def test_entries_that_both_exclude_cost_nothing_and_give_no_nan(direction):
    batch, student, teacher = problem()
    student[:, 3] = teacher[:, 3] = -math.inf
    own = student.clone().requires_grad_()
    keep = [v for v in range(VOCABULARY) if v != 3]
    found = document_kl(own, teacher, batch, direction=direction)
    found.sum().backward()

    assert own.grad.isfinite().all()
    divergence = one_by_one(batch, student[:, keep], teacher[:, keep], direction, 1.0)
    torch.testing.assert_close(found, divergence, rtol=0, atol=1e-13)


@pytest.mark.parametrize(("direction", "excluded_by"), [("forward", 0), ("reverse", 1)])
def test_excluding_what_the_other_expects_is_an_error_with_its_place(direction, excluded_by):
    batch, *logits = problem((4,), seed=3)
    logits[excluded_by][:, 3] = -math.inf
    with pytest.raises(NonFiniteError, match=r"document 0, token \d \(slot \d\) has the loss inf"):
        document_kl(*logits, batch, direction=direction)


def test_rows_that_predict_nothing_supervised_are_not_read():
    batch, student, teacher = problem(pad_to=16)
    expected = document_kl(student, teacher, batch)
    read = (torch.cat([batch.labels[1:], torch.tensor([-100])]) != -100).nonzero().squeeze(1)
    unread = [slot for slot in range(16) if slot not in read]
    student[unread], teacher[unread] = math.nan, math.inf

    assert torch.equal(document_kl(student, teacher, batch), expected)
    assert len(unread) > 3


def test_a_batch_without_targets_diverges_by_0_with_zero_gradients():
    batch = collate([{"input_ids": [1, 2, 3], "loss_mask": [0, 0, 0]}])
    own = torch.randn(3, VOCABULARY, requires_grad=True)
    found = document_kl(own, own.detach(), batch)
    found.sum().backward()

    assert found.tolist() == [0.0]
    assert torch.equal(own.grad, torch.zeros_like(own))


def test_divergences_are_weighed_like_losses():
    batch, student, teacher = problem((3, 5))
    sums = document_kl(student, teacher, batch)

    expected = sums.sum() / batch.num_supervised_tokens
    assert weigh_documents(sums, batch).item() == pytest.approx(expected.item(), abs=1e-14)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"direction": "both"}, "direction is 'both', expected 'forward' or 'reverse'"),
        ({"temperature": 0.0}, r"temperature is 0\.0, expected a finite number above 0"),
        ({"chunk_tokens": -1}, "chunk_tokens is -1, expected a whole number of 1 or more"),
    ],
)
def test_an_option_out_of_its_range_is_refused(options, message):
    batch, student, teacher = problem()
    with pytest.raises(LossError, match=message):
        document_kl(student, teacher, batch, **options)


def test_other_shapes_and_vocabularies_are_refused():
    batch, student, teacher = problem()
    wider = torch.zeros(batch.num_slots, VOCABULARY + 1)
    with pytest.raises(LossError, match="the student has 11 entries and the teacher 12, expected one vocabulary"):
        document_kl(student, wider, batch)
    with pytest.raises(LossError, match=r"teacher logits have shape \[13, 11\], expected \[14, V\]"):
        document_kl(student, teacher[1:], batch)
