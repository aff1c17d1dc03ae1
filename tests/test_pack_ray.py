"""The engine of a cluster writes the bytes of any other; here on a Ray that is started for the test."""

import os
import sys
from pathlib import Path

import pytest
from data_helpers import DEMO_TOKENIZER, write_jsonl

import hermetic
from hermetic.data import pack_sources
from hermetic.data.run.ray_engine import in_cluster
from hermetic.data.sources import sha256_of_file
from hermetic.errors import MissingDependencyError, RecordError

pytestmark = [
    pytest.mark.slow,
    # Ray leaves sockets to its workers when it is shut down, and warns of its own future defaults
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::FutureWarning", "ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

TEXTS = [{"text": f"document {number} " + "word " * (number % 23)} for number in range(120)]


@pytest.fixture(scope="module")
def cluster():
    ray = pytest.importorskip("ray", reason="the extra ray brings it")
    root, here = Path(hermetic.__file__).parents[1], Path(__file__).parent
    ray.init(
        num_cpus=2,
        include_dashboard=False,
        log_to_driver=False,
        runtime_env={"env_vars": {"PYTHONPATH": f"{root}{os.pathsep}{here}"}},
    )
    yield
    ray.shutdown()


def pack(source, out, **options):
    settings = {"capacity": 64, "part_bytes": 1500, "shard_tokens": 1024, "tokenizer": DEMO_TOKENIZER} | options
    return pack_sources(source, out, **settings)


def hashes(folder):
    return {path.name: sha256_of_file(path) for path in sorted(folder.iterdir())}


@pytest.mark.usefixtures("cluster")
def test_ray_writes_the_same_bytes_as_this_process(tmp_path):
    source = write_jsonl(tmp_path / "texts.jsonl", TEXTS)

    pack(source, tmp_path / "local")
    pack(source, tmp_path / "ray", engine="ray")

    assert sum(name.endswith(".arrow") for name in hashes(tmp_path / "ray")) > 1
    assert hashes(tmp_path / "ray") == hashes(tmp_path / "local")


@pytest.mark.usefixtures("cluster")
def test_an_error_of_a_task_on_the_cluster_is_the_error_of_that_task(tmp_path):
    source = write_jsonl(tmp_path / "texts.jsonl", [*TEXTS, {"text": ""}])

    with pytest.raises(RecordError, match=r"texts\.jsonl:121"):
        pack(source, tmp_path / "ray", engine="ray")
    manifest = pack(source, tmp_path / "ray", engine="ray", on_bad_record="skip")

    assert manifest.records_skipped == {"empty": 1}


@pytest.mark.usefixtures("cluster")
def test_results_come_in_the_order_of_the_tasks():
    assert list(in_cluster(abs, list(range(-20, 0)))) == list(range(20, 0, -1))


def test_a_missing_ray_names_the_extra_that_brings_it(tmp_path, monkeypatch):
    source = write_jsonl(tmp_path / "texts.jsonl", TEXTS)
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.setitem(sys.modules, "ray.data", None)

    with pytest.raises(MissingDependencyError, match=r"pip install 'hermetic\[ray\]'"):
        pack(source, tmp_path / "ray", engine="ray")
