"""What each stack makes of one setting more or less: the finding that comes or goes with the smallest change."""

from pathlib import Path

import pytest
import yaml
from audit_config_helpers import audited

import hermetic
from hermetic.audit import audit, audit_command

BASES = {
    "trl": {"dataset_name": "x", "packing": True, "packing_strategy": "bfd_split", "max_length": 4096},
    "axolotl": {
        "base_model": "x",
        "sequence_len": 4096,
        "sample_packing": True,
        "excess_length_strategy": "raise",
        "attn_implementation": "flash_attention_2",
    },
    "llamafactory": {"stage": "sft", "template": "qwen", "cutoff_len": 4096, "neat_packing": True},
    "swift": {
        "model": "x",
        "packing": True,
        "attn_impl": "flash_attn",
        "max_length": 4096,
        "truncation_strategy": "right",
    },
    "torchtune": {
        "tokenizer": {"_component_": "t", "max_seq_len": 4096},
        "dataset": {"_component_": "torchtune.datasets.chat_dataset", "packed": True},
    },
    "megatron": {
        "model": {"calculate_per_token_loss": True},
        "train": {"micro_batch_size": 1},
        "dataset": {"enable_offline_packing": True, "offline_packing_specs": {"packed_sequence_size": 4096}},
    },
}

TEXTS = "torchtune.datasets.text_completion_dataset"
UNSET = {"enable_offline_packing": False, "offline_packing_specs": {"pad_cu_seqlens": True}}
ALIGNED = {"enable_offline_packing": True, "offline_packing_specs": {"packed_sequence_size": 64, "pad_seq_to_mult": 4}}
OF_NEMO = {"micro_batch_size": 2, "calculate_per_token_loss": True, "data": {"train_ds": {"packed_sequence": True}}}

CHANGES = [
    ("trl", {"packing_strategy": "best"}, ["HM620"]),
    ("trl", {"max_length": None}, ["HM620"]),
    ("trl", {"packing": False, "eval_packing": True}, []),
    ("trl", {"packing": "${oc.env:PACKING}"}, []),
    ("trl", {"packing_strategy": "bfd-requeue", "attn_implementation": "paged|flash_attention_2"}, []),
    ("trl", {"attn_implementation": "${attention}"}, []),
    ("trl", {"peft_type": "P_TUNING"}, ["HM124"]),
    ("trl", {"peft_type": "LORA"}, []),
    ("trl", {"max_length": "4096"}, []),
    ("trl", {"max_length": "none"}, ["HM620"]),
    ("trl", {"parallelism_config": {"sp_size": 2}}, ["HM821"]),
    ("trl", {"parallelism_config": {"sp_size": 2}, "attn_implementation": "flash_attention_3"}, []),
    ("trl", {"cp_size": 2, "packing": False, "padding_free": True, "max_length": None}, ["HM820"]),
    ("trl", {"cp_size": 2, "packing_strategy": "wrapped"}, ["HM120", "HM620"]),
    ("axolotl", {"xformers_attention": True, "attn_implementation": None}, []),
    ("axolotl", {"sdp_attention": True, "attn_implementation": None}, ["HM122"]),
    ("axolotl", {"attn_implementation": "varlen"}, ["HM122"]),
    ("axolotl", {"attn_implementation": "acme/flash-attn9"}, ["HM122"]),
    ("axolotl", {"attn_implementation": "kernels-community/flash-attn3@v1"}, []),
    ("axolotl", {"sample_packing": None, "batch_flattening": "auto"}, []),
    ("axolotl", {"sample_packing": None, "batch_flattening": True, "attn_implementation": "eager"}, ["HM122"]),
    ("axolotl", {"sample_packing": None, "pretraining_sample_concatenation": True}, ["HM121"]),
    ("axolotl", {"excess_length_strategy": None}, []),
    ("axolotl", {"sequence_len": None}, ["HM721"]),
    ("axolotl", {"sequence_len": None, "excess_length_strategy": None}, ["HM720"]),
    ("trl", {"packing_strategy": "bfd", "truncation_mode": "keep_end"}, ["HM720"]),
    ("trl", {"packing_strategy": "bfd", "truncation_mode": "keep_start"}, []),
    ("trl", {"truncation_mode": "keep_end"}, []),
    ("axolotl", {"context_parallel_size": 2, "attn_implementation": "eager"}, ["HM122", "HM620"]),
    ("axolotl", {"context_parallel_size": 2, "deepspeed": "z.json", "attn_implementation": "sdpa"}, ["HM122", "HM821"]),
    ("axolotl", {"overrides_of_model_config": {"rope_scaling": {"type": "dynamic"}}}, ["HM220"]),
    ("axolotl", {"noisy_embedding_alpha": 5}, ["HM520"]),
    ("axolotl", {"datasets": [{"path": "x", "type": {"system_prompt": ""}}]}, []),
    ("axolotl", {"train_on_inputs": True, "datasets": [{"path": "x", "type": "alpaca"}]}, ["HM420"]),
    ("axolotl", {"train_on_inputs": True, "datasets": [{"path": "x", "type": "chat_template"}]}, []),
    ("axolotl", {"train_on_inputs": False, "datasets": [{"path": "x", "type": "alpaca"}]}, []),
    ("axolotl", {"average_tokens_across_devices": False}, ["HM521"]),
    ("llamafactory", {"stage": "dpo"}, ["HM620"]),
    ("llamafactory", {"stage": "${stage}"}, []),
    ("llamafactory", {"neat_packing": False, "packing": True, "flash_attn": "${attention}"}, ["HM121"]),
    ("llamafactory", {"neat_packing": None, "packing": None, "stage": "pt"}, ["HM120"]),
    ("llamafactory", {"neat_packing": None, "packing": False, "stage": "pt"}, []),
    ("llamafactory", {"neat_packing": None, "packing": True, "stage": "rm"}, []),
    ("llamafactory", {"flash_attn": "fa2", "per_device_train_batch_size": 1}, []),
    ("llamafactory", {"moe_aux_loss_coef": 0.01}, ["HM522"]),
    ("swift", {"attn_impl": None}, ["HM620"]),
    ("swift", {"attn_impl": "flash_attention_4"}, []),
    ("swift", {"lazy_tokenize": True}, ["HM620"]),
    ("swift", {"packing": False, "padding_free": True}, []),
    ("swift", {"packing": False, "padding_free": True, "attn_impl": "eager"}, ["HM620"]),
    ("swift", {"packing": "${packing}"}, []),
    ("swift", {"truncation_strategy": None}, []),
    ("swift", {"truncation_strategy": None, "max_length": None}, ["HM720"]),
    ("torchtune", {"dataset": [{"packed": False}, {"packed": True, "_component_": TEXTS}]}, ["HM420"]),
    ("torchtune", {"dataset": {"packed": "False", "_component_": "x"}}, ["HM621"]),
    ("torchtune", {"dataset": {"packed": "${packed}", "_component_": "x"}}, []),
    ("megatron", {"train": {"micro_batch_size": 2}}, ["HM620"]),
    ("megatron", {"model": {"calculate_per_token_loss": False}}, ["HM521"]),
    ("megatron", {"dataset": {"enable_offline_packing": "${packed}"}}, []),
    ("megatron", {"dataset": UNSET}, ["HM620"]),
    ("megatron", {"dataset": {"packed_sequence_specs": {"packed_sequence_size": 4096}}}, []),
    ("megatron", {"dataset": {"enable_in_batch_packing": True}, "train": {"micro_batch_size": 4}}, []),
    ("megatron", {"dataset": {"blend": ["a"]}}, ["HM120"]),
    ("megatron", {"dataset": {"blend": ["a"], "reset_attention_mask": True}, "transformer_impl": "local"}, []),
    ("megatron", {"dataset": {}}, []),
    ("megatron", {"peft": {"peft_scheme": "ptuning"}}, ["HM124"]),
    (
        "megatron",
        {
            "model": {
                "context_parallel_size": 2,
                "tensor_model_parallel_size": 4,
                "sequence_parallel": True,
                "calculate_per_token_loss": True,
            },
            "dataset": ALIGNED,
        },
        ["HM822"],
    ),
    (
        "megatron",
        {
            "model": OF_NEMO,
            "train": None,
            "dataset": None,
        },
        ["HM620"],
    ),
]


def changed(stack, change):
    return {name: value for name, value in (BASES[stack] | change).items() if value is not None or stack == "trl"}


@pytest.mark.parametrize("stack", BASES)
def test_what_the_changes_are_made_to_is_sound(stack, tmp_path):
    report = audited(yaml.safe_dump(BASES[stack]), tmp_path)

    assert (report.stack, report.findings) == (stack, ())


@pytest.mark.parametrize(("stack", "change", "codes"), CHANGES, ids=lambda part: str(part)[:60])
def test_a_change_brings_the_finding_that_belongs_to_it_and_no_other(stack, change, codes, tmp_path):
    report = audited(yaml.safe_dump(changed(stack, change)), tmp_path, stack=stack)

    assert [finding.code for finding in report.findings] == codes


def test_megatron_swift_and_its_options_with_dashes_are_read():
    packed = ["megatron", "sft", "--model", "x", "--packing", "true", "--truncation-strategy", "right"]

    assert audit_command([*packed, "--micro-batch-size", "1"]).findings == ()
    assert [one.code for one in audit_command([*packed, "--moe_aux_loss_coeff", "0.1"]).findings] == ["HM522", "HM620"]


def test_the_one_door_takes_batches_and_folders_too(tmp_path):
    batch = hermetic.collate([{"input_ids": [5, 6, 7]}, {"input_ids": [8, 9]}])

    assert audit(batch).kind == "batch"
    assert audit(batch.model_inputs()).sound
    assert hermetic.audit is audit
    with pytest.raises(hermetic.HermeticError):
        audit(tmp_path)  # no folder of hermetic pack
    with pytest.raises(hermetic.HermeticError):
        audit(3)
    (tmp_path / "batch.npz").write_bytes(b"no archive")
    with pytest.raises(hermetic.HermeticError, match=r"batch\.npz"):
        audit(Path(tmp_path) / "batch.npz")
