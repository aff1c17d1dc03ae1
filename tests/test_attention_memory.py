"""Memory of a sealed training step grows with the tokens of a row; that of a dense mask, with their square."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

MEASURE = """
import json, sys
from pathlib import Path
sys.path.insert(0, {tests!r})
import torch
from models import packed, tiny, token_loss, with_positions
import hermetic

torch.set_num_threads(1)

def peak():  # of this process alone: what getrusage says begins with the peak of its parent
    (line,) = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM")]
    return 1024 * int(line.split()[1])

def step(tokens):
    batch = packed([300] * (tokens // 300) + [tokens % 300])
    token_loss(model(**with_positions(batch)).logits, batch.labels[None]).backward()
    model.zero_grad()

model = tiny("llama", max_position_embeddings=32_768)
if {seal}:
    hermetic.seal(model)
step(600)  # what the first step loads and compiles is not what is measured
before = peak()
step({tokens})
print(json.dumps(peak() - before))
"""


def peak_of_a_step(tokens, *, seal):
    """Bytes that one step in a fresh process needs beyond a small step."""
    script = MEASURE.format(tests=str(Path(__file__).parent), tokens=tokens, seal=seal)
    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.slow
def test_the_memory_of_a_sealed_step_grows_with_the_tokens_at_2k_8k_and_32k():
    small, medium, large = (peak_of_a_step(tokens, seal=True) for tokens in (2_048, 8_192, 32_768))

    # Four times the tokens: four times the memory if it is linear, sixteen times if it is quadratic.
    assert medium < 6 * small
    assert large < 6 * medium
    assert large < 32_768**2  # a byte for each pair of tokens


@pytest.mark.slow
def test_the_same_measurement_sees_the_dense_mask_of_the_unsealed_model():
    small, large = (peak_of_a_step(tokens, seal=False) for tokens in (2_048, 8_192))

    assert large > 6 * small
