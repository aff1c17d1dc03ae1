"""What the audit takes for a stack's default is that of the stack that is installed."""

import dataclasses
import sys

import pytest
from audit_config_helpers import audited

from hermetic.audit.finding import Place
from hermetic.audit.setup import Setting
from hermetic.audit.stacks import setup_of

NOTHING = setup_of("trl", {})
PACKED = setup_of("trl", {"packing": Setting(value=True, place=Place(key="packing"))})

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.version_info < (3, 11), reason="TRL is a dependency of the tests from Python 3.11 on"),
]


def defaults(configuration):
    return {field.name: field.default for field in dataclasses.fields(configuration)}


def test_the_defaults_of_trl_are_those_of_its_configuration():
    from trl import SFTConfig

    of_trl = defaults(SFTConfig)

    assert of_trl["max_length"] == PACKED.capacity.value == 1024
    assert of_trl["packing_strategy"] == PACKED.overflow.setting.value == "bfd"
    assert (of_trl["packing"], of_trl["padding_free"]) == (False, False)
    assert NOTHING.layout == "padded"


def test_the_defaults_of_trainer_are_those_of_its_arguments():
    from transformers import TrainingArguments

    of_trainer = defaults(TrainingArguments)

    assert of_trainer["per_device_train_batch_size"] == NOTHING.rows_per_device.value
    assert of_trainer["use_cache"] is NOTHING.cache.value is False
    assert of_trainer["average_tokens_across_devices"] is True
    assert of_trainer["neftune_noise_alpha"] is None


def test_packing_of_trl_keeps_the_beginning_of_a_longer_document_whatever_its_truncation_mode_says():
    from datasets import Dataset
    from trl import pack_dataset

    rows = Dataset.from_dict({"input_ids": [[1, 2, 3, 4, 5], [6, 7]]})

    assert list(pack_dataset(rows, 3, "bfd")["input_ids"]) == [[1, 2, 3], [6, 7]]
    assert sorted(map(len, pack_dataset(rows, 3, "bfd_split")["input_ids"])) != [2, 3]


def test_trl_refuses_what_it_is_said_to_refuse(tmp_path):
    from trl import SFTConfig
    from trl.scripts.utils import TrlParser

    (tmp_path / "old.yaml").write_text("output_dir: out\nmax_seq_length: 9\n", encoding="utf-8")
    parser = TrlParser(SFTConfig)

    with pytest.raises(ValueError, match="max_seq_length"):
        parser.parse_args_and_config(["--config", str(tmp_path / "old.yaml"), "--use_cpu", "True"])
    report = audited("output_dir: out\nmax_seq_length: 9\n", tmp_path, stack="trl", versions={"trl": "1.16.0"})
    assert [finding.code for finding in report.findings] == ["HM620"]


@pytest.mark.parametrize(("written", "on"), [("yes", True), ('"yes"', True), ('"no"', False), ("0", False)])
def test_trl_takes_texts_for_truths_as_the_audit_does(tmp_path, written, on):
    from trl import SFTConfig
    from trl.scripts.utils import TrlParser

    text = f"output_dir: out\nmax_length: 9\npacking_strategy: bfd_split\npacking: {written}\n"
    (tmp_path / "train.yaml").write_text(text, encoding="utf-8")
    arguments = ["--config", str(tmp_path / "train.yaml"), "--use_cpu", "True"]

    (parsed,) = TrlParser(SFTConfig).parse_args_and_config(arguments)
    assert bool(parsed.packing) is on
    assert dict(audited(text, tmp_path, stack="trl").facts)["packing"].startswith("whole") is on
