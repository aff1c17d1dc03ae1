"""A run of records: what comes out is theirs, in their order; a bad record costs nothing but itself."""

import functools
import pickle
import re
import sys

import numpy as np
import pytest
import transformers
from data_helpers import CHAT, DEMO_TOKENIZER, demo_tokenizer, tokenizer_folder
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizer_helpers import CONTENTS, KINDS, MARKED_TEMPLATE, UNMARKED_TEMPLATE, chats, small_tokenizer

from hermetic.constants import IGNORE_INDEX
from hermetic.data import encode, load_tokenizer, tokenizer_fingerprint
from hermetic.data.encode import encode_part
from hermetic.data.encoder import TextEncoder
from hermetic.data.rendering import Renderer
from hermetic.data.sources import BadRecord, SourceRecord
from hermetic.errors import DataError, MissingDependencyError, RecordError, SourceError, TemplateError

USER = {"role": "user", "content": "hi"}
YES = {"role": "assistant", "content": "yes"}


def source(values, number=1):
    return SourceRecord(where=f"data.jsonl:{number}", number=number, values=values)


def numbered(several):
    return [source(values, number) for number, values in enumerate(several, start=1)]


def documents(part):
    """Number, role, tokens and labels of each document."""
    stops = np.cumsum(part.lengths).tolist()
    return [
        (int(number), int(role), part.tokens[start:stop].tolist(), part.labels[start:stop].tolist())
        for number, role, start, stop in zip(part.numbers, part.roles, [0, *stops], stops, strict=False)
    ]


GOOD = st.one_of(
    CONTENTS.filter(bool).map(lambda text: {"text": text}),
    st.builds(lambda a, b: {"prompt": a, "completion": b}, CONTENTS, CONTENTS.filter(bool)),
    st.lists(st.integers(0, 200), min_size=1, max_size=5).map(lambda ids: {"input_ids": ids}),
    chats().map(lambda messages: {"messages": messages}),
    st.just({"chosen": [USER, YES], "rejected": [USER, {"role": "assistant", "content": "no"}]}),
    st.just({"instruction": "Add.", "input": "2, 3", "output": "5"}),
)
BAD = st.sampled_from([
    ({"text": ""}, "empty"),
    ({"text": "a\ud800"}, "not_unicode"),
    ({"messages": []}, "empty"),
    ({"messages": [USER]}, "no_assistant"),
    ({"input_ids": ["5"]}, "not_integers"),
    ({"input_ids": [True]}, "not_integers"),
    ({"input_ids": [1.0]}, "not_integers"),
    ({"input_ids": [10**12]}, "out_of_range"),
    ({"text": 5}, "not_a_string"),
    ({}, "no_shape"),
    ({"text": "a", "messages": [USER, YES]}, "two_shapes"),
    ({"messages": [USER, {"role": "assistant", "content": "x", "oops": "\ud800"}]}, None),
])  # fmt: skip


@given(several=st.lists(st.one_of(GOOD.map(lambda values: (values, None)), BAD), max_size=8))
@settings(max_examples=80, deadline=None)
def test_each_record_is_there_as_if_it_were_alone_or_skipped_with_its_reason(several):
    records = numbered(values for values, _ in several)
    part = encode_part(records, tokenizer=demo_tokenizer(), on_bad_record="skip")

    alone = [
        document
        for record, (_, reason) in zip(records, several, strict=True)
        if reason is None
        for document in documents(encode_part([record], tokenizer=demo_tokenizer()))
    ]
    assert documents(part) == alone
    assert [(skipped.number, skipped.reason) for skipped in part.skipped] == [
        (record.number, reason) for record, (_, reason) in zip(records, several, strict=True) if reason is not None
    ]
    assert all(skipped.message.startswith(f"data.jsonl:{skipped.number}: ") for skipped in part.skipped)
    assert len(part.tokens) == len(part.labels) == part.lengths.sum()


@given(at_once=st.integers(1, 5), several=st.lists(GOOD, max_size=8))
@settings(max_examples=30, deadline=None)
def test_how_many_records_are_encoded_at_once_changes_nothing(at_once, several):
    whole = documents(encode_part(numbered(several), tokenizer=demo_tokenizer()))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(encode, "_RECORDS_AT_ONCE", at_once)
        assert documents(encode_part(numbered(several), tokenizer=demo_tokenizer())) == whole


def test_arrays_have_their_types_also_where_there_is_no_document():
    for records in ([], numbered([{"text": ""}]), numbered([{"text": "a"}])):
        part = encode_part(records, tokenizer=demo_tokenizer(), on_bad_record="skip")

        arrays = (part.tokens, part.labels, part.lengths, part.numbers, part.roles)
        assert [array.dtype for array in arrays] == [np.int32, np.int32, np.int32, np.int64, np.int8]


def test_of_several_bad_records_the_first_is_raised():
    records = numbered([{"text": "a"}, {"messages": [USER]}, {"text": ""}])

    with pytest.raises(RecordError, match=r"^data\.jsonl:2: the conversation has no assistant turn"):
        encode_part(records, tokenizer=demo_tokenizer())


def unread(number):
    error = SourceError(f"data.jsonl:{number}: malformed JSON", reason="not_json")
    return BadRecord(where=f"data.jsonl:{number}", number=number, error=error)


def test_a_record_that_could_not_be_read_is_raised_or_skipped_with_its_own_reason():
    records = [source({"text": "a"}, 1), unread(2), source({"text": "b"}, 3)]

    with pytest.raises(SourceError, match=r"data\.jsonl:2: malformed JSON"):
        encode_part(records, tokenizer=demo_tokenizer())
    part = encode_part(records, tokenizer=demo_tokenizer(), on_bad_record="skip")

    assert part.numbers.tolist() == [1, 3]
    assert [(s.number, s.reason, s.message) for s in part.skipped] == [(2, "not_json", "data.jsonl:2: malformed JSON")]


@pytest.mark.parametrize("on_bad_record", ["error", "skip"])
def test_a_tokenizer_without_a_chat_template_stops_the_run_whatever_is_skipped(tmp_path, on_bad_record):
    tokenizer = load_tokenizer(tokenizer_folder(tmp_path / "tokenizer", chat_template=None))

    with pytest.raises(TemplateError, match=r"data\.jsonl:1: the tokenizer .* has no chat template") as caught:
        encode_part(numbered([{"messages": [USER, YES]}]), tokenizer=tokenizer, on_bad_record=on_bad_record)

    assert caught.value.reason == "no_template"


@pytest.mark.parametrize(("option", "value"), [("train_on", "completion"), ("on_bad_record", "ignore")])
def test_an_option_with_another_value_is_refused_by_name(option, value):
    with pytest.raises(DataError, match=f"{option} is '{value}', expected one of "):
        encode_part([], tokenizer=demo_tokenizer(), **{option: value})


@pytest.mark.parametrize("content", ["a\x00b", "<p>a &amp; b</p>", "\ufeffa\u200b", "👩‍👧 é e\u0301"])
def test_nul_html_and_rare_characters_are_text_like_any_other(content):
    part = encode_part(numbered([{"text": content}]), tokenizer=demo_tokenizer())

    assert demo_tokenizer().decode(part.tokens[:-1]) == content


def test_a_text_that_the_tokenizer_itself_refuses_costs_no_other(tmp_path):
    words = {"type": "WordLevel", "vocab": {"<|pad|>": 0, "<|end|>": 1, "a": 2}, "unk_token": "missing"}
    tokenizer = load_tokenizer(tokenizer_folder(tmp_path / "tokenizer", json_changes={"model": words}))

    part = encode_part(
        numbered([{"text": "a"}, {"text": "b"}, {"text": "a"}]), tokenizer=tokenizer, on_bad_record="skip"
    )

    assert part.numbers.tolist() == [1, 3]
    assert [(skipped.number, skipped.reason) for skipped in part.skipped] == [(2, "tokenizer_refused")]
    assert re.match(r"data\.jsonl:2: the tokenizer refuses the text that begins with 'b' \(", part.skipped[0].message)


def test_the_tokenizer_is_left_as_it_was_found_and_its_padding_and_truncation_do_not_count():
    tokenizer = load_tokenizer(DEMO_TOKENIZER)
    backend = tokenizer.backend_tokenizer
    backend.enable_truncation(3, stride=1, strategy="only_first", direction="left")
    backend.enable_padding(direction="left", pad_id=0, pad_token="<|pad|>", length=9, pad_to_multiple_of=2)  # noqa: S106
    before = backend.to_str()

    part = encode_part(numbered([CHAT, {"text": "You are told."}]), tokenizer=tokenizer)

    assert backend.to_str() == before
    plain = encode_part(numbered([CHAT, {"text": "You are told."}]), tokenizer=demo_tokenizer())
    assert documents(part) == documents(plain)


def test_the_tokenizer_is_left_as_it_was_found_also_after_an_error():
    tokenizer = load_tokenizer(DEMO_TOKENIZER)
    tokenizer.backend_tokenizer.enable_truncation(3)
    before = tokenizer.backend_tokenizer.to_str()

    with pytest.raises(RecordError):
        encode_part(numbered([{"text": ""}]), tokenizer=tokenizer)

    assert tokenizer.backend_tokenizer.to_str() == before
    assert tokenizer_fingerprint(tokenizer) == tokenizer_fingerprint(demo_tokenizer())


class Shouting(transformers.PreTrainedTokenizerFast):
    """A tokenizer whose class changes how texts reach its backend."""

    def __call__(self, text, *args, **kwargs):
        return super().__call__([one.upper() for one in text] if isinstance(text, list) else text, *args, **kwargs)


def test_a_tokenizer_whose_class_changes_its_texts_is_asked_itself():
    shouting = Shouting.from_pretrained(DEMO_TOKENIZER)
    assert TextEncoder(shouting).backend is None
    assert TextEncoder(demo_tokenizer()).backend is not None

    part = encode_part(numbered([{"text": "You are"}, {"messages": [USER, YES]}]), tokenizer=shouting)

    assert shouting.decode(part.tokens) == "YOU ARE<|end|><|USER|>HI<|END|><|ASSISTANT|>YES<|END|>"


@functools.cache
def python_tokenizer():
    return transformers.ByT5Tokenizer()


@pytest.mark.parametrize("train_on", ["assistant", "last", "all"])
@given(messages=chats(contents=st.text("ab", min_size=1, max_size=3)))
@settings(max_examples=20, deadline=None)
def test_a_tokenizer_in_python_makes_the_tokens_of_its_own_call(train_on, messages):
    tokenizer = python_tokenizer()
    tokenizer.chat_template = UNMARKED_TEMPLATE.replace("<|end|>", "</s>")
    assert not tokenizer.is_fast

    part = encode_part(numbered([{"messages": messages}]), tokenizer=tokenizer, train_on=train_on)

    rendered = tokenizer.apply_chat_template(messages, tokenize=False)
    assert part.tokens.tolist() == tokenizer(rendered, add_special_tokens=False)["input_ids"]
    answers = [message["content"] + "</s>" for message in messages if message["role"] == "assistant"]
    expected = {"assistant": "".join(answers), "last": answers[-1], "all": rendered[1:]}[train_on]
    assert tokenizer.decode(part.tokens[part.labels != IGNORE_INDEX]) == expected


@pytest.mark.parametrize("kind", KINDS)
@given(texts=st.lists(CONTENTS.filter(bool), min_size=1, max_size=4))
@settings(max_examples=25, deadline=None)
def test_texts_have_the_tokens_of_the_tokenizers_own_call(kind, texts):
    tokenizer = small_tokenizer(kind, MARKED_TEMPLATE)
    expected = tokenizer(texts, add_special_tokens=False)["input_ids"]

    found = TextEncoder(tokenizer).token_ids(["here"] * len(texts), texts)

    assert found == expected


def test_long_texts_are_tokenized_in_pieces_of_bounded_size(monkeypatch):
    sizes = []
    monkeypatch.setattr(sys.modules["hermetic.data.encoder"], "_CHARACTERS_AT_ONCE", 10)
    encoder = TextEncoder(demo_tokenizer())
    whole = encoder.token_ids(["here"] * 7, ["abcd"] * 5 + ["e" * 30, "f"])
    monkeypatch.setattr(encoder, "backend", None)
    monkeypatch.setattr(encoder, "_call", lambda texts: sizes.append(len(texts)) or [[1]] * len(texts))
    encoder.token_ids(["here"] * 7, ["abcd"] * 5 + ["e" * 30, "f"])

    assert sizes == [3, 3, 1]
    assert whole == demo_tokenizer()(["abcd"] * 5 + ["e" * 30, "f"], add_special_tokens=False)["input_ids"]


def test_a_part_survives_the_way_from_another_process():
    part = encode_part(numbered([CHAT, {"text": ""}]), tokenizer=demo_tokenizer(), on_bad_record="skip")

    back = pickle.loads(pickle.dumps(part))  # noqa: S301 - what a pool of processes does

    assert documents(back) == documents(part)
    assert back.skipped == part.skipped


@pytest.mark.parametrize("what", ["the tokenizer", "the template"])
@pytest.mark.parametrize("on_bad_record", ["error", "skip"])
def test_that_memory_runs_out_is_no_fault_of_a_record(monkeypatch, what, on_bad_record):
    def fail(*_args, **_options):
        raise MemoryError

    if what == "the tokenizer":
        monkeypatch.setattr(sys.modules["hermetic.data.encoder"], "_fast", lambda _: fail)
    else:
        monkeypatch.setattr(Renderer, "_render", fail)

    with pytest.raises(MemoryError):
        encode_part(numbered([{"messages": [USER, YES]}]), tokenizer=demo_tokenizer(), on_bad_record=on_bad_record)


def test_a_missing_jinja_is_an_error_of_its_own_and_not_of_each_conversation(monkeypatch):
    monkeypatch.setitem(sys.modules, "jinja2", None)

    with pytest.raises(MissingDependencyError, match=r"needs the package 'jinja2'.*pip install 'hermetic\[hf\]'"):
        encode_part(numbered([{"messages": [USER, YES]}]), tokenizer=demo_tokenizer(), on_bad_record="skip")


def test_a_long_value_is_shortened_in_its_message():
    part = encode_part(
        numbered([{"messages": [{"role": "x" * 9999}]}, {"input_ids": [["y" * 9999] * 99]}]),
        tokenizer=demo_tokenizer(),
        on_bad_record="skip",
    )

    assert [skipped.reason for skipped in part.skipped] == ["unknown_role", "not_integers"]
    assert all(len(skipped.message) < 400 for skipped in part.skipped)
