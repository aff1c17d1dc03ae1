"""A comparison trains every arm on the same documents, measures what differs, and drops nothing in silence."""

import json
from dataclasses import replace

import pytest
import torch
from data_helpers import DEMO_TOKENIZER, everything_under
from train_helpers import largest_relative, model_folder, packed_folder, tiny_network, token_file

from hermetic.compare import ARMS, Subject, all_arms, compare, run_arm, run_comparison, start_of
from hermetic.compare.rows import check_heldout, held_out, rows_of
from hermetic.data import load_tokenizer, pack_sources
from hermetic.demo.presets import PRESETS, compare_data, compare_preset
from hermetic.errors import PackedDataError, SourceError, TrainError
from hermetic.seal.measure import FLOOR_FACTOR
from hermetic.train import TrainSettings

LENGTHS = [5, 9, 12, 3, 7, 8, 11, 2, 6, 4, 10, 5, 9, 6, 7, 3, 8, 4]
SETTINGS = TrainSettings(max_steps=3, rows_per_batch=2, learning_rate=1e-2)


@pytest.fixture(scope="module")
def told():
    return []


@pytest.fixture(scope="module")
def result(tmp_path_factory, told):
    folder = tmp_path_factory.mktemp("compared")
    return compare(
        model=model_folder(folder / "model"),
        data=token_file(folder / "documents.jsonl", LENGTHS),
        capacity=16,
        settings=SETTINGS,
        seeds=2,
        out=folder / "out",
        on_step=lambda *said: told.append(said),
    )


def subject_of(tmp_path, make=lambda _seed: tiny_network(), capacity=16, lengths=LENGTHS):
    rows = held_out(packed_folder(tmp_path, lengths, capacity=capacity))
    return Subject(name="tiny", data="documents", make=make, rows=rows)


def silent(*_):
    """Nobody asked what is being done."""


def test_every_arm_runs_with_every_seed_and_what_is_apart_is_as_padded(result):
    assert tuple(arm.name for arm in result.arms) == ARMS
    assert result.seeds == (0, 1)
    for arm in result.arms:
        assert [run.seed for run in arm.runs] == [0, 1]
        assert arm.refusal is None
        assert all(len(run.losses) == result.steps == 3 for run in arm.runs)
        assert all(run.memory > 0 and run.tokens_per_second > 0 for run in arm.runs)
    verdicts = {arm.name: arm.verdict for arm in result.arms}
    assert verdicts == {
        "padded": None,
        "naive": "leak",
        "positions_only": "leak",
        "mask_only": "distortion",  # its positions run on, which is told even where nothing comes of it
        "sealed": "sealed",
    }
    floor = FLOOR_FACTOR * result.gradient_floor
    gradients = {arm.name: max(run.gradient_difference for run in arm.runs) for arm in result.arms}
    assert gradients["padded"] == 0.0
    assert 0.0 < max(gradients["mask_only"], gradients["sealed"]) < floor < 1e-4
    assert min(gradients["naive"], gradients["positions_only"]) > 0.01


def test_another_seed_is_another_order_and_the_arms_of_a_seed_have_one(result):
    first, second = result.arm("padded").runs
    assert first.losses != second.losses
    assert [run.losses for run in result.arm("sealed").runs] == [
        pytest.approx(first.losses, rel=1e-5),
        pytest.approx(second.losses, rel=1e-5),
    ]


def test_the_change_of_the_held_out_loss_is_taken_seed_by_seed(result):
    padded, naive = result.arm("padded"), result.arm("naive")
    changes = [a.heldout_loss - b.heldout_loss for a, b in zip(naive.runs, padded.runs, strict=True)]
    assert result.heldout_change(naive).mean == pytest.approx(sum(changes) / 2)
    assert result.heldout_change(padded) is None
    assert replace(result, arms=(naive,)).heldout_change(naive) is None


def test_progress_counts_every_step_and_says_what_is_left(told):
    done, totals = [said[1] for said in told], {said[2] for said in told}
    assert done == sorted(done)
    assert (done[-1], totals) == (30, {30})
    assert "seed 2 of 2, sealed, step 3 of 3, about 0:00:00 left" in {said[0] for said in told}
    assert sum(" step " in what for what, _, _ in told) == 2 * 5 * 4


def test_the_written_result_is_the_returned_one_with_its_page_and_rows(result, tmp_path_factory):
    out = next(tmp_path_factory.getbasetemp().glob("compared*")) / "out"
    assert json.loads((out / "comparison.json").read_text()) == json.loads(json.dumps(result.to_dict()))
    assert (out / "comparison.html").read_text().startswith("<!DOCTYPE html>")
    assert (out / "packed" / "manifest.json").is_file()
    spread = result.to_dict()["arms"][1]["spread"]
    assert set(spread) >= {"train_loss", "heldout_loss", "heldout_minus_padded", "train_illusion", "memory"}


def test_a_held_out_token_that_the_model_does_not_embed_is_refused_by_its_number(tmp_path):
    rows = held_out(packed_folder(tmp_path, LENGTHS, capacity=16))
    largest = max(int(max(document["input_ids"])) for row in rows.heldout for document in row)
    network = torch.nn.Module()
    network.get_input_embeddings = lambda: torch.nn.Embedding(largest + 1, 1)
    check_heldout(network, rows, "some.jsonl")
    network.get_input_embeddings = lambda: torch.nn.Embedding(largest, 1)
    with pytest.raises(TrainError, match=f"some.jsonl holds out the token id {largest} and the model embeds {largest}"):
        check_heldout(network, rows, "some.jsonl")


def test_every_arm_takes_the_same_documents_in_the_same_steps(tmp_path):
    subject, seen = subject_of(tmp_path), {}
    start = start_of(subject, SETTINGS)
    for arm in all_arms():
        batches = seen.setdefault(arm.name, [])

        def recording(rows, collator=arm.collator, batches=batches):
            batches.append([document["input_ids"].tolist() for row in rows for document in row])
            return collator(rows)

        run_arm(subject, replace(arm, collator=recording), start, on_stage=silent)
    measured = [[d["input_ids"].tolist() for row in batch for d in row] for batch in start.batches]
    trained = {name: batches[1:4] for name, batches in seen.items()}  # the first one was measured before training
    assert all(batches == measured for batches in trained.values())
    assert all(batches[0] == measured[0] for batches in seen.values())


def shaped(arm, extra):
    """The padded arm in another shape: so many more slots in each row."""

    def collator(rows):
        blanks = {"input_ids": 0, "labels": -100, "attention_mask": 0}
        return {
            name: torch.nn.functional.pad(values, (0, extra), value=blanks[name])
            for name, values in arm.collator(rows).items()
        }

    return replace(arm, collator=collator)


def test_sealed_trains_what_padded_trains_within_what_another_shape_of_padded_makes_of_it(tmp_path):
    subject = subject_of(tmp_path)
    start = start_of(subject, SETTINGS)
    arms = {arm.name: arm for arm in all_arms()}

    def trained(arm):
        run, _ = run_arm(subject, arm, start, on_stage=silent)
        return [*run.losses, run.heldout_loss]

    padded = trained(arms["padded"])
    spread = max(largest_relative(trained(shaped(arms["padded"], extra)), padded) for extra in (3, 20))
    floor = max(spread, torch.finfo(torch.float32).eps)
    for name in ("sealed", "mask_only"):
        assert largest_relative(trained(arms[name]), padded) <= FLOOR_FACTOR * floor
    assert largest_relative(trained(arms["naive"]), padded) > 1000 * floor


def test_a_planted_difference_of_one_label_is_noticed_in_the_gradient_and_the_losses(tmp_path):
    padded = all_arms()[0]

    def forgetful(rows):
        inputs = padded.collator(rows)
        place = (inputs["labels"] != -100).nonzero()[0]
        inputs["labels"][place[0], place[1]] = -100
        return inputs

    planted = replace(padded, name="sealed", collator=forgetful)
    result = run_comparison(subject_of(tmp_path), arms=(padded, planted), seeds=(0,), settings=SETTINGS, on_step=silent)
    (run,) = result.arm("sealed").runs
    assert run.gradient_difference > 1000 * result.gradient_floor
    assert abs(result.heldout_change(result.arm("sealed")).mean) > 1e-5


def test_the_loss_of_naive_near_duplicates_is_partly_an_illusion_and_that_of_sealed_ones_is_not():
    preset = replace(PRESETS["near-duplicates"], conversations=160, heldout=8)
    settings = replace(preset.settings, max_steps=6)
    result = compare_preset(preset, settings=settings, seeds=1, arms=["naive", "sealed"])
    (naive,), (sealed,) = (result.arm(name).runs for name in ("naive", "sealed"))
    rounding = 64 * torch.finfo(torch.float32).eps * sealed.heldout_loss
    assert naive.train_illusion > 100 * rounding
    assert naive.heldout_illusion > 100 * rounding
    assert abs(sealed.train_illusion) < rounding
    assert abs(sealed.heldout_illusion) < rounding


# what does not run


def compared(tmp_path, family, arms, capacity=16, lengths=LENGTHS, **changes):
    subject = subject_of(tmp_path, lambda _seed: tiny_network(family, **changes), capacity, lengths)
    chosen = [arm for arm in all_arms() if arm.name in arms]
    settings = replace(SETTINGS, max_steps=1)
    steps = []
    result = run_comparison(
        subject, arms=chosen, seeds=(0, 1), settings=settings, on_step=lambda *said: steps.append(said)
    )
    assert tuple(arm.name for arm in result.arms) == tuple(arm.name for arm in chosen)
    return result, steps


def test_a_model_that_cannot_be_sealed_is_an_entry_with_the_reason_and_other_arms_run(tmp_path):
    result, steps = compared(tmp_path, "prophetnet", ("padded", "sealed"))
    sealed, padded = result.arm("sealed"), result.arm("padded")
    assert len(padded.runs) == 2
    assert (sealed.runs, sealed.refusal.code, sealed.refusal.seed) == ((), "HE400", 0)
    assert sealed.spread("train_loss") is None
    assert result.heldout_change(sealed) is None
    assert steps[-1][1:] == (2, 2)


def test_a_mask_that_a_convolution_does_not_take_is_an_entry_with_the_reason(tmp_path):
    result, _ = compared(tmp_path, "lfm2", ("padded", "mask_only"))
    refusal = result.arm("mask_only").refusal
    assert refusal.code == "HE701"
    assert "under a 4-D mask that keeps documents apart" in refusal.reason
    assert result.arm("mask_only").verdict == "leak"


def test_rows_beyond_the_positions_of_a_model_stop_only_the_arm_whose_positions_run_on(tmp_path):
    result, _ = compared(
        tmp_path, "gpt2", ("padded", "naive", "sealed"), capacity=40, lengths=[12] * 18, max_position_embeddings=32
    )
    naive = result.arm("naive")
    assert (naive.refusal.code, naive.runs) == ("HE701", ())
    assert "GPT2LMHeadModel" in naive.refusal.reason
    assert len(result.arm("padded").runs) == len(result.arm("sealed").runs) == 2


# rows and refusals


def test_rows_that_are_held_out_are_not_trained_on_and_none_is_lost(tmp_path):
    packed = packed_folder(tmp_path, [8] * 47, capacity=16)
    rows = held_out(packed)

    def tokens(some):
        return sorted(tuple(document["input_ids"].tolist()) for row in some for document in row)

    assert (len(rows.heldout), len(rows.trained)) == (2, 22)
    assert tokens([*rows.heldout, *rows.trained.rows()]) == tokens(packed.rows())
    assert rows.tokens == sum(len(document) for document in tokens(rows.trained.rows()))
    assert rows.trained.documents_per_row.sum() == len(rows.trained.document_lengths)


def test_two_rows_are_one_to_train_on_and_one_to_hold_out_and_one_is_too_few(tmp_path):
    rows = held_out(packed_folder(tmp_path / "two", [8, 8], capacity=8))
    assert (len(rows.heldout), len(rows.trained)) == (1, 1)
    with pytest.raises(TrainError, match="has 1 row; expected at least 2"):
        held_out(packed_folder(tmp_path / "one", [8], capacity=8))


def test_a_packed_folder_brings_its_capacity_and_a_file_needs_one(tmp_path):
    source = token_file(tmp_path / "documents.jsonl", LENGTHS)
    pack_sources(source, tmp_path / "packed", tokenizer=DEMO_TOKENIZER, capacity=16)
    tokenizer = load_tokenizer(DEMO_TOKENIZER)
    options = {"capacity": None, "folder": tmp_path, "pack_options": {}}
    rows = rows_of(tmp_path / "packed", tmp_path / "packed", tokenizer, **options)
    assert rows.capacity == 16
    assert len(rows.heldout) == len(rows.trained)
    with pytest.raises(TrainError, match="has to be packed and no capacity was given"):
        rows_of(source, None, tokenizer, **options)


def test_what_cannot_be_compared_is_refused_and_leaves_nothing_behind(tmp_path):
    source = token_file(tmp_path / "documents.jsonl", LENGTHS)
    common = {"model": lambda _seed: tiny_network(), "data": source, "capacity": 16}
    with pytest.raises(TrainError, match="seeds is 0; expected a whole number of at least 1"):
        compare(**common, seeds=0)
    with pytest.raises(TrainError, match="model is a function and no tokenizer was given"):
        compare(**common)
    with pytest.raises(TrainError, match="arm 'bare' is unknown"):
        compare(**common, tokenizer=DEMO_TOKENIZER, arms=["bare"])
    with pytest.raises(PackedDataError, match="is a file"):
        compare(**common, tokenizer=DEMO_TOKENIZER, out=source)
    with pytest.raises(SourceError):
        compare(**common | {"data": tmp_path / "nope.jsonl"}, tokenizer=DEMO_TOKENIZER, out=tmp_path / "out")
    with pytest.raises(TrainError, match=r"documents\.jsonl came without a model"):
        compare_data(source)
    with pytest.raises(TrainError, match="near-duplicates makes the documents that it holds out"):
        compare_data("near-duplicates", heldout=source)
    assert everything_under(tmp_path) == ["documents.jsonl"]
