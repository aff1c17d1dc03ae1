"""A run that is killed at any moment goes on where it was, and ends in the same bytes."""

import errno
import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from datetime import date

import psutil
import pytest
from data_helpers import CHAT, DEMO_TOKENIZER, PLAIN_TEMPLATE, tokenizer_folder, write_jsonl

import hermetic.data.run.account
import hermetic.data.run.work
from hermetic.data import load_tokenizer, open_packed, pack_sources
from hermetic.data.sources import sha256_of_file
from hermetic.errors import HermeticError, PackedDataError, PackRunError, RecordError

TEXTS = [{"text": f"document {number} " + "word " * (number % 23)} for number in range(120)]


def source_in(folder):
    return write_jsonl(folder / "texts.jsonl", TEXTS)


def pack(source, out, **options):
    settings = {"capacity": 64, "part_bytes": 1500, "shard_tokens": 1024, "tokenizer": DEMO_TOKENIZER} | options
    return pack_sources(source, out, **settings)


def hashes(folder):
    return {path.name: sha256_of_file(path) for path in sorted(folder.iterdir())}


def in_a_process_that_dies(work, monkeypatch, moment, module, name):
    """Run ``work`` in a forked process that is killed at the moment-th call of a function; say whether it was."""
    child = os.fork()
    if child == 0:
        calls = iter(range(moment - 1))
        original = getattr(module, name)

        def dying(*arguments, **options):
            if next(calls, None) is None:
                os.kill(os.getpid(), signal.SIGKILL)
            return original(*arguments, **options)

        monkeypatch.setattr(module, name, dying)
        try:
            work()
        finally:
            os._exit(0)
    _, status = os.waitpid(child, 0)
    return os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL


@pytest.fixture
def uninterrupted(tmp_path):
    pack(source_in(tmp_path), tmp_path / "whole")
    return hashes(tmp_path / "whole")


def test_a_run_has_many_parts_and_files_of_rows(tmp_path, uninterrupted):
    assert sum(name.endswith(".arrow") for name in uninterrupted) > 1
    assert len(open_packed(tmp_path / "whole")) > 10


@pytest.mark.parametrize("name", ["fsync", "replace"])
def test_killed_at_any_write_and_resumed_the_bytes_are_those_of_a_run_that_was_not(
    tmp_path, monkeypatch, uninterrupted, name
):
    source, deaths = tmp_path / "texts.jsonl", 0
    for moment in range(1, 1000):
        out = tmp_path / f"rows{moment}"
        if not in_a_process_that_dies(lambda out=out: pack(source, out), monkeypatch, moment, os, name):
            break
        deaths += 1
        assert not out.exists() or hashes(out) == uninterrupted
        if in_a_process_that_dies(lambda out=out: pack(source, out), monkeypatch, moment // 2 + 1, os, name):
            pack(source, out)
        assert hashes(out) == uninterrupted
        assert not out.with_name(f".{out.name}.packing").exists()

    assert deaths >= 15, "every part, every file of rows and every receipt is a write"


def test_what_was_tokenized_before_the_death_is_not_tokenized_again(tmp_path, monkeypatch):
    source, out = source_in(tmp_path), tmp_path / "rows"
    assert in_a_process_that_dies(lambda: pack(source, out), monkeypatch, 9, os, "fsync")
    finished = len(list((tmp_path / ".rows.packing" / "parts").glob("*.json")))
    told = []

    pack(source, out, on_progress=told.append)

    assert finished > 1
    resumed = next(progress for progress in told if progress.stage == "tokenizing")
    assert resumed.documents > 0
    assert resumed.done > 0


def test_a_part_that_was_damaged_in_between_is_made_again(tmp_path, monkeypatch, uninterrupted):
    source, out = source_in(tmp_path), tmp_path / "rows"
    assert in_a_process_that_dies(lambda: pack(source, out), monkeypatch, 12, os, "fsync")
    for part in (tmp_path / ".rows.packing" / "parts").glob("*.part"):
        content = bytearray(part.read_bytes())
        content[len(content) // 2] ^= 1
        part.write_bytes(content)

    pack(source, out)

    assert hashes(out) == uninterrupted


def test_a_source_that_changed_in_between_gives_what_a_fresh_run_gives(tmp_path, monkeypatch):
    source, out = source_in(tmp_path), tmp_path / "rows"
    assert in_a_process_that_dies(lambda: pack(source, out), monkeypatch, 12, os, "fsync")
    write_jsonl(source, TEXTS[::-1])

    pack(source, out)
    pack(source, tmp_path / "fresh")

    assert hashes(out) == hashes(tmp_path / "fresh")


def test_other_options_keep_the_tokens_and_make_the_rows_anew(tmp_path, monkeypatch):
    source, out = source_in(tmp_path), tmp_path / "rows"
    assert in_a_process_that_dies(lambda: pack(source, out), monkeypatch, 1, hermetic.data.run.account, "write_losses")
    told = []

    pack(source, out, capacity=96, seed=5, on_progress=told.append)
    pack(source, tmp_path / "fresh", capacity=96, seed=5)

    first = next(progress for progress in told if progress.stage == "tokenizing")
    assert first.done == first.total
    assert hashes(out) == hashes(tmp_path / "fresh")


@pytest.mark.usefixtures("uninterrupted")
def test_a_template_that_writes_no_date_leaves_none_in_the_manifest(tmp_path):
    assert open_packed(tmp_path / "whole").manifest.template_date is None


def test_the_bytes_do_not_depend_on_the_workers(tmp_path, uninterrupted):
    pack(tmp_path / "texts.jsonl", tmp_path / "rows", workers=2)

    assert hashes(tmp_path / "rows") == uninterrupted


@pytest.mark.parametrize("part_bytes", [200, 10**6])
def test_the_bytes_do_not_depend_on_how_the_source_was_cut_into_parts(tmp_path, uninterrupted, part_bytes):
    pack(tmp_path / "texts.jsonl", tmp_path / "rows", part_bytes=part_bytes)

    ours = hashes(tmp_path / "rows")
    assert {name for name in ours if ours[name] != uninterrupted[name]} <= {"state.json", "manifest.json"}
    assert open_packed(tmp_path / "rows").dataset[:] == open_packed(tmp_path / "whole").dataset[:]


def test_a_run_that_only_had_to_tidy_up_is_done(tmp_path, monkeypatch, uninterrupted):
    source, out = source_in(tmp_path), tmp_path / "rows"
    assert in_a_process_that_dies(lambda: pack(source, out), monkeypatch, 1, shutil, "rmtree")
    assert out.exists()
    assert (tmp_path / ".rows.packing").exists()

    manifest = pack(source, out)

    assert hashes(out) == uninterrupted
    assert manifest == open_packed(out).manifest
    assert not (tmp_path / ".rows.packing").exists()


def test_a_folder_that_another_run_finished_is_refused_to_one_with_other_options(tmp_path, monkeypatch):
    source, out = source_in(tmp_path), tmp_path / "rows"
    assert in_a_process_that_dies(lambda: pack(source, out), monkeypatch, 1, shutil, "rmtree")

    with pytest.raises(PackedDataError, match="is a folder that is not empty"):
        pack(source, out, capacity=96)


def test_a_second_run_into_the_same_folder_is_refused_and_named(tmp_path):
    source, out = source_in(tmp_path), tmp_path / "rows"
    work = tmp_path / ".rows.packing"
    work.mkdir()
    with (work / "lock").open("w") as lock:
        lock.write("4711")
        lock.flush()
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(PackRunError, match=r"another run \(process 4711\) is packing into .*rows"):
            pack(source, out)
    assert work.exists()

    pack(source, out)

    assert len(open_packed(out)) > 0


def error_of(work):
    try:
        work()
    except HermeticError as error:
        return error
    return None


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_at_any_write_is_a_typed_error_and_the_run_goes_on_when_there_is_room(
    tmp_path, monkeypatch, uninterrupted, code
):
    source, out = source_in(tmp_path), tmp_path / "rows"
    real, failures = os.fsync, 0
    for moment in range(1, 200, 4):
        left = iter(range(moment - 1))

        def full(descriptor, left=left):
            if next(left, None) is None:
                raise OSError(code, os.strerror(code))
            real(descriptor)

        monkeypatch.setattr(os, "fsync", full)
        said = error_of(lambda: pack(source, out))
        monkeypatch.setattr(os, "fsync", real)
        if said is None:
            break
        failures += 1
        assert isinstance(said, PackRunError)
        assert "no space is left to pack into" in str(said)
        assert "run the same command again" in str(said)
        assert not out.exists()

    assert failures > 2
    assert hashes(out) == uninterrupted


def test_a_bad_record_late_in_the_source_keeps_what_was_tokenized_for_the_run_that_skips_it(tmp_path):
    source = write_jsonl(tmp_path / "texts.jsonl", [*TEXTS, {"text": ""}])
    with pytest.raises(RecordError, match=r"texts\.jsonl:121"):
        pack(source, tmp_path / "rows")
    told = []

    manifest = pack(source, tmp_path / "rows", on_bad_record="skip", on_progress=told.append)

    first = next(progress for progress in told if progress.stage == "tokenizing")
    assert first.documents > 100
    assert manifest.records_skipped == {"empty": 1}
    assert (manifest.records_read, manifest.documents_read) == (121, 120)


def test_what_was_skipped_is_an_error_to_a_run_that_does_not_skip(tmp_path, monkeypatch):
    source, out = write_jsonl(tmp_path / "texts.jsonl", [*TEXTS[:60], {"text": ""}, *TEXTS[60:]]), tmp_path / "rows"
    run = lambda: pack(source, out, on_bad_record="skip")  # noqa: E731 - as the others have it
    assert in_a_process_that_dies(run, monkeypatch, 1, hermetic.data.run.account, "write_losses")

    with pytest.raises(RecordError, match=r"texts\.jsonl:61"):
        pack(source, out)


def test_a_template_that_writes_the_date_writes_that_of_the_first_start_however_late_the_run_ends(
    tmp_path, monkeypatch
):
    template = "{{ strftime_now('%d %b %Y') }}" + PLAIN_TEMPLATE
    tokenizer = tokenizer_folder(tmp_path / "tokenizer", chat_template=template)
    source, out = write_jsonl(tmp_path / "chats.jsonl", [CHAT] * 20), tmp_path / "rows"
    first, later = date(2026, 3, 31), date(2026, 4, 1)
    settings = {"tokenizer": tokenizer, "capacity": 128}
    monkeypatch.setattr(hermetic.data.run.work, "date", Day(first))
    run = lambda: pack(source, out, **settings)  # noqa: E731 - as the others have it
    assert in_a_process_that_dies(run, monkeypatch, 1, hermetic.data.run.account, "write_losses")

    monkeypatch.setattr(hermetic.data.run.work, "date", Day(later))
    manifest = pack(source, out, **settings)
    named = pack(source, tmp_path / "named", today=first, **settings)
    tomorrow = pack(source, tmp_path / "tomorrow", **settings)

    assert (manifest.template_date, tomorrow.template_date) == ("2026-03-31", "2026-04-01")
    assert hashes(out) == hashes(tmp_path / "named")
    assert named == manifest
    decode = load_tokenizer(tokenizer).decode
    row = open_packed(out).dataset[0]
    assert decode(row["input_ids"][: row["seq_lengths"][0]]).startswith("31 Mar 2026")


class Day:
    """A calendar that says that it is this day."""

    def __init__(self, day):
        self.today = lambda: day
        self.fromisoformat = date.fromisoformat


KILLED = """
import sys
from hermetic.data import pack_sources
if __name__ == "__main__":
    pack_sources(sys.argv[1], sys.argv[2], tokenizer=sys.argv[3], capacity=512, part_bytes=60_000, shard_tokens=20_000,
                 workers=int(sys.argv[4]))
"""


@pytest.mark.slow
def test_fifty_kills_at_random_moments_and_the_bytes_are_the_same(tmp_path):
    records = [{"text": f"document {number} " + "word " * (number % 301)} for number in range(6000)]
    source = write_jsonl(tmp_path / "texts.jsonl", records)
    script = tmp_path / "run.py"
    script.write_text(KILLED)
    command = [sys.executable, str(script), str(source)]
    subprocess.run([*command, str(tmp_path / "whole"), str(DEMO_TOKENIZER), "2"], check=True)
    expected = hashes(tmp_path / "whole")
    kills = finished = seed = 0
    while kills < 50:
        out = tmp_path / f"rows{finished}"
        seed += 1
        process = subprocess.Popen([*command, str(out), str(DEMO_TOKENIZER), str(seed % 2 + 1)], start_new_session=True)
        try:
            process.wait(timeout=0.3 + (seed * 0.618) % 1 * 7)
            assert process.returncode == 0
            assert hashes(out) == expected
            finished += 1
        except subprocess.TimeoutExpired:
            os.kill(process.pid, signal.SIGKILL)  # the process alone: its workers have to notice by themselves
            process.wait()
            kills += 1
            assert not out.exists() or hashes(out) == expected
    if not out.exists():
        pack_sources(source, out, tokenizer=DEMO_TOKENIZER, capacity=512, part_bytes=60_000, shard_tokens=20_000)
    assert hashes(out) == expected
    time.sleep(2)
    assert json.loads((out / "manifest.json").read_text())["documents_read"] == 6000
    assert not [process.pid for process in psutil.process_iter() if str(script) in process.cmdline()]
