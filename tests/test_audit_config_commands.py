"""A command, and a shell script that starts one, is read as a shell would read it, and nothing in it is run."""

import re

import pytest
from audit_config_helpers import FOLDER, audited, said
from hypothesis import given, settings
from hypothesis import strategies as st

from hermetic.audit import audit_command, audit_config
from hermetic.errors import AuditError

TRL = "model_name_or_path: Qwen/Qwen3-0.6B\ndataset_name: x\nmax_length: 4096\npacking: true\n"


WORDS = st.lists(st.text(alphabet="-a=b'\"$\\{}() \n;|&<>#1", max_size=12), max_size=6)


def stack_or_error(audit):
    try:
        return audit().stack
    except AuditError:
        return "an error of ours"


@settings(deadline=None, max_examples=100)
@given(words=WORDS)
def test_any_words_are_a_report_or_an_error_of_ours(tmp_path_factory, words):
    folder = tmp_path_factory.mktemp("words")
    text = "trl sft " + " ".join(words)

    assert stack_or_error(lambda: audit_command(["trl", "sft", *words])) in {"trl", "an error of ours"}
    assert stack_or_error(lambda: audited(text, folder, name="a.sh")) in {"trl", "an error of ours"}


COMMANDS = {
    "quotes and variables": (
        "S='wrapped'\nexport L=4096\ntrl sft --packing --packing_strategy \"$S\" --max_length ${M:-$L}\n",
        ["HM120"],
    ),
    "a variable of nobody": ("trl sft --packing --packing_strategy $STRATEGY --max_length 4096\n", []),
    "a command in a word": ("trl sft --packing $(cat packing) --packing_strategy wrapped --max_length 4096\n", []),
    "an output that goes elsewhere": (
        "trl sft --packing --packing_strategy wrapped --max_length 4096 > log.txt 2>&1 &\n",
        ["HM120"],
    ),
    "a condition": (
        "if [ -d out ]; then rm -r out; fi\ntrl sft --packing --packing_strategy wrapped --max_length 4096 || exit 1\n",
        ["HM120"],
    ),
    "a text in a script": (
        "cat > note <<EOF\ndon't mind\nEOF\ntrl sft --packing --packing_strategy wrapped --max_length 4096\n",
        ["HM120"],
    ),
    "an array": (
        'A=(--packing --max_length 9)\nA+=( # more\n --packing_strategy wrapped)\ntrl sft "${A[@]}"\n',
        ["HM120"],
    ),
    "options in a variable": (
        "A='--packing --max_length 9'\nA=\"$A --packing_strategy\"\nA+=' wrapped'\ntrl sft $A\n",
        ["HM120"],
    ),
    "options of nobody": ("trl sft --packing $EXTRA_ARGS\n", []),
    "options that are handed over": ('trl sft --packing "$@"\n', []),
    "a number that is computed": (
        "trl sft --packing --packing_strategy wrapped --max_length $((2 * $(cat n) * 8))\n",
        ["HM120"],
    ),
    "a file that is a command": ("trl sft --config <(cat a.yaml) --packing\n", []),
    "a branch": ("if true; then trl sft --packing --packing_strategy wrapped --max_length 9; fi\n", ["HM120"]),
    "a shell within": (
        "srun bash -lc 'cd x && trl sft --packing --packing_strategy wrapped --max_length 9'\n",
        ["HM120"],
    ),
    "a command in a variable": (
        "CMD='trl sft --packing --packing_strategy wrapped --max_length 9'\neval $CMD\n",
        ["HM120"],
    ),
    "a program in a container": (
        "docker run --gpus all image trl sft --packing --packing_strategy wrapped --max_length 9\n",
        ["HM120"],
    ),
    "Windows line ends": (
        "trl sft \\\r\n  --packing \\\r\n  --packing_strategy wrapped --max_length 9\r\n",
        ["HM120"],
    ),
    "a comment": ("# trl sft --packing_strategy wrapped\nswift sft --packing false\n", []),
    "two commands": (
        "trl sft --packing --packing_strategy bfd_split --max_length 9\ntrl sft --packing --packing_strategy wrapped\n",
        ["HM120", "HM721"],
    ),
    "a script of one's own with a stack's options": (
        "deepspeed --num_gpus 8 train.py --dataset_name x --packing --packing_strategy wrapped --max_length 4096\n",
        ["HM120"],
    ),
    "a setting inside": (
        """trl sft --packing --packing_strategy bfd_split --max_length 9 \\
        --model_init_kwargs '{"attn_implementation": "x"}'""",
        ["HM122"],
    ),
}


@pytest.mark.parametrize("what", COMMANDS)
def test_a_shell_script_is_read_as_a_shell_would_and_not_run(what, tmp_path):
    text, codes = COMMANDS[what]

    assert [finding.code for finding in audited(text, tmp_path, name="run.sh").findings] == codes


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("echo hello\n", "has no command of a known stack"),
        ("python train.py --lr 1\n", "has no command of a known stack"),
        ("trl sft --packing 'open\n", "run.sh:1:19 opens a quote that nothing closes"),
        ("A=(--packing\ntrl sft\n", "run.sh:1:1 opens an array that nothing closes"),
        ("trl sft --packing true\nswift sft --packing true\n", "has commands of several stacks"),
        ("axolotl train missing.yaml\n", "names the configuration missing.yaml, which is not there"),
    ],
)
def test_a_shell_script_that_cannot_be_audited_is_refused(text, message, tmp_path):
    with pytest.raises(AuditError, match=re.escape(message)):
        audited(text, tmp_path, name="run.sh")


def test_a_command_stands_over_the_configuration_that_it_names(tmp_path):
    (tmp_path / "base.yaml").write_text(TRL + "packing_strategy: bfd\nattn_implementation: flash_attention_2\n")
    over = audited("trl sft --config base.yaml --packing_strategy=wrapped", tmp_path, name="run.sh")
    under = audited("trl sft --config base.yaml", tmp_path, name="run.sh")

    assert [str(finding.place) for finding in over.findings] == [f"{tmp_path / 'run.sh'}:1:28 --packing_strategy"]
    assert under.findings == ()


def test_a_configuration_is_found_from_the_root_of_the_repository_that_a_script_is_in(tmp_path):
    (tmp_path / "recipes").mkdir()
    (tmp_path / "scripts" / "slurm").mkdir(parents=True)
    (tmp_path / "recipes" / "sft.yaml").write_text(TRL + "packing_strategy: wrapped\n")
    report = audited("trl sft --config recipes/sft.yaml", tmp_path / "scripts" / "slurm", name="run.sh")

    assert [finding.place.file for finding in report.findings] == [str(tmp_path / "recipes" / "sft.yaml")]


def test_overrides_without_dashes_are_those_of_stacks_that_have_them(tmp_path):
    (tmp_path / "base.yaml").write_text("stage: sft\ntemplate: qwen\ncutoff_len: 4096\ndataset: x\n")
    factory = audited("llamafactory-cli train base.yaml packing=true flash_attn=sdpa", tmp_path, name="run.sh")
    tune = audit_command(["tune", "run", "x", "--config", "a/b", "dataset.packed=True", "tokenizer.max_seq_len=null"])

    assert [finding.code for finding in factory.findings] == ["HM121"]
    assert [finding.code for finding in tune.findings] == ["HM620"]
    assert any("a/b comes with torchtune" in note for note in tune.notes)


def test_how_accelerate_splits_rows_is_read_from_its_own_configuration(tmp_path):
    (tmp_path / "cp.yaml").write_text("parallelism_config:\n  parallelism_config_cp_size: 2\nnum_processes: 2\n")
    text = "accelerate launch --config_file cp.yaml -m trl.scripts.sft --packing --packing_strategy bfd_split"
    known, unknown = (
        audited(text.replace("cp.yaml", name), tmp_path, name="run.sh", versions={"trl": "1.10.0"})
        for name in ("cp.yaml", "other.yaml")
    )

    own, trl = (
        "accelerate launch --config_file cp.yaml train.py --packing --packing_strategy bfd_split --dataset_name x",
        "accelerate launch --config_file cp.yaml trl sft --packing --packing_strategy bfd_split",
    )
    others = [audited(text, tmp_path, name="run.sh", versions={"trl": "1.10.0"}) for text in (own, trl)]

    assert [finding.code for finding in known.findings] == ["HM721", "HM820"]
    assert [said(other) for other in others] == [said(known)] * 2
    assert [finding.code for finding in unknown.findings] == ["HM721"]
    assert any("how it splits rows is not known" in note for note in unknown.notes)


@pytest.mark.parametrize(
    ("argv", "stack"),
    [
        (["axolotl", "train", str(FOLDER / "axolotl_sdpa.yaml")], "axolotl"),
        (["accelerate", "launch", "-m", "axolotl.cli.train", str(FOLDER / "axolotl_sdpa.yaml")], "axolotl"),
        (["swift", "sft", str(FOLDER / "swift_hybrid.yaml"), "--packing", "false"], "swift"),
        (["uv", "run", "trl", "sft", "--packing"], "trl"),
        (["WANDB_MODE=offline", "swift", "sft", "--packing", "true"], "swift"),
        (["deepspeed", "--module", "llamafactory.cli", "train"], "llamafactory"),
        (["python3.12", "-m", "torch.distributed.run", "-m", "trl.scripts.sft", "--packing"], "trl"),
        (["torchrun", "pretrain_gpt.py", "--reset-attention-mask"], "megatron"),
        (["python", "train.py", "--dataset_name", "x", "--packing_strategy", "bfd"], "trl"),
    ],
)
def test_the_stack_of_a_command_is_told_by_its_program_its_module_or_its_options(argv, stack):
    assert audit_command(argv).stack == stack


def test_the_stack_that_is_named_decides_and_an_unknown_one_is_refused(tmp_path):
    (tmp_path / "x.yaml").write_text("packing: true\n")

    assert audit_config(tmp_path / "x.yaml", stack="swift").stack == "swift"
    with pytest.raises(AuditError, match="stack 'nemo' is unknown; expected one of trl, axolotl"):
        audit_config(tmp_path / "x.yaml", stack="nemo")
    with pytest.raises(AuditError, match="the command is empty"):
        audit_command([])
