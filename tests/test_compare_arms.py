"""The five arms lay out the same documents, and what comes out is cut back to them."""

import pytest
import torch
from train_helpers import tiny_network

from hermetic.compare import ARMS, MaskCollator, NaiveCollator, all_arms, arms_by_name
from hermetic.errors import TrainError
from hermetic.seal import seal

ROWS = (
    [{"input_ids": [10, 11, 12], "labels": [-100, 11, 12]}, {"input_ids": [20, 21]}],
    [{"input_ids": [30, 31, 32]}, {"input_ids": [40]}, {"input_ids": [50, 51, 52, 53]}],
)
LENGTHS = [3, 2, 3, 1, 4]


def test_naive_rows_hold_documents_end_to_end_under_a_mask_of_ones():
    inputs = NaiveCollator(restart=False)(ROWS)
    assert sorted(inputs) == ["attention_mask", "input_ids", "labels"]
    assert inputs["input_ids"].tolist() == [[10, 11, 12, 20, 21, 0, 0, 0], [30, 31, 32, 40, 50, 51, 52, 53]]
    assert inputs["labels"].tolist() == [
        [-100, 11, 12, -100, 21, -100, -100, -100],
        [-100, 31, 32, -100, -100, 51, 52, 53],
    ]
    assert inputs["attention_mask"].tolist() == [[1, 1, 1, 1, 1, 0, 0, 0], [1] * 8]


def test_restarted_positions_change_nothing_else_of_a_naive_row():
    plain, restarted = NaiveCollator(restart=False)(ROWS), NaiveCollator(restart=True)(ROWS)
    positions = restarted.pop("position_ids")
    assert positions.tolist() == [[0, 1, 2, 0, 1, 0, 0, 0], [0, 1, 2, 0, 0, 1, 2, 3]]
    assert sorted(restarted) == sorted(plain)
    assert all(torch.equal(restarted[name], plain[name]) for name in plain)


def test_the_mask_lets_a_token_see_its_own_document_up_to_itself_and_slots_behind_the_last_one_themselves():
    inputs = MaskCollator()(ROWS)
    mask, naive = inputs.pop("attention_mask"), NaiveCollator(restart=False)(ROWS)
    assert mask.shape == (2, 1, 8, 8)
    assert mask.dtype == torch.float32
    assert set(mask.unique().tolist()) == {torch.finfo(torch.float32).min, 0.0}
    owners = ([0, 0, 0, 1, 1, 2, 3, 4], [0, 0, 0, 1, 2, 2, 2, 2])  # the tail: each slot on its own
    for row, owner in zip(mask[:, 0], owners, strict=True):
        assert (row == 0).tolist() == [[j <= i and owner[i] == owner[j] for j in range(8)] for i in range(8)]
    assert inputs.pop("position_ids").tolist() == [list(range(8))] * 2
    assert all(torch.equal(inputs[name], naive[name]) for name in ("input_ids", "labels"))


def test_arms_are_chosen_by_name_and_keep_their_order():
    assert tuple(arm.name for arm in all_arms()) == ARMS
    assert [arm.name for arm in arms_by_name(["sealed", "padded"])] == ["padded", "sealed"]
    with pytest.raises(TrainError, match="arm 'naked' is unknown; expected some of padded, naive"):
        arms_by_name(["naive", "naked"])
    with pytest.raises(TrainError, match="no arm was given"):
        arms_by_name([])


def test_the_arms_are_the_padded_one_and_four_ways_to_pack():
    facts = {arm.name: (arm.packed, arm.sealed) for arm in all_arms()}
    assert facts == {
        "padded": (False, False),
        "naive": (True, False),
        "positions_only": (True, False),
        "mask_only": (True, False),
        "sealed": (True, True),
    }
    assert next(iter(facts)) == "padded"


def test_every_arm_cuts_its_slots_back_to_the_same_documents():
    for arm in all_arms():
        inputs = arm.collator(ROWS)
        documents = arm.split(inputs["input_ids"][..., None], ROWS)
        assert [len(document) for document in documents] == LENGTHS
        assert [document.flatten().tolist() for document in documents] == [
            document["input_ids"] for row in ROWS for document in row
        ]


def test_sealed_and_under_a_mask_each_document_is_computed_alone_and_in_the_naive_arms_it_is_not():
    with torch.no_grad():
        alone = [tiny_network()(input_ids=torch.tensor([d["input_ids"]])).logits[0] for row in ROWS for d in row]
        differences = {}
        for arm in all_arms():
            network = seal(tiny_network()) if arm.sealed else tiny_network()
            inputs = {name: value for name, value in arm.collator(ROWS).items() if name != "labels"}
            found = arm.split(network(**inputs).logits, ROWS)
            differences[arm.name] = [float((a - b).abs().max()) for a, b in zip(found, alone, strict=True)]
    assert max(differences["padded"] + differences["mask_only"] + differences["sealed"]) < 1e-5
    for name in ("naive", "positions_only"):
        firsts, later = differences[name][::2][:2], differences[name][1:2] + differences[name][3:]
        assert max(firsts) < 1e-5
        assert min(later) > 0.1
