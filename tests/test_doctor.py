"""The user's own command is examined at its first batch, and nothing of it runs on."""

import json
import os
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

import hermetic
from hermetic.cli import app
from hermetic.doctor import Diagnosis, diagnose
from hermetic.doctor.checks import check_targets, check_text
from hermetic.doctor.documents import documents_of_call, named_arguments
from hermetic.doctor.examine import examine
from hermetic.doctor.watch import token_ids
from hermetic.errors import BoundariesError, DoctorError

EXAMPLES = Path(__file__).parents[1] / "examples" / "doctor"

COMMANDS = EXAMPLES / "commands"

EXPECTED = {  # verdict, codes, exit code
    "axolotl_collator": ("leak", ["HM401"], 1),
    "padded_loop": ("one_document_per_row", [], 0),
    "raw_loop_all_ones_mask": ("leak", ["HM100", "HM101"], 1),
    "raw_loop_default_cache": ("leak", ["HM100", "HM102"], 1),
    "trl_llama": ("sealed", [], 0),
    "trl_minimax": ("leak", ["HM301", "HM108"], 1),
    "trl_opt": ("leak", ["HM100", "HM108"], 1),
    "trl_wrapped": ("no_boundaries", ["HM602"], 1),
}

SCRIPT = """
import sys
from pathlib import Path

import torch

torch.set_num_threads(1)


class Model(torch.nn.Module):
    '''Adds up the row so far, which leaks, or looks at each token alone, which does not.'''

    def __init__(self):
        super().__init__()
        self.embedding = torch.nn.Embedding(16, 8)
        self.head = torch.nn.Linear(8, 16)

    def forward(self, input_ids, position_ids=None):
        x = self.embedding(input_ids)
        return self.head(x.cumsum(dim=1) if LEAKS else x)


LEAKS = "leaks" in sys.argv
model = Model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
row = {"input_ids": torch.arange(2, 12)[None], "position_ids": torch.tensor([[0, 1, 2, 3, 0, 1, 0, 1, 2, 3]])}


def evaluate():
    model.eval()
    with torch.no_grad():
        model(input_ids=torch.arange(8)[None])
    model.train()


def train(model=model):
    model(**row).logsumexp(dim=-1).sum().backward()
    optimizer.step()
    Path("stepped").touch()
"""


def write_script(folder, ending, name="train.py"):
    path = folder / name
    path.write_text(SCRIPT + textwrap.dedent(ending))
    return path


def python(*arguments):
    return [sys.executable, *map(str, arguments)]


@pytest.fixture(autouse=True)
def _one_thread_and_this_hermetic(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("PYTHONPATH", str(Path(hermetic.__file__).parents[1]))


@pytest.fixture
def in_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


# the whole way


@pytest.mark.slow
@pytest.mark.parametrize("name", EXPECTED)
def test_each_example_gets_its_verdict_and_takes_no_step(name, in_folder):
    command = [*python(EXAMPLES / f"{name}.py"), "--out", str(in_folder / "out")]
    asked = subprocess.run(
        [sys.executable, "-c", "from hermetic.cli import main; main()", "doctor", "--json", "--", *command],
        capture_output=True,
        text=True,
        check=False,
    )
    verdict, codes, exit_code = EXPECTED[name]

    found = json.loads(asked.stdout)
    assert (found["verdict"], [finding["code"] for finding in found["findings"]]) == (verdict, codes)
    assert asked.returncode == exit_code
    assert found["sound"] == (exit_code == 0)
    assert [path for path in in_folder.rglob("*") if path.is_file()] == []


def test_every_example_has_an_expected_end():
    assert sorted(EXPECTED) == [path.stem for path in sorted(EXAMPLES.glob("*.py"))]


@pytest.mark.slow
def test_the_examples_do_write_checkpoints_when_nobody_stops_them(in_folder):
    subprocess.run([*python(EXAMPLES / "padded_loop.py"), "--out", "out"], capture_output=True, check=True)

    assert sorted(path.name for path in in_folder.glob("out/*")) == [f"checkpoint-{step}" for step in range(6)]


def test_a_script_is_stopped_at_its_first_training_batch_and_its_output_passed_on(in_folder):
    """Neither the evaluation before nor a forward without gradients is taken for it; a shell goes on to nothing."""
    script = write_script(in_folder, "print('evaluating'); evaluate(); train()")
    written = []

    found = diagnose(
        ["sh", "-c", f"{sys.executable} {script} leaks; touch went-on"], timeout=120, on_output=written.append
    )

    assert (found.verdict, found.packing, found.documents) == ("leak", "packed", (4, 2, 4))
    assert (found.source, found.inferred) == ("position_ids", True)
    assert b"".join(written) == b"evaluating\n"
    assert sorted(path.name for path in in_folder.iterdir()) == ["train.py"]


@pytest.mark.slow
def test_without_the_doctor_the_same_script_takes_its_step_and_the_shell_goes_on(in_folder):
    script = write_script(in_folder, "evaluate(); train()")

    subprocess.run(["/bin/sh", "-c", f"{sys.executable} {script} leaks; touch went-on"], check=True)

    assert {"stepped", "went-on"} <= {path.name for path in in_folder.iterdir()}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ending", "note"),
    [
        ("evaluate(); train()", None),
        ("model.eval(); train()", "evaluation mode"),
        ("train(torch.compile(model, backend='eager'))", None),
        ("with torch.autocast('cpu', dtype=torch.bfloat16):\n    train()", None),
        ("import threading\nthread = threading.Thread(target=train)\nthread.start()\nthread.join()", None),
        ("optimizer.step(); train()", None),
        (
            "import subprocess\nif 'child' not in sys.argv: subprocess.run([*sys.orig_argv, 'child'])\nelse: train()",
            None,
        ),
        ("import signal\nsignal.signal(signal.SIGTERM, lambda *_: Path('saved').touch())\ntrain()", None),
        ("import atexit\natexit.register(lambda: Path('saved').touch())\ntrain()", None),
    ],
)
def test_however_a_loop_trains_it_is_seen_and_stopped(in_folder, ending, note):
    script = write_script(in_folder, ending)

    found = diagnose(python(script), timeout=120)

    assert found.verdict == "sealed"
    assert found.sound
    assert note is None or any(note in said for said in found.notes)
    assert [path.name for path in in_folder.iterdir()] == ["train.py"]


@pytest.mark.slow
def test_of_several_processes_the_first_examines_and_all_end(in_folder):
    script = write_script(
        in_folder,
        """
        torch.distributed.init_process_group("gloo")
        train(torch.nn.parallel.DistributedDataParallel(model))
        """,
    )

    found = diagnose(python("-m", "torch.distributed.run", "--nproc_per_node=2", script, "leaks"), timeout=300)

    assert (found.model, found.verdict) == ("Model", "leak")
    assert "examined inside DistributedDataParallel" in found.notes
    assert processes_with(str(script)) == []
    assert [path.name for path in in_folder.iterdir()] == ["train.py"]


@pytest.mark.slow
def test_accelerate_launch_is_looked_through(in_folder):
    script = write_script(in_folder, "train()")
    launch = [beside_python("accelerate"), "launch", "--cpu", "--num_processes=1", "--num_machines=1"]

    found = diagnose([*launch, "--mixed_precision=no", "--dynamo_backend=no", str(script), "leaks"], timeout=300)

    assert (found.model, found.verdict) == ("Model", "leak")
    assert processes_with(str(script)) == []
    assert [path.name for path in in_folder.iterdir()] == ["train.py"]


@pytest.mark.slow
def test_a_trainer_on_two_ranks_is_examined_in_the_first_and_ended_in_both(in_folder):
    script = EXAMPLES / "trl_opt.py"
    launch = python("-m", "torch.distributed.run", "--nproc-per-node=2", script, "--out", in_folder / "out")

    found = diagnose(launch, timeout=300)

    assert (found.model, found.verdict) == ("OPTForCausalLM", "leak")
    assert "examined inside DistributedDataParallel" in found.notes
    assert processes_with(str(in_folder)) == []
    assert [path for path in in_folder.rglob("*") if path.is_file()] == []


@pytest.mark.slow
@pytest.mark.parametrize(("model_type", "verdict"), [("llama", "sealed"), ("opt", "leak"), ("minimax", "leak")])
def test_trls_own_command_line_is_examined(in_folder, monkeypatch, model_type, verdict):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    subprocess.run(
        [*python(COMMANDS / "make_inputs.py", model_type), "--out", str(in_folder)], capture_output=True, check=True
    )
    before = sorted(path for path in in_folder.rglob("*") if path.is_file())

    found = diagnose([beside_python("trl"), "sft", "--config", str(COMMANDS / "trl_sft.yaml")], timeout=300)

    assert found.verdict == verdict
    assert found.source == "seq_idx"
    assert sorted(path for path in in_folder.rglob("*") if path.is_file()) == before


def test_every_configuration_says_how_it_is_examined():
    configurations = [path for path in COMMANDS.iterdir() if path.suffix in {".yaml", ".sh"}]

    assert len(configurations) == 4
    for path in configurations:
        assert "#   hermetic doctor -- " in path.read_text()
        assert path.name in path.read_text()


def beside_python(program):
    return str(Path(sys.executable).with_name(program))


def processes_with(text):
    lines = (path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline") if path.exists())
    return [line for line in lines if text.encode() in line]


# what cannot be examined


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ([], "no command"),
        (["no-such-program", "x"], "'no-such-program' is not found"),
        (python("-I", "train.py"), "-I ignores"),
        (python("-uE", "-m", "train"), "-uE ignores"),
    ],
)
def test_a_command_that_cannot_be_watched_is_refused_before_it_runs(command, said):
    with pytest.raises(DoctorError, match=said):
        diagnose(command)


@pytest.mark.parametrize(
    ("program", "said"),
    [
        ("import sys; print('cannot find data'); sys.exit(3)", "exit code 3 before.*\n\n.*\ncannot find data"),
        ("print('done')", "no Python of it imported torch"),
    ],
)
def test_a_command_that_ends_early_is_told_with_the_last_that_it_wrote(program, said):
    with pytest.raises(DoctorError, match=said):
        diagnose(python("-c", program), timeout=60)


def test_a_command_that_takes_too_long_is_ended():
    begun = time.monotonic()

    with pytest.raises(DoctorError, match=r"no training batch in 0\.5 seconds"):
        diagnose(python("-c", "import time; time.sleep(60)"), timeout=0.5)

    assert time.monotonic() - begun < 30


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ending", "said"),
    [
        ("evaluate()", "token ids while gradients are on"),
        (
            "model.head(torch.ones(8)).sum().backward(); optimizer.step(); Path('stepped').touch()",
            "about to take an optimizer step",
        ),
    ],
)
def test_a_command_without_token_ids_is_told_so_and_takes_no_step(in_folder, ending, said):
    with pytest.raises(DoctorError, match=said):
        diagnose(python(write_script(in_folder, ending)), timeout=120)
    assert [path.name for path in in_folder.iterdir()] == ["train.py"]


def test_an_environment_that_cannot_run_hermetic_is_told_so(in_folder):
    """A torch that is too old stands for any: what hermetic needs from it is not there."""
    (in_folder / "torch.py").write_text("__version__ = '0.1'\n")

    with pytest.raises(DoctorError, match=r"cannot run hermetic: ImportError: .*torch.*\. Install hermetic"):
        diagnose(python("-c", "import torch; open('trained', 'w')"), timeout=60)
    assert not (in_folder / "trained").exists()


def test_a_sitecustomize_of_the_user_is_loaded_and_hermetic_found_where_it_is_not_installed(in_folder, monkeypatch):
    (in_folder / "sitecustomize.py").write_text("import builtins\nbuiltins.mine = 'loaded'\n")
    monkeypatch.setenv("PYTHONPATH", str(in_folder))
    elsewhere = sys._base_executable  # the interpreter below a virtual environment, without its packages
    program = "import hermetic; print(mine, hermetic.__version__)"

    written = []
    with pytest.raises(DoctorError, match="no Python of it imported torch"):
        diagnose([elsewhere, "-c", program], timeout=60, on_output=written.append)

    assert b"".join(written).split() == [b"loaded", hermetic.__version__.encode()]


def test_the_command_line_prints_json_alone_and_says_what_is_wrong_with_exit_code_2():
    asked = CliRunner().invoke(app, ["doctor", "--json", "--timeout", "60", sys.executable, "-c", "print('mine')"])

    assert asked.exit_code == 2
    assert asked.stdout == ""
    assert "mine" in asked.stderr
    assert "HE720" in asked.stderr


# reading a call


def call(lengths, **changes):
    batch = hermetic.collate([{"input_ids": list(range(3, 3 + length))} for length in lengths])
    return {**batch.model_inputs(), **changes}


@given(st.lists(st.integers(1, 6), min_size=1, max_size=6))
def test_every_way_of_saying_where_documents_start_is_read_alike(lengths):
    ids = np.repeat(np.arange(len(lengths)), lengths)
    square = torch.tensor((ids[:, None] == ids[None, :]) & (np.arange(len(ids))[:, None] >= np.arange(len(ids))))
    positions = torch.tensor(np.concatenate([np.arange(length) for length in lengths]))[None]
    ways = {
        "position_ids": {"position_ids": positions},
        "document_ids": {"document_ids": torch.tensor(ids)[None]},
        "cu_seq_lens_q": {"cu_seq_lens_q": torch.tensor([0, *np.cumsum(lengths)], dtype=torch.int32)},
        "attention_mask": {"attention_mask": square[None, None]},
        "numbers": {"attention_mask": torch.tensor(ids + 1)[None]},
    }
    for name, arguments in ways.items():
        found = documents_of_call(arguments, (1, len(ids)))
        assert found.lengths == tuple(lengths), name
        assert found.seams.sum() == len(lengths) - 1


def test_arguments_that_contradict_each_other_are_an_error():
    edges = torch.tensor([0, 2, 5], dtype=torch.int32)
    with pytest.raises(BoundariesError):
        documents_of_call({"cu_seq_lens_q": edges, "document_ids": torch.tensor([[0, 0, 0, 1, 1]])}, (1, 5))


def test_token_ids_are_the_input_ids_or_the_first_integers_that_are_no_mask_or_label():
    ids = torch.tensor([[1, 2, 3]])
    assert token_ids((), {"attention_mask": ids + 9, "input_ids": ids}) is ids
    assert token_ids((ids,), {"labels": ids + 9}) is ids
    assert token_ids((), {"labels": ids, "tokens": ids + 1}) is not ids
    assert token_ids((), {"input_ids": ids, "inputs_embeds": ids.float()}) is None
    assert token_ids((ids.float(),), {}) is None


def targets_of(lengths, labels, *, shifts=True, **more):
    arguments = call(lengths)
    ids = arguments["input_ids"].numpy()
    documents = documents_of_call(arguments, ids.shape)
    return check_targets({"labels": labels, **more}, ids, documents, shifts=shifts)


def test_a_label_on_a_documents_first_token_is_a_target_across_the_seam():
    labels = call([3, 2, 4])["input_ids"]
    masked = call([3, 2, 4])["labels"]

    (found,) = targets_of([3, 2, 4], labels).findings
    assert (found.code, found.size, found.unit) == ("HM401", 2.0, "of 2 seams")
    assert targets_of([3, 2, 4], masked).findings == ()
    assert targets_of([3, 2, 4], masked).notes[0] == "6 supervised tokens"


def test_labels_that_are_shifted_already_are_told_by_their_values():
    ids = call([3, 2, 4])["input_ids"]
    shifted = torch.roll(ids, -1, dims=1)

    assert [finding.code for finding in targets_of([3, 2, 4], shifted).findings] == ["HM403"]
    assert [finding.code for finding in targets_of([3, 2, 4], shifted, shifts=False).findings] == ["HM401"]
    shifted[0, [2, 4]] = -100
    assert targets_of([3, 2, 4], shifted, shifts=False).findings == ()


def test_a_document_without_a_target_and_the_divisor_of_the_loss_are_told():
    labels = call([3, 2, 4])["labels"].clone()
    labels[0, 3:5] = -100

    notes = targets_of([3, 2, 4], labels, num_items_in_batch=torch.tensor(11)).notes

    assert notes[:2] == ("5 supervised tokens", "1 of 3 documents has no supervised token and teaches nothing")
    assert "num_items_in_batch = 11" in notes[2]


@pytest.mark.parametrize(
    ("rows", "codes", "noted"),
    [
        ([[5, 6, 2, 7], [8, 9, 5, 2]], ["HM602"], False),  # a full row that breaks off, with an end inside
        ([[5, 6, 2, 7, 2], [8, 9, 5, 2, 2]], [], True),  # each row ends a text: turns
        ([[5, 6, 7, 2, 2], [5, 6, 2, 2, 2]], [], False),  # padded with the token that ends a text
        ([[1, 5, 6, 2], [1, 7, 1, 2]], ["HM602"], False),  # a begin inside
        ([[5, 6, 7, 8], [5, 6, 7, 2]], [], False),
    ],
)
def test_rows_without_boundaries_are_told_from_rows_of_one_document(rows, codes, noted):
    ids = np.array(rows)

    found = check_text(ids, np.ones(ids.shape, dtype=bool), begin=frozenset({1}), end=frozenset({2}))

    assert [finding.code for finding in found.findings] == codes
    assert bool(found.notes) == noted


def test_a_diagnosis_comes_back_from_json_as_it_went():
    torch.manual_seed(0)

    class Adds(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding, self.head = torch.nn.Embedding(16, 4), torch.nn.Linear(4, 16)

        def forward(self, input_ids, position_ids):
            return self.head(self.embedding(input_ids + 0 * position_ids).cumsum(dim=1))

    arguments = call([3, 2, 4])
    model = Adds()
    found = examine(model, (), {name: arguments[name] for name in ("input_ids", "position_ids")})

    assert (found.verdict, found.documents, found.sound) == ("leak", (3, 2, 4), False)
    assert Diagnosis.from_dict(json.loads(json.dumps(found.to_dict()))).to_dict() == found.to_dict()
    assert named_arguments(model, (1, 2), {}) == {"input_ids": 1, "position_ids": 2}


def test_nothing_is_left_of_the_watch_in_this_process():
    assert "HERMETIC_DOCTOR" not in os.environ
    assert torch.nn.Module.__call__.__module__ == "torch.nn.modules.module"
