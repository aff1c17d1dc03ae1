"""Leaks of the real world, each a call that looks right: what the probe says about it."""

import pytest
import torch
import transformers
from models import alone, calling, packed, tiny
from torch.utils.data import Dataset

import hermetic
from hermetic.batch.dialects import additive_mask, dense_mask

LENGTHS = (3, 5)


def codes(report):
    return [finding.code for finding in report.findings]


def row_and_positions(batch):
    return {"input_ids": batch.input_ids[None], "position_ids": batch.boundaries.position_ids[None]}


@pytest.mark.parametrize("name", ["llama", "qwen3"])
def test_an_all_ones_mask_turns_isolation_off(name):
    model = tiny(name)
    without = hermetic.probe(calling(model, "only_position_ids"), lengths=LENGTHS)
    with_mask = hermetic.probe(calling(model, "all_ones_mask"), lengths=LENGTHS)

    assert without.verdict == "sealed"
    assert with_mask.verdict == "leak"
    assert codes(with_mask) == ["HM100", "HM101"]
    assert with_mask.findings[0].where.startswith("model.layers.0.self_attn (")
    assert float(with_mask.equivalence[0]) <= 10 * with_mask.noise_floor
    assert float(with_mask.equivalence[1]) > 1.0


def test_a_cache_left_at_its_default_turns_isolation_off():
    model = tiny("llama")
    assert model.config.use_cache
    report = hermetic.probe(calling(model, "default_cache"), lengths=LENGTHS)

    assert report.verdict == "leak"
    assert codes(report) == ["HM100", "HM102"]
    assert report.findings[0].where == "model.layers.0.self_attn (LlamaAttention)"
    model.config.use_cache = False
    assert hermetic.probe(calling(model, "default_cache"), lengths=LENGTHS).verdict == "sealed"


class OneRow(Dataset):
    def __len__(self):
        return 1

    def __getitem__(self, _index):
        batch = packed(LENGTHS)
        return {**{name: row[0] for name, row in row_and_positions(batch).items()}, "labels": batch.labels}


def test_through_the_hugging_face_trainer_the_cache_is_off_and_the_same_call_is_right(tmp_path):
    model = tiny("llama")
    arguments = transformers.TrainingArguments(
        output_dir=str(tmp_path),
        max_steps=1,
        per_device_train_batch_size=1,
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
    )
    transformers.Trainer(model, arguments, train_dataset=OneRow()).train()

    assert hermetic.probe(calling(model.eval(), "default_cache"), lengths=LENGTHS).verdict == "sealed"


def test_gpt_oss_leaks_on_perfect_inputs_and_is_sealed_after_sealing():
    model = tiny("gpt_oss")
    assert model.config._attn_implementation == "eager"
    report = hermetic.probe(model)

    assert report.verdict == "leak"
    assert codes(report) == ["HM100", "HM108"]
    assert report.findings[0].where == "model.layers.0.self_attn (GptOssAttention)"
    assert float(report.influence.max()) > 1.0
    assert hermetic.probe(hermetic.seal(model, backend="reference")).verdict == "sealed"


@pytest.mark.parametrize(
    ("name", "where", "code"),
    [
        ("lfm2", "model.layers.0.conv (Lfm2ShortConv)", "HM302"),
        ("qwen3_5", "model.layers.0.linear_attn (Qwen3_5GatedDeltaNet)", "HM301"),
    ],
)
def test_a_hybrid_leaks_through_its_other_token_mixer_on_positions_alone(name, where, code):
    report = hermetic.probe(calling(tiny(name), "only_position_ids"))

    assert report.verdict == "leak"
    assert codes(report) == [code]
    assert report.findings[0].where == where


@pytest.mark.parametrize("name", ["lfm2", "qwen3_5"])
def test_a_hybrid_that_needs_kernels_which_are_missing_is_unsupported_and_no_crash(name):
    model = tiny(name)

    def forward(batch):
        if batch.boundaries.num_documents == 1:
            return model(batch.input_ids[None]).logits
        inputs = batch.model_inputs()
        del inputs["labels"]
        return model(**inputs, seq_idx=batch.boundaries.document_ids[None]).logits

    report = hermetic.probe(forward)
    assert report.verdict == "unsupported"
    assert codes(report) == ["HM601"]
    assert "cannot isolate documents with the kernels that are installed" in report.findings[0].what


def test_a_model_that_runs_documents_alone_and_refuses_packed_ones_is_unsupported():
    report = hermetic.probe(tiny("qwen3_5"))

    assert report.verdict == "unsupported"
    assert "can't keep packed sequences apart without `flash-linear-attention`" in report.findings[0].what


@pytest.mark.parametrize(("name", "distorted"), [("llama", False), ("gpt2", True)])
def test_positions_that_run_on_under_a_right_mask_are_reported_whether_or_not_they_harm(name, distorted):
    model = tiny(name)

    def forward(batch):
        mask = additive_mask(batch.boundaries, dtype=torch.float32)
        positions = torch.arange(batch.num_slots)[None]
        return model(
            input_ids=batch.input_ids[None], position_ids=positions, attention_mask=mask, use_cache=False
        ).logits

    report = hermetic.probe(forward, lengths=LENGTHS)
    assert report.verdict == "distortion"
    assert report.findings[0].code == "HM201"
    assert report.findings[0].what.startswith("positions not reset")
    assert report.findings[0].size == 5.0
    assert not report.influence.any()
    assert (codes(report) == ["HM201", "HM202", "HM203"]) is distorted
    assert float(report.equivalence[1]) > 1.0 if distorted else float(report.equivalence[1]) <= 1e-5


def with_mask(model, make_mask):
    def forward(batch):
        return model(**row_and_positions(batch), attention_mask=make_mask(batch.boundaries), use_cache=False).logits

    return forward


def test_on_an_eager_model_the_additive_mask_is_right():
    model = tiny("llama", implementation="eager")
    forward = with_mask(model, lambda boundaries: additive_mask(boundaries, dtype=torch.float32))

    assert hermetic.probe(forward, lengths=LENGTHS).verdict == "sealed"
    batch = packed(LENGTHS)
    for one, other in zip(batch.unpack(forward(batch)), alone(model, batch), strict=True):
        assert (one - other).abs().max().item() <= 1e-5


def test_on_an_eager_model_a_boolean_mask_is_caught():
    model = tiny("llama", implementation="eager")
    forward = with_mask(model, lambda boundaries: dense_mask(boundaries)[None, None])
    report = hermetic.probe(forward, lengths=LENGTHS)
    batch = packed(LENGTHS)

    assert report.verdict == "leak"
    assert codes(report) == ["HM100", "HM109"]
    assert report.findings[0].where == "model.layers.0.self_attn (LlamaAttention)"
    assert float(report.influence[1, 0]) > 1.0
    for one, other in zip(batch.unpack(forward(batch)), alone(tiny("llama"), batch), strict=True):
        assert (one - other).abs().max().item() > 1.0


def test_document_numbers_in_a_mask_become_booleans_and_the_probe_says_so():
    model = tiny("llama")

    def forward(batch):
        numbers = batch.boundaries.document_ids[None] + 1
        return model(**row_and_positions(batch), attention_mask=numbers, use_cache=False).logits

    report = hermetic.probe(forward, lengths=LENGTHS)
    assert report.verdict == "leak"
    assert codes(report) == ["HM100", "HM103"]
    assert report.findings[0].where == "model.layers.0.self_attn (LlamaAttention)"
    assert "makes booleans of them" in report.findings[1].what


@pytest.mark.parametrize("call", ["all_ones_mask", "two_rows"])
def test_a_leak_is_traced_to_the_attention_that_carries_it_in_one_row_and_in_several(call):
    report = hermetic.probe(calling(tiny("llama"), call), lengths=(11, 6, 1, 13, 5))

    assert report.findings[0].where == "model.layers.0.self_attn (LlamaAttention)"
