"""Every refusal of the loss names the offender, the value and what was expected."""

import math

import numpy as np
import pytest
import torch

from hermetic.batch import collate
from hermetic.errors import LossError, NonFiniteError
from hermetic.loss import document_log_probs, packed_loss, token_loss

BATCH = collate([{"input_ids": [1, 2, 3]}, {"input_ids": [4, 5]}], pad_to=6)


def test_the_batch_that_the_refusals_start_from_has_a_loss():
    assert packed_loss(torch.zeros(6, 8), BATCH).item() == pytest.approx(math.log(8))


@pytest.mark.parametrize("loss_of", [packed_loss, document_log_probs])
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_broken_logit_of_a_supervised_token_is_an_error_that_names_document_and_token(loss_of, value):
    logits = torch.zeros(6, 8)
    logits[3, 2] = value

    with pytest.raises(NonFiniteError, match=r"document 1, token 1 \(slot 4\) has the loss nan.*mask the token"):
        loss_of(logits, BATCH)


def test_a_supervised_token_of_probability_zero_is_an_error():
    logits = torch.zeros(6, 8)
    logits[0, 2] = -math.inf

    with pytest.raises(NonFiniteError, match=r"document 0, token 1 \(slot 1\) has the loss inf"):
        packed_loss(logits, BATCH)


def test_a_broken_logit_in_rows_names_row_and_token():
    logits = torch.zeros(2, 3, 8)
    logits[1, 1, 0] = math.nan

    with pytest.raises(NonFiniteError, match=r"row 1, token 2 has the loss nan"):
        token_loss(logits, torch.tensor([[-100, 1, 2], [-100, 3, 4]]))


@pytest.mark.parametrize(
    ("logits", "message"),
    [
        (torch.zeros(5, 8), r"logits have shape \[5, 8\], expected \[6, V\] or \[1, 6, V\]"),
        (torch.zeros(2, 3, 8), r"logits have shape \[2, 3, 8\], expected \[6, V\]"),
        (torch.zeros(6), r"logits have shape \[6\]"),
        (torch.zeros(6, 8, dtype=torch.int64), r"logits have dtype torch.int64, expected a floating one"),
        (
            torch.zeros(6, 8, device="meta"),
            r"logits are on meta and labels on cpu.*batch\.to\(logits\.device\)",
        ),
        (np.zeros((6, 8)), r"logits are of type ndarray, expected a tensor \[6, V\]"),
        (torch.zeros(6, 5), r"document 1, token 1 \(slot 4\) has the label 5, expected 0 to 4 or -100"),
    ],
)
def test_logits_that_do_not_fit_the_batch_are_refused_with_the_reason(logits, message):
    for loss_of in (packed_loss, document_log_probs):
        with pytest.raises(LossError, match=message):
            loss_of(logits, BATCH)


@pytest.mark.parametrize(
    "denominator", [0, -1, math.nan, math.inf, True, "6", torch.tensor(True), torch.tensor([6]), torch.tensor(0)]
)
def test_a_denominator_that_is_no_positive_number_is_refused(denominator):
    with pytest.raises(LossError, match=r"denominator is .*, expected a finite number or 0-d tensor above 0"):
        packed_loss(torch.zeros(6, 8), BATCH, denominator=denominator)


def test_an_unknown_reduction_is_refused():
    with pytest.raises(LossError, match=r"reduction is 'mean', expected one of 'token', 'document'"):
        packed_loss(torch.zeros(6, 8), BATCH, reduction="mean")


@pytest.mark.parametrize(
    ("logits", "labels", "message"),
    [
        (
            torch.zeros(2, 3, 8),
            torch.full((2, 4), -100),
            r"logits have shape \[2, 3, 8\] and labels \[2, 4\]",
        ),
        (torch.zeros(3, 8), torch.full((3,), -100), r"expected \[B, S, V\] and \[B, S\]"),
        (torch.zeros(1, 3, 8), torch.tensor([[4, 1, 2]]), r"labels\[0, 0\] is 4, expected -100"),
        (torch.zeros(2, 2, 8), torch.tensor([[-100, 1], [2, 3]]), r"labels\[1, 0\] is 2, expected -100"),
        (torch.zeros(1, 2, 8), torch.full((1, 2), -100, dtype=torch.int32), r"labels have dtype torch.int32"),
        (torch.zeros(1, 2, 8), torch.tensor([[-100, 9]]), r"row 0, token 1 has the label 9, expected 0 to 7"),
        (
            torch.zeros(1, 2, 8),
            torch.tensor([[-100, -3]]),
            r"row 0, token 1 has the label -3, expected 0 to 7",
        ),
    ],
)
def test_rows_whose_labels_do_not_fit_are_refused_with_the_reason(logits, labels, message):
    with pytest.raises(LossError, match=message):
        token_loss(logits, labels)
