"""The fixture ``leak_probe`` fails a test on a leak, passes it otherwise, and costs nothing before it is used."""

import subprocess
import sys

import hermetic.seal  # noqa: F401 - PyTorch registers operators once a process, and pytester forgets what it imported

pytest_plugins = ["pytester"]

SUBJECTS = '''
import torch
from torch import nn

class Tiny(nn.Module):
    """Each token sees itself, and if told to, the mean of its row."""

    def __init__(self, leaks):
        super().__init__()
        self.embedding, self.head, self.leaks = nn.Embedding(32, 8), nn.Linear(8, 32), leaks

    def forward(self, input_ids, position_ids=None, attention_mask=None):
        hidden = self.embedding(input_ids)
        return self.head(hidden + hidden.mean(dim=1, keepdim=True) if self.leaks else hidden)

def flatten(documents):
    ids = [torch.tensor(document["input_ids"]) for document in documents]
    positions = [torch.arange(len(part)) for part in ids]
    return {"input_ids": torch.cat(ids)[None], "position_ids": torch.cat(positions)[None]}

def pad(documents):
    ids = [torch.tensor(document["input_ids"]) for document in documents]
    ones = [torch.ones_like(part) for part in ids]
    rows = nn.utils.rnn.pad_sequence
    return {"input_ids": rows(ids, batch_first=True), "attention_mask": rows(ones, batch_first=True)}
'''


def outcomes(pytester, body):
    """Run one test file with the plugin."""
    pytester.makepyfile(subjects=SUBJECTS)
    pytester.makepyfile("from subjects import *\n\n" + body)
    return pytester.runpytest_inprocess("-p", "hermetic.testing.plugin", "-W", "error", "-p", "no:cacheprovider")


def test_a_leak_fails_the_test_with_the_summary(pytester):
    result = outcomes(
        pytester,
        """
def test_model(leak_probe):
    leak_probe(Tiny(leaks=True))

def test_collator(leak_probe):
    leak_probe(Tiny(leaks=True), flatten)

def test_batch(leak_probe):
    leak_probe(Tiny(leaks=True), batch=flatten([{"input_ids": [5, 6]}, {"input_ids": [7, 8, 9]}]))
""",
    )
    result.assert_outcomes(failed=3)
    result.stdout.fnmatch_lines(["*LeakError: Tiny: verdict 'leak'. HM1*"])


def test_a_sound_model_passes_and_its_report_can_be_asked_for_more(pytester):
    result = outcomes(
        pytester,
        """
DOCUMENTS = [{"input_ids": [5, 6]}, {"input_ids": [7, 8, 9]}]

def test_model(leak_probe):
    assert leak_probe(Tiny(leaks=False)).verdict == "sealed"

def test_collator(leak_probe):
    assert leak_probe(Tiny(leaks=False), flatten).lengths == (11, 13, 6, 4)

def test_documents(leak_probe):
    assert leak_probe(Tiny(leaks=False), documents=DOCUMENTS).lengths == (2, 3)
    assert leak_probe(Tiny(leaks=False), flatten, documents=DOCUMENTS).lengths == (2, 3)

def test_batch(leak_probe):
    assert leak_probe(Tiny(leaks=False), batch=flatten(DOCUMENTS)).lengths == (2, 3)
""",
    )
    result.assert_outcomes(passed=4)


def test_a_test_of_packing_that_packs_nothing_does_not_pass(pytester):
    result = outcomes(
        pytester,
        """
def test_padded(leak_probe):
    leak_probe(Tiny(leaks=False), pad)

def test_both(leak_probe):
    leak_probe(Tiny(leaks=False), flatten, batch={})
""",
    )
    result.assert_outcomes(failed=2)
    result.stdout.fnmatch_lines(["*NotPackedError: not packed: each of 4 rows holds one document*"])
    result.stdout.fnmatch_lines(["*ProbeError: a batch came together with a collator or documents*"])


def test_the_plugin_imports_nothing_heavy():
    listed = "import sys; print(sorted({'torch', 'numpy', 'transformers'} & sys.modules.keys()))"
    found = [
        subprocess.run([sys.executable, "-c", f"{first}; {listed}"], capture_output=True, text=True, check=True).stdout
        for first in ("import hermetic.testing.plugin", "import torch")
    ]
    assert found[0].strip() == "[]"
    assert "torch" in found[1]


def test_the_plugin_is_announced_to_pytest():
    from pathlib import Path

    project = (Path(__file__).parents[1] / "pyproject.toml").read_text(encoding="utf-8")
    section = project.split("[project.entry-points.pytest11]")[1].split("[")[0]
    assert '"hermetic.testing.plugin" = "hermetic.testing.plugin"' in section


def test_a_batch_that_is_no_mapping_of_arguments_is_refused(pytester):
    result = outcomes(
        pytester,
        """
import pytest
from hermetic.errors import ProbeError

@pytest.mark.parametrize("batch", [torch.zeros(1, 3), [1, 2], "ids"])
def test_batch(leak_probe, batch):
    for options in ({"batch": batch}, {"collator": lambda _: batch}):
        with pytest.raises(ProbeError, match="the batch is a .*; expected a mapping of the model's arguments"):
            leak_probe(Tiny(leaks=False), **options)
""",
    )
    result.assert_outcomes(passed=3)
