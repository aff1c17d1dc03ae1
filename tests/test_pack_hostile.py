"""What a pack survives beside death: places that cannot be taken, notes that are damaged, helpers that are killed."""

import errno
import json
import os
import signal
from pathlib import Path

import pytest
from data_helpers import DEMO_TOKENIZER, everything_under, tokenizer_folder, write_jsonl

import hermetic.data.run.account
import hermetic.data.run.tokenize
from hermetic.data import export_packed, load_tokenizer, open_packed, pack_sources, tokenizer_fingerprint
from hermetic.data.run import engines
from hermetic.data.sources import sha256_of_file
from hermetic.errors import HermeticError, PackedDataError, PackRunError
from hermetic.files import write_text

TEXTS = [{"text": f"document {number} " + "word " * (number % 23)} for number in range(120)]


def pack(source, out, **options):
    settings = {"capacity": 64, "part_bytes": 1500, "shard_tokens": 1024, "tokenizer": DEMO_TOKENIZER} | options
    return pack_sources(source, out, **settings)


@pytest.fixture
def source(tmp_path):
    return write_jsonl(tmp_path / "texts.jsonl", TEXTS)


def hashes(folder):
    return {path.name: sha256_of_file(path) for path in sorted(folder.iterdir())}


class Stopped(Exception):  # noqa: N818 - it stands for a death
    """Ends a run with all its rows written."""


def stopped(source, out, monkeypatch):
    """The work folder of a run that ended after its last row and before its manifest."""

    def stop(*_arguments):
        raise Stopped

    with monkeypatch.context() as patch:
        patch.setattr(hermetic.data.run.account, "write_losses", stop)
        with pytest.raises(Stopped):
            pack(source, out)
    return out.with_name(f".{out.name}.packing")


# where the folder lies


@pytest.mark.parametrize("existing", [True, False])
def test_a_link_is_followed_to_the_folder_that_it_names_and_stays_a_link(tmp_path, source, existing):
    place, link = tmp_path / "disk" / "rows", tmp_path / "link"
    if existing:
        place.mkdir(parents=True)
    link.symlink_to(place)

    pack(source, link)
    export_link = tmp_path / "export"
    export_link.symlink_to(tmp_path / "disk" / "arrays")
    export_packed(link, export_link, to="tokens")

    assert link.is_symlink()
    assert export_link.is_symlink()
    assert open_packed(place).manifest == open_packed(link).manifest
    assert sorted(path.name for path in (tmp_path / "disk").iterdir()) == ["arrays", "rows"]


@pytest.mark.parametrize("name", [".", "./", "../here", ""])
def test_the_working_folder_is_refused_before_anything_is_read(tmp_path, monkeypatch, name):
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    with pytest.raises(PackedDataError, match=r"is the working folder, .*expected a folder in it, such as .*packed"):
        pack("no such source", name)
    assert everything_under(tmp_path) == ["here"]


def test_the_root_of_a_file_system_is_refused_before_anything_is_read(tmp_path, monkeypatch):
    volume = tmp_path / "volume"
    volume.mkdir()
    monkeypatch.setattr(os.path, "ismount", lambda path: Path(path) == volume)
    with pytest.raises(PackedDataError, match=r"volume is the root of a file system, .*such as .*volume/packed"):
        pack("no such source", volume)
    assert everything_under(tmp_path) == ["volume"]


def test_a_place_in_which_no_folder_can_be_made_is_a_typed_error(tmp_path, source):
    with pytest.raises(PackRunError, match=r"\.rows\.packing, in which a run works, cannot be made: .*choose another"):
        pack(source, source / "rows")
    assert everything_under(tmp_path) == ["texts.jsonl"]


def test_a_full_disk_that_left_nothing_finished_does_not_claim_to_have_kept_something(tmp_path, source, monkeypatch):
    def full(_descriptor):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(PackRunError, match="run the same command again; nothing was finished"):
        pack(source, tmp_path / "rows")
    assert everything_under(tmp_path) == ["texts.jsonl"]


# what is kept between runs


DAMAGE = {
    "empty": lambda _: b"",
    "torn": lambda content: content[: len(content) // 2],
    "of NUL bytes": lambda content: bytes(len(content)),
    "a bit": lambda content: content[:100] + bytes([content[100] ^ 1]) + content[101:],
    "another object": lambda _: b"{}",
    "not text": lambda _: b"\xff\xfe",
}


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("notes", ["parts", "shards"])
def test_a_note_that_was_damaged_in_between_is_made_again_with_what_it_is_about(
    tmp_path, source, monkeypatch, notes, damage
):
    pack(source, tmp_path / "whole")
    work = stopped(source, tmp_path / "rows", monkeypatch)
    paths = sorted((work / notes).glob("*.json"))
    for path in paths:
        path.write_bytes(DAMAGE[damage](path.read_bytes()))

    pack(source, tmp_path / "rows")

    assert paths
    assert hashes(tmp_path / "rows") == hashes(tmp_path / "whole")


def test_parts_and_files_of_rows_that_were_removed_in_between_are_made_again(tmp_path, source, monkeypatch):
    pack(source, tmp_path / "whole")
    work = stopped(source, tmp_path / "rows", monkeypatch)
    removed = [*sorted((work / "parts").glob("*.part"))[::2], *sorted((work / "rows").glob("*.arrow"))[::2]]
    for path in removed:
        path.unlink()

    pack(source, tmp_path / "rows")

    assert len(removed) > 3
    assert hashes(tmp_path / "rows") == hashes(tmp_path / "whole")


def test_a_damaged_note_that_all_is_finished_does_not_hide_what_is_there(tmp_path, source, monkeypatch):
    work = stopped(source, tmp_path / "rows", monkeypatch)
    for path in (work / "rows").iterdir():
        path.unlink()
    (work / "rows").rmdir()
    write_text(work / "finished.json", '{"run": "of someone"}')

    assert pack(source, tmp_path / "rows").documents_placed == len(TEXTS)


def test_what_a_killed_process_was_writing_takes_no_room_in_the_next_run(tmp_path, source, monkeypatch):
    work = stopped(source, tmp_path / "rows", monkeypatch)
    halves = [work / name / ".half.0123456789ab.tmp" for name in ("spool", "parts", "shards")]
    for half in halves:
        half.write_bytes(b"half")

    assert stopped(source, tmp_path / "rows", monkeypatch) == work

    assert not any(half.exists() for half in halves)


# the tokenizer


def with_two_words_exchanged(tokenizer):
    path = tokenizer / "tokenizer.json"
    values = json.loads(path.read_text())
    vocabulary = values["model"]["vocab"]
    first, second = sorted(vocabulary, key=vocabulary.get)[300:302]
    vocabulary[first], vocabulary[second] = vocabulary[second], vocabulary[first]
    path.write_text(json.dumps(values))


def test_a_tokenizer_that_changes_during_the_run_is_an_error_and_never_under_the_name_of_the_other(
    tmp_path, source, monkeypatch
):
    tokenizer = tokenizer_folder(tmp_path / "tokenizer")
    real = hermetic.data.run.tokenize.load_tokenizer

    def changed(name, **options):
        with_two_words_exchanged(tokenizer)
        return real(name, **options)

    with monkeypatch.context() as patch:
        patch.setattr(hermetic.data.run.tokenize, "load_tokenizer", changed)
        with pytest.raises(PackRunError, match="tokenizer changed during the run: its fingerprint was"):
            pack(source, tmp_path / "rows", tokenizer=tokenizer)

    manifest = pack(source, tmp_path / "rows", tokenizer=tokenizer)
    assert manifest.tokenizer_fingerprint == tokenizer_fingerprint(load_tokenizer(tokenizer))


def test_a_tokenizer_that_changed_between_two_runs_tokenizes_everything_anew(tmp_path, source, monkeypatch):
    tokenizer = tokenizer_folder(tmp_path / "tokenizer")
    stopped_with = {"tokenizer": tokenizer}
    with monkeypatch.context() as patch:
        patch.setattr(hermetic.data.run.account, "write_losses", lambda *_: (_ for _ in ()).throw(Stopped))
        with pytest.raises(Stopped):
            pack(source, tmp_path / "rows", **stopped_with)
    with_two_words_exchanged(tokenizer)

    pack(source, tmp_path / "rows", **stopped_with)
    pack(source, tmp_path / "fresh", **stopped_with)

    assert hashes(tmp_path / "rows") == hashes(tmp_path / "fresh")


def test_tokenizers_that_read_special_tokens_differently_have_different_fingerprints(tmp_path):
    tokenizers = [
        load_tokenizer(tokenizer_folder(tmp_path / str(split), split_special_tokens=split)) for split in (False, True)
    ]
    assert tokenizer_fingerprint(tokenizers[0]) == tokenizer_fingerprint(load_tokenizer(DEMO_TOKENIZER))
    assert len({tokenizer_fingerprint(tokenizer) for tokenizer in tokenizers}) == 2


# processes that help


def dies(number):
    if number == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return number


def interrupted(number):
    os.kill(os.getpid(), signal.SIGINT)
    return number


def test_a_worker_that_is_killed_is_a_typed_error_with_the_ways_out():
    with pytest.raises(PackRunError, match=r"one of 2 worker processes was killed.*run again, perhaps with fewer"):
        list(engines.in_processes(dies, range(6), workers=2))


def test_an_interrupt_of_the_terminal_is_answered_by_the_run_and_not_by_its_workers():
    assert list(engines.in_processes(interrupted, range(3), workers=1)) == [0, 1, 2]


# odd sizes


@pytest.mark.parametrize("policy", ["split", "truncate"])
def test_rows_of_a_single_token_hold_every_document_and_train_nothing(tmp_path, policy):
    source = write_jsonl(tmp_path / "ids.jsonl", [{"input_ids": [5, 6, 7]}, {"input_ids": [8]}])

    manifest = pack(source, tmp_path / "rows", capacity=1, on_overflow=policy)

    tokens = sorted(token for row in open_packed(tmp_path / "rows").dataset["input_ids"] for token in row)
    assert tokens == {"split": [5, 6, 7, 8], "truncate": [5, 8]}[policy]
    assert (manifest.rows, manifest.supervised_tokens, manifest.utilization) == (len(tokens), 0, 1.0)


@pytest.mark.slow
def test_more_workers_than_parts_make_the_same_bytes(tmp_path, source):
    pack(source, tmp_path / "one", part_bytes=4000)
    pack(source, tmp_path / "many", part_bytes=4000, workers=9)

    assert hashes(tmp_path / "one") == hashes(tmp_path / "many")


@pytest.mark.parametrize("content", ["", "\n", "\n  \n\t\n"])
def test_a_file_without_a_record_is_named_wherever_it_stands_among_the_sources(tmp_path, source, content):
    empty = tmp_path / "empty.jsonl"
    empty.write_text(content)
    for sources in ([empty], [source, empty], [str(tmp_path / "*.jsonl")]):
        with pytest.raises(HermeticError, match=r"empty\.jsonl is empty, expected at least one record"):
            pack(sources, tmp_path / "rows", on_bad_record="skip")
    assert everything_under(tmp_path) == ["empty.jsonl", "texts.jsonl"]
