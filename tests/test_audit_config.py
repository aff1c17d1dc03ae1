"""Configurations of every stack are told what is wrong with them, and nothing else."""

import subprocess
import sys
from dataclasses import replace

import pytest
import yaml
from audit_config_helpers import EXPECTED, FOLDER, audited, cases, said, told
from hypothesis import given, settings
from hypothesis import strategies as st

from hermetic.audit import AuditReport, Place, audit, audit_command, audit_config
from hermetic.audit.rules import RULES
from hermetic.audit.setup import OTHERS, UNKNOWN, Setting, holds, in_versions
from hermetic.audit.stacks import STACKS, findings_of, setup_of

CASES = list(cases())
SOUND = [case for case in CASES if "_sound" in case.path.name]


WITH = {None: {}, "0.18.2": {"trl": "0.18.2"}, "1.16.0": {"trl": "1.16.0"}}


def place_of(name):
    return Place(key=name)


def findings(plain, versions):
    return findings_of(setup_of("trl", plain, versions=versions))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_configuration_is_told_exactly_what_is_expected_at_the_lines_that_are_expected(case):
    report = audit_config(case.path, versions=case.versions)

    assert told(report) == case.expected
    assert all(finding.value and finding.way_out for finding in report.findings)
    assert all(RULES[finding.code].check for finding in report.findings)


def test_there_are_configurations_enough_of_every_stack_and_each_has_its_expectation():
    files = {path.name for path in FOLDER.iterdir()} - {EXPECTED.name}
    faulty = {case.path.name for case in CASES if case.expected}

    assert {case.path.name for case in CASES} == files
    assert {audit_config(FOLDER / name).stack for name in files} == set(STACKS)
    assert len(faulty) >= 25
    assert len({case.path for case in SOUND}) >= 15
    assert [case.name for case in SOUND if case.expected] == []


def test_every_rule_of_setups_is_needed_by_some_configuration_or_example():
    needed = {code for case in CASES for code, _, _ in case.expected}
    of_setups = {code for code in RULES if 20 <= int(code[-2:]) < 40}

    assert of_setups - needed <= {"HM124", "HM221", "HM421"}  # their examples stand on the rules


def test_a_missed_finding_and_a_false_one_are_noticed():
    case = next(case for case in CASES if case.path.name == "trl_wrapped.yaml")

    assert told(audit_config(case.path)) == case.expected
    assert told(audit_config(case.path)) != replace(case, expected=()).expected
    assert told(audit_config(SOUND[0].path)) != case.expected


VALUES = {
    "packing": [True, False],
    "packing_strategy": ["bfd", "bfd_split", "wrapped", "ffd"],
    "padding_free": [True, False],
    "max_length": [512, 4096],
    "attn_implementation": ["sdpa", "eager", "flash_attention_2", "kernels-community/flash-attn3@v1", "mine"],
    "model_name_or_path": ["Qwen/Qwen3-0.6B", "openai/gpt-oss-20b", "state-spaces/mamba2-2.7b"],
    "neftune_noise_alpha": [5, 0, 2.5],
    "use_cache": [True, False],
    "average_tokens_across_devices": [True, False],
    "assistant_only_loss": [True],
    "router_aux_loss_coef": [0.001, 0.0],
    "peft_type": ["PREFIX_TUNING", "LORA"],
    "sp_size": [1, 4],
    "cp_size": [1, 2],
}
OF_TRL = st.fixed_dictionaries({}, optional={name: st.sampled_from(values) for name, values in VALUES.items()})
VERSIONS = st.fixed_dictionaries({}, optional={"trl": st.sampled_from(["0.18.2", "0.22.2", "1.10.0", "1.16.0"])})


@settings(deadline=None, max_examples=25)
@given(of_trl=OF_TRL, versions=VERSIONS, style=st.sampled_from([None, True, False]), order=st.randoms())
def test_neither_the_order_of_the_keys_nor_the_layout_of_the_yaml_matters(
    tmp_path_factory, of_trl, versions, style, order
):
    folder = tmp_path_factory.mktemp("yaml")
    shuffled = list(of_trl.items())
    order.shuffle(shuffled)
    plain = yaml.safe_dump(of_trl | {"dataset_name": "x"})
    other = "# a comment\n\n" + yaml.safe_dump(
        dict([*shuffled, ("dataset_name", "x")]), default_flow_style=style, sort_keys=False
    )

    one, two = (audited(text, folder, stack="trl", versions=versions) for text in (plain, other))

    assert said(one) == said(two)
    assert one.facts == two.facts


@settings(deadline=None, max_examples=25)
@given(of_trl=OF_TRL, versions=VERSIONS, joined=st.booleans())
def test_a_command_line_and_a_yaml_of_the_same_settings_are_told_the_same(tmp_path_factory, of_trl, versions, joined):
    folder = tmp_path_factory.mktemp("both")
    words = [("=".join if joined else " ".join)((f"--{name}", str(value))) for name, value in of_trl.items()]
    argv = ["trl", "sft", *(word for pair in words for word in pair.split(" "))]

    from_yaml = audited(yaml.safe_dump(of_trl | {"dataset_name": "x"}), folder, stack="trl", versions=versions)
    from_words = audit_command(argv, versions=versions)
    from_script = audited(" \\\n  ".join(argv), folder, name="run.sh", versions=versions)

    assert said(from_words) == said(from_yaml) == said(from_script)


@settings(deadline=None, max_examples=25)
@given(of_trl=OF_TRL)
def test_a_version_only_decides_what_depends_on_one(of_trl):
    plain = {name: Setting(value=value, place=place_of(name)) for name, value in of_trl.items()}
    report = {one.code: one.certainty for one in findings(plain, {})}

    for version in ("0.18.2", "0.22.2", "1.10.0", "1.16.0"):
        decided = {one.code: one.certainty for one in findings(plain, {"trl": version})}
        assert "depends on version" not in {decided[code] for code in decided if code not in {"HM123", "HM320"}}
        settled = {code for code, certainty in report.items() if certainty != "depends on version"}
        layout = setup_of("trl", plain, versions={"trl": version}).layout
        assert settled <= decided.keys() or layout == "cut"  # an old TRL packs otherwise altogether


def test_where_not_all_settings_were_read_nothing_is_taken_for_a_default():
    others = {OTHERS: Setting(value=UNKNOWN, place=place_of(OTHERS))}
    packing = {"packing": Setting(value=True, place=place_of("packing"))}
    wrapped = packing | {"packing_strategy": Setting(value="wrapped", place=place_of("packing_strategy"))}

    assert {one.code for one in findings(packing, {})} == {"HM720"}
    assert findings(packing | others, {}) == ()
    assert {one.code for one in findings(wrapped | others, {})} == {"HM120"}


@pytest.mark.parametrize("stack", STACKS)
def test_without_settings_a_stack_packs_nothing_and_nothing_is_found(stack):
    setup = setup_of(stack, {})

    assert setup.layout in {"padded", "unknown"}
    assert findings_of(setup) == ()


def test_a_claim_of_several_bounds_names_those_that_are_open():
    claim = setup_of("trl", {"max_seq_length": Setting(value=1, place=place_of("max_seq_length"))}).refusals[0]

    assert claim.versions == "trl >= 0.20"
    assert in_versions(claim, {"trl": "0.20.0"}, ("trl", "<", "0.20"), ("torch", ">=", "3"))[0].versions == "torch >= 3"
    assert in_versions(claim, {"trl": "0.19"}, ("trl", "<", "0.20"), ("torch", ">=", "3"))[0] is claim
    assert holds({"trl": "1.10.0.dev0"}, ("trl", ">=", "1.9")) is True


def test_what_is_discarded_by_default_at_a_length_that_was_chosen_is_a_note_that_names_the_default():
    notes = audit_config(FOLDER / "axolotl_legacy_flash_sound.yaml").notes
    chosen = audit_config(FOLDER / "axolotl_chat_sound.yaml").notes

    (note,) = notes
    assert note.startswith("Documents of more than 4096 tokens are left out: excess_length_strategy is drop (default).")
    assert "--on-overflow error names the first of them and says how many there are" in note
    assert "hermetic plan" not in note  # it reads lengths, and a source has none yet
    assert chosen == ()


def test_what_only_versions_of_over_a_year_ago_do_is_a_note_and_a_finding_where_one_of_them_is_used():
    by_version = {
        version: audit_config(FOLDER / "trl_old_name.yaml", versions=with_) for version, with_ in WITH.items()
    }

    assert [note.partition(",")[0] for note in by_version[None].notes if "trl" in note] == ["With trl < 0.19"]
    assert "HM120" not in {one.code for one in by_version[None].findings}
    assert ("HM120", "certain") in {(one.code, one.certainty) for one in by_version["0.18.2"].findings}
    assert not any("trl" in note for version in ("0.18.2", "1.16.0") for note in by_version[version].notes)


@pytest.mark.parametrize(
    ("bound", "past"),
    [
        (("trl", "<", "0.25.1"), True),
        (("trl", "<", "0.25.2"), False),
        (("trl", ">=", "0.1"), False),
        (("torchtune", "<", "0.7"), False),
        (("unheard", "<", "0.1"), False),
    ],
)
def test_a_bound_is_past_if_no_version_below_it_was_the_newest_within_a_year(bound, past):
    claim = setup_of("trl", {"max_seq_length": Setting(value=1, place=place_of("max_seq_length"))}).refusals[0]

    assert [one.past for one in in_versions(claim, {}, bound)] == [past]
    assert [one.past for one in in_versions(claim, {}, bound, ("torch", ">=", "3"))] == [False]


def test_findings_that_are_ignored_are_counted_and_the_others_stay():
    report = audit_config(FOLDER / "axolotl_texts.yaml")
    less = report.without(["HM520", "HM120"])

    assert [one.code for one in less.findings] == ["HM420"]
    assert less.ignored == (("HM120", 0), ("HM520", 1))
    assert less.notes == (*report.notes, "Findings that were ignored, as asked: 1 of HM520.")
    assert AuditReport.from_dict(less.to_dict()) == less
    assert report.without(["HM420", "HM520"]).sound


def test_a_report_survives_json():
    report = audit_config(FOLDER / "trl_defaults.yaml")

    assert AuditReport.from_dict(report.to_dict()) == report
    assert not report.sound


def test_one_door_reads_every_kind_that_is_a_file_or_words():
    script = FOLDER.parent / "spot.py"

    assert audit(FOLDER / "trl_wrapped.yaml").kind == "configuration"
    assert audit(str(FOLDER / "swift_sdpa.sh")).kind == "command"
    assert audit(["swift", "sft", "--packing", "true"]).stack == "swift"
    with pytest.raises(Exception, match="is not there"):
        audit(FOLDER / "missing.yaml")
    with pytest.raises(Exception, match=r"spot\.py cannot be read"):
        audit(script)


def test_an_audit_of_a_configuration_imports_neither_torch_nor_numpy():
    program = (
        "import sys; from hermetic.cli import app\n"
        f"code = app(['audit', {str(FOLDER / 'trl_wrapped.yaml')!r}], standalone_mode=False)\n"
        "sys.stderr.write(repr((code, {'torch', 'numpy', 'transformers'} & set(sys.modules))))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)

    assert "HM120" in done.stdout
    assert done.stderr == "(1, set())"
