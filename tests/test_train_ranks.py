"""Two processes train as one process does on twice the rows."""

import json
import os
import socket
import subprocess
import sys

import pytest
from train_helpers import largest_relative, model_folder, token_file

from hermetic.train import METRICS_NAME, TrainSettings, train

_SCRIPT = """
import json, sys
from hermetic.train import TrainSettings, train
model, data, out = sys.argv[1:]
metrics = train(model=model, data=data, out=out, capacity=64, settings=TrainSettings(learning_rate=1e-3))
print(json.dumps(metrics.losses))
"""


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def start(rank, port, *arguments):
    place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 2, "MASTER_PORT": port}
    environment = os.environ | {name: str(value) for name, value in place.items()}
    environment |= {"MASTER_ADDR": "127.0.0.1", "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    return subprocess.Popen(
        [sys.executable, "-c", _SCRIPT, *map(str, arguments)],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.slow
def test_two_ranks_take_the_losses_of_one_with_twice_the_rows(tmp_path):
    model = model_folder(tmp_path / "model")
    data = token_file(tmp_path / "documents.jsonl", [40, 24, 33, 31, 20, 44, 64, 7, 57, 50, 14, 58, 6, 61, 3])
    settings = TrainSettings(rows_per_batch=2, learning_rate=1e-3)
    alone = train(model=model, data=data, out=tmp_path / "one", capacity=64, settings=settings)
    port = free_port()
    ranks = [start(rank, port, model, data, tmp_path / "two") for rank in (0, 1)]
    outputs = [rank.communicate(timeout=300) for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], outputs
    losses = [json.loads(out) for out, _ in outputs]
    assert alone.rows == 8
    assert losses[0] == losses[1]
    assert largest_relative(losses[0], alone.losses) < 1e-5
    written = json.loads((tmp_path / "two" / METRICS_NAME).read_text())
    assert written["losses"] == losses[0]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["documents.jsonl", "model", "one", "two"]
