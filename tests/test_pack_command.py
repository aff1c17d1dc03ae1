"""`hermetic pack` in a process of its own: every kind of source, odd names, and a hand on Ctrl-C."""

import gzip
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from data_helpers import DEMO_TOKENIZER, everything_under, write_jsonl

from hermetic.data import open_packed, pack_sources
from hermetic.data.sources import sha256_of_file

MAIN = (sys.executable, "-c", "from hermetic.cli import main; main()")
ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}


def started(folder, *arguments, **options):
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    command = [*MAIN, *map(str, arguments)]
    return subprocess.Popen(command, cwd=folder, env=ENVIRONMENT, start_new_session=True, **(pipes | options))


def run(folder, *arguments, piped=b""):
    process = started(folder, *arguments)
    out, error = process.communicate(piped, timeout=300)
    return process.returncode, out.decode(), error.decode()


def texts(first, count):
    return [{"text": f"document {number} says " + "word " * (number % 7)} for number in range(first, first + count)]


def lines(records):
    return "".join(f"{json.dumps(record)}\n" for record in records).encode()


def hashes(folder):
    return {path.name: sha256_of_file(path) for path in sorted(folder.iterdir())}


def every_kind_of_source(folder):
    """Ten records of each kind, and the arguments that name them."""
    import datasets

    folder.mkdir()
    (folder / "über 1.jsonl").write_bytes(lines(texts(0, 5)))
    (folder / "über 2.jsonl").write_bytes(lines(texts(5, 5)))
    (folder / "gz é.jsonl.gz").write_bytes(gzip.compress(lines(texts(10, 10))))
    with pa.output_stream(str(folder / "zst.json.zst"), compression="zstd") as stream:
        stream.write(json.dumps(texts(20, 10)).encode())
    pq.write_table(pa.Table.from_pylist(texts(30, 10)), folder / "rows.parquet")
    table = pa.Table.from_pylist(texts(40, 10))
    with pa.ipc.new_file(folder / "rows.arrow", table.schema) as writer:
        writer.write_table(table)
    datasets.Dataset.from_list(texts(50, 10)).save_to_disk(folder / "a saved folder")
    pairs = [{"prompt": f"question {number}", "chosen": "yes", "rejected": "no"} for number in range(60, 70)]
    write_jsonl(folder / "pairs.jsonl", pairs)
    names = ["über *.jsonl", "gz é.jsonl.gz@2", "zst.json.zst", "rows.parquet@0.5", "rows.arrow", "a saved folder"]
    return [*(f"sources of all/{name}" for name in names), "sources of all/pairs.jsonl@1.5", "-"]


@pytest.mark.slow
def test_every_kind_of_source_goes_into_one_folder_as_often_as_its_weight_says(tmp_path):
    here = tmp_path / "hier & da"
    here.mkdir()
    sources = every_kind_of_source(here / "sources of all")
    options = ["--tokenizer", DEMO_TOKENIZER, "--capacity", 96, "--workers", 2, "--json"]

    code, out, error = run(here, "pack", *sources, *options, "--out", "gepäckt/rows/", piped=lines(texts(70, 10)))

    assert (code, error) == (0, "")
    manifest = json.loads(out)
    packed = open_packed(here / "gepäckt" / "rows")
    rows = packed.dataset[:]
    documents = Counter(
        (source, number)
        for sources_of_row, numbers in zip(rows["source_ids"], rows["record_numbers"], strict=True)
        for source, number in zip(sources_of_row, numbers, strict=True)
    )
    taken = [sum(count for (source, _), count in documents.items() if source == file) for file in range(9)]
    names = [file["name"] for file in manifest["source_files"]]
    assert names == [
        *("über 1.jsonl", "über 2.jsonl", "gz é.jsonl.gz", "zst.json.zst", "rows.parquet", "rows.arrow"),
        *("a saved folder", "pairs.jsonl", "<stdin>"),
    ]
    assert taken == [5, 5, 20, 10, 5, 10, 10, 2 * 15, 10]
    assert (manifest["records_read"], manifest["preference_pairs"]) == (80, 10)
    written = [f"rows/{name}" for name in (*manifest["files"], "manifest.json")]
    assert everything_under(here / "gepäckt") == ["rows", *sorted(written)]
    assert str(tmp_path) not in out

    code, out, error = run(here, "inspect", "gepäckt/rows", "--check", "--tokenizer", DEMO_TOKENIZER)
    assert (code, out.splitlines()[-1], error) == (0, "sound", "")
    code, out, error = run(here, "export", "gepäckt/rows", "--to", "tokens", "--out", "gepäckt/als Felder/")
    assert (code, error) == (0, "")
    assert (here / "gepäckt" / "als Felder" / "export.json").is_file()


def many_files(folder):
    folder.mkdir()
    for number in range(24):
        write_jsonl(folder / f"{number:02d}.jsonl", texts(number * 1500, 1500))
    return folder / "*.jsonl"


def until_parts_are_finished(work, process, count):
    while len(list(work.glob("parts/*.json"))) < count:
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)


@pytest.mark.slow
@pytest.mark.parametrize("to", ["the terminal", "the run"])
def test_an_interrupted_run_ends_with_130_leaves_no_process_behind_and_goes_on(tmp_path, to):
    source = many_files(tmp_path / "sources")
    options = ["--tokenizer", DEMO_TOKENIZER, "--capacity", 512, "--json"]
    process = started(tmp_path, "pack", source, *options, "--workers", 2, "--out", "rows")
    until_parts_are_finished(tmp_path / ".rows.packing", process, 2)
    helpers = psutil.Process(process.pid).children(recursive=True)

    (os.killpg if to == "the terminal" else os.kill)(process.pid, signal.SIGINT)
    out, error = process.communicate(timeout=120)

    assert (process.returncode, out) == (130, b"")
    assert b"Traceback" not in error
    psutil.wait_procs(helpers, timeout=10)
    assert [helper for helper in helpers if helper.is_running() and helper.status() != psutil.STATUS_ZOMBIE] == []
    finished = {path.name: path.stat().st_mtime_ns for path in (tmp_path / ".rows.packing").glob("parts/*.part")}
    assert 2 <= len(finished) < 24

    assert run(tmp_path, "pack", source, *options, "--out", "rows")[0] == 0
    pack_sources(str(source), tmp_path / "whole", tokenizer=DEMO_TOKENIZER, capacity=512)
    assert hashes(tmp_path / "rows") == hashes(tmp_path / "whole")


@pytest.mark.slow
def test_of_two_runs_into_one_folder_the_second_is_refused_whatever_it_calls_the_folder(tmp_path):
    source = many_files(tmp_path / "sources")
    (tmp_path / "link").symlink_to("rows")
    options = ["--tokenizer", DEMO_TOKENIZER, "--capacity", 512, "--json"]
    first = started(tmp_path, "pack", source, *options, "--workers", 1, "--out", "rows")
    until_parts_are_finished(tmp_path / ".rows.packing", first, 1)
    os.kill(first.pid, signal.SIGSTOP)  # or it might be done before the second has begun

    try:
        code, out, error = run(tmp_path, "pack", source, *options, "--out", tmp_path / "link")
    finally:
        os.kill(first.pid, signal.SIGCONT)
        first.communicate(timeout=200)

    assert (code, out) == (2, "")
    assert f"HE605: another run (process {first.pid}) is packing into" in error
    assert first.returncode == 0
    assert len(open_packed(tmp_path / "rows")) > 0


@pytest.mark.slow
def test_a_killed_worker_ends_the_run_with_2_and_a_message_and_the_next_one_goes_on(tmp_path):
    source = many_files(tmp_path / "sources")
    options = ["--tokenizer", DEMO_TOKENIZER, "--capacity", 512, "--json"]
    process = started(tmp_path, "pack", source, *options, "--workers", 2, "--out", "rows")
    until_parts_are_finished(tmp_path / ".rows.packing", process, 2)
    os.kill(process.pid, signal.SIGSTOP)  # it hands out no more parts until one that had to make them is gone
    workers = [child for child in psutil.Process(process.pid).children() if "spawn_main" in " ".join(child.cmdline())]

    workers[0].kill()
    os.kill(process.pid, signal.SIGCONT)
    out, error = process.communicate(timeout=120)

    assert (process.returncode, out) == (2, b"")
    assert error.startswith(b"HE605: one of 2 worker processes was killed")
    assert run(tmp_path, "pack", source, *options, "--out", "rows")[0] == 0
