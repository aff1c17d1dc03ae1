"""The demo's conversations and tokenizer: the same bytes each time, learnable, and split without overlap."""

import hashlib
import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest
from data_helpers import DEMO_TOKENIZER, demo_tokenizer, everything_under

from hermetic.data import pack_sources, tokenize_file
from hermetic.demo.conversations import (
    _GREETINGS,
    _TOPICS,
    SYSTEM_PROMPT,
    _messages,
    _split_of,
    conversations,
    write_conversations,
)


@pytest.fixture(scope="module")
def train():
    return list(conversations(count=3000, seed=0))


@pytest.fixture(scope="module")
def heldout():
    return list(conversations(count=500, seed=1, split="heldout"))


@pytest.fixture(scope="module")
def lengths(tmp_path_factory):
    path = tmp_path_factory.mktemp("demo") / "train.jsonl"
    write_conversations(path, count=3000, seed=0)
    return tokenize_file(path, tokenizer=demo_tokenizer()).lengths


def load_training_script():
    path = Path(__file__).parents[1] / "scripts" / "train_demo_tokenizer.py"
    spec = importlib.util.spec_from_file_location("train_demo_tokenizer", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_same_seed_writes_the_same_bytes_on_every_python(tmp_path):
    write_conversations(tmp_path / "a.jsonl", count=200, seed=7)

    digest = hashlib.sha256((tmp_path / "a.jsonl").read_bytes()).hexdigest()
    assert digest == "6ce79a9a2bfdb6f2f6a5cd088043354b7b91bfa3d0158cddebd1ba8d5d4184a0"


def test_another_seed_gives_other_conversations():
    first, second = (list(conversations(count=50, seed=seed)) for seed in (0, 1))

    assert first != second


def test_every_conversation_begins_with_the_shared_system_prompt_and_ends_with_an_answer(train):
    for conversation in train:
        roles = [message["role"] for message in conversation["messages"]]
        assert conversation["messages"][0] == {"role": "system", "content": SYSTEM_PROMPT}
        assert roles[1:] == ["user", "assistant"] * (len(roles) // 2)
        assert all(message["content"] for message in conversation["messages"])


def test_some_conversations_have_several_turns(train):
    several = [one for one in train if len(one["messages"]) > 3]

    assert len(several) > 200


def test_train_and_heldout_share_no_conversation_even_with_the_same_seed(train, heldout):
    def without_greeting(conversation):
        told = [message["content"] for message in conversation["messages"]]
        greeting = max((one for one in _GREETINGS if told[1].startswith(one)), key=len)
        return (told[1].removeprefix(greeting), *told[2:])

    same_seed = list(conversations(count=500, seed=0, split="heldout"))
    assert len({without_greeting(one) for one in train}) > 2000
    assert {without_greeting(one) for one in train}.isdisjoint(map(without_greeting, [*heldout, *same_seed]))


def test_facts_stay_on_their_side_however_they_are_phrased():
    sides = {}
    for draw in range(2000):
        topic, facts = draw % len(_TOPICS), f"0 {draw}"
        key = json.dumps(_messages(topic, facts, "one fixed phrasing"))
        assert sides.setdefault(key, _split_of(topic, facts)) == _split_of(topic, facts)

    assert len(sides) < 2000, "no two draws had the same facts, so nothing was tested"
    assert set(sides.values()) == {"train", "heldout"}


def test_about_one_conversation_in_eight_repeats_the_facts_of_an_earlier_one(monkeypatch):
    drawn = []

    def record(topic, facts, phrasing):
        if phrasing != "split":
            drawn.append((topic, facts))
        return _messages(topic, facts, phrasing)

    monkeypatch.setattr("hermetic.demo.conversations._messages", record)
    made = list(conversations(count=2000, seed=0))

    assert len(drawn) == len(made)
    assert 0.11 < 1 - len(set(drawn)) / len(drawn) < 0.14
    assert len({json.dumps(one) for one in made}) > 0.97 * len(made), "a near-duplicate is phrased anew"


def test_answers_use_only_what_the_conversation_tells_or_its_numbers_give(train):
    frame = {"the", "is", "a", "last", "word", "in", "more", "costs", "are", "welcome", "noted", "you", "plus", "minus"}
    unexplained = []
    for one in train:
        for index, message in enumerate(one["messages"]):
            if message["role"] == "assistant":
                told = " ".join(m["content"] for m in one["messages"][:index]).lower()
                words = [w.strip(".,:").lower() for w in message["content"].split()]
                unexplained += [w for w in words if w not in frame and w.replace("-", "") not in told]
    assert all(word.isdigit() for word in unexplained)
    assert len(unexplained) < len(train) / 4


def test_most_conversations_are_short_some_are_long_and_all_are_below_512_tokens(lengths):
    assert np.mean((lengths >= 20) & (lengths <= 80)) > 0.85
    assert 300 < lengths.max() < 512
    assert (lengths > 150).sum() > 20


def test_an_interrupted_write_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "a.jsonl"
    path.write_text("old")
    monkeypatch.setattr("hermetic.demo.conversations.conversations", lambda **_: iter([{1, 2}]))

    with pytest.raises(TypeError, match="not JSON serializable"):
        write_conversations(path, count=1, seed=0)

    assert path.read_text() == "old"
    assert everything_under(tmp_path) == ["a.jsonl"]


def test_training_the_tokenizer_anew_gives_the_committed_files(tmp_path):
    load_training_script().write(tmp_path)

    assert everything_under(tmp_path) == everything_under(DEMO_TOKENIZER)
    for name in everything_under(tmp_path):
        assert (tmp_path / name).read_bytes() == (DEMO_TOKENIZER / name).read_bytes(), name


def test_the_tokenizer_has_its_special_tokens_and_its_pad_is_not_its_end():
    tokenizer = demo_tokenizer()

    assert len(tokenizer) == 1024
    assert tokenizer.pad_token == "<|pad|>"  # noqa: S105 - a token of text, not of access
    assert tokenizer.eos_token == "<|end|>"  # noqa: S105 - the same
    assert tokenizer.convert_tokens_to_ids(["<|pad|>", "<|end|>", "<|assistant|>"]) == [0, 1, 4]


def test_the_tokenizer_gives_every_conversation_back(train):
    tokenizer = demo_tokenizer()
    texts = [m["content"] for one in train[:300] for m in one["messages"]] + ["never seen: ä漢字🙂"]

    assert [tokenizer.decode(ids) for ids in tokenizer(texts)["input_ids"]] == texts


def test_the_demo_packs_to_more_than_nine_tenths(tmp_path):
    write_conversations(tmp_path / "train.jsonl", count=600, seed=0)

    manifest = pack_sources(tmp_path / "train.jsonl", tmp_path / "rows", tokenizer=DEMO_TOKENIZER, capacity=512)

    assert manifest.utilization > 0.9
    assert manifest.documents_placed == manifest.documents_read == 600
    assert manifest.documents_without_supervision == 0
