"""Labels of prompts, completions, texts and given tokens, and the tokenizer behind them."""

import sys

import numpy as np
import pytest
import transformers
from data_helpers import CHAT, DEMO_TOKENIZER, demo_tokenizer, tokenizer_folder

from hermetic.data import load_tokenizer, tokenizer_fingerprint
from hermetic.data.encode import encode_part
from hermetic.data.records import ChatRecord, PairRecord, TextRecord, TokenRecord, parse_record
from hermetic.data.sources import SourceRecord
from hermetic.data.supervision import RecordEncoder
from hermetic.errors import DataError, MissingDependencyError, RecordError

WHERE = "data.jsonl:4"
SYSTEM = "<|system|>"
BEGIN_WITH_SYSTEM = {
    "type": "TemplateProcessing",
    "single": [{"SpecialToken": {"id": "<|system|>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
    "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
    "special_tokens": {"<|system|>": {"id": "<|system|>", "ids": [2], "tokens": ["<|system|>"]}},
}


def encode_records(records, tokenizer, train_on="assistant"):
    """The one document of each record; the first error is raised."""
    documents = []
    for found in RecordEncoder(tokenizer, train_on).encode(records):
        if isinstance(found, DataError):
            raise found
        (document,) = found
        documents.append(document)
    return documents


def encode(record, tokenizer, train_on="assistant"):
    return encode_records([record], tokenizer, train_on)[0]


def spelled(tokenizer, ids):
    return [None if token == -100 else tokenizer.convert_ids_to_tokens([token])[0] for token in ids.tolist()]


def pair(prompt, completion):
    return PairRecord(where=WHERE, prompt=prompt, completion=completion)


def text(content):
    return TextRecord(where=WHERE, text=content)


def test_of_a_pair_the_completion_and_the_end_are_supervised():
    document = encode(pair("You are", " told."), demo_tokenizer())

    assert spelled(demo_tokenizer(), document.input_ids) == ["You", "Ġare", "Ġtold", ".", "<|end|>"]
    assert spelled(demo_tokenizer(), document.labels) == [None, None, "Ġtold", ".", "<|end|>"]


def test_of_a_text_everything_but_the_first_token_is_supervised():
    document = encode(text("You are told."), demo_tokenizer())

    assert spelled(demo_tokenizer(), document.labels) == [None, "Ġare", "Ġtold", ".", "<|end|>"]
    assert document.input_ids.dtype == document.labels.dtype == np.int32


def test_a_text_that_ends_in_the_end_token_gets_no_second_one():
    document = encode(text("You are<|end|>"), demo_tokenizer())

    assert spelled(demo_tokenizer(), document.input_ids) == ["You", "Ġare", "<|end|>"]


def test_without_a_completion_start_the_first_completion_token_of_an_empty_prompt_is_unsupervised():
    assert spelled(demo_tokenizer(), encode(pair("", "You"), demo_tokenizer()).labels) == [None, "<|end|>"]


def test_a_tokenizer_without_end_token_adds_none(tmp_path):
    tokenizer = load_tokenizer(tokenizer_folder(tmp_path / "tokenizer", eos_token=None))

    assert spelled(tokenizer, encode(text("You are"), tokenizer).input_ids) == ["You", "Ġare"]


def test_the_start_token_stands_where_the_tokenizer_itself_puts_it(tmp_path):
    folder = tokenizer_folder(
        tmp_path / "tokenizer", json_changes={"post_processor": BEGIN_WITH_SYSTEM}, bos_token=SYSTEM
    )
    tokenizer = load_tokenizer(folder)

    assert spelled(tokenizer, encode(text("You"), tokenizer).labels) == [None, "You", "<|end|>"]
    document = encode(pair("You", " are"), tokenizer)
    assert spelled(tokenizer, document.input_ids) == ["<|system|>", "You", "Ġare", "<|end|>"]
    assert spelled(tokenizer, document.labels) == [None, None, "Ġare", "<|end|>"]


def test_a_start_token_that_the_tokenizer_does_not_set_is_not_set(tmp_path):
    tokenizer = load_tokenizer(tokenizer_folder(tmp_path / "tokenizer", bos_token=SYSTEM))

    assert spelled(tokenizer, encode(text("You"), tokenizer).input_ids) == ["You", "<|end|>"]


def test_given_tokens_and_labels_stay_but_for_the_first_label_and_the_record_itself_is_untouched():
    ids, labels = np.array([5, 6, 7], np.int32), np.array([5, -100, 7], np.int32)
    document = encode(TokenRecord(where=WHERE, input_ids=ids, labels=labels), demo_tokenizer())

    assert document.input_ids.tolist() == [5, 6, 7]
    assert document.labels.tolist() == [-100, -100, 7]
    assert labels.tolist() == [5, -100, 7]


def test_records_of_mixed_shapes_come_back_in_their_order():
    chat = ChatRecord(where=WHERE, messages=CHAT["messages"])
    tokens = TokenRecord(where=WHERE, input_ids=np.array([9], np.int32), labels=np.array([9], np.int32))
    records = [text("You"), chat, tokens, pair("You", " are"), chat, text("told")]

    first = [
        demo_tokenizer().convert_ids_to_tokens(document.input_ids.tolist())[0]
        for document in encode_records(records, demo_tokenizer())
    ]

    assert first == ["You", "<|user|>", demo_tokenizer().convert_ids_to_tokens(9), "You", "<|user|>", "t"]


@pytest.mark.parametrize("record", [text("   "), pair("You", "   ")], ids=["text", "completion"])
def test_a_document_that_tokenizes_to_nothing_is_an_error(tmp_path, record):
    strip = {"type": "Strip", "strip_left": True, "strip_right": True}
    tokenizer = load_tokenizer(tokenizer_folder(tmp_path / "tokenizer", json_changes={"normalizer": strip}))

    with pytest.raises(RecordError, match=r"data\.jsonl:4: the tokenizer makes no tokens of this document"):
        encode(record, tokenizer)


def test_a_conversation_that_renders_to_nothing_is_an_error(tmp_path):
    tokenizer = load_tokenizer(
        tokenizer_folder(tmp_path / "tokenizer", chat_template="{%- generation -%}{%- endgeneration -%}")
    )
    chat = ChatRecord(where=WHERE, messages=CHAT["messages"])

    with pytest.raises(RecordError, match=r"data\.jsonl:4: the tokenizer makes no tokens of this document"):
        encode(chat, tokenizer)


def test_a_folder_without_a_tokenizer_is_an_error_that_says_what_is_expected(tmp_path):
    with pytest.raises(
        DataError, match=r"no tokenizer can be loaded from '.*'.*expected a folder with tokenizer\.json"
    ):
        load_tokenizer(tmp_path)


def test_a_missing_transformers_names_the_extra_that_brings_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)

    with pytest.raises(MissingDependencyError, match=r"needs the package 'transformers'.*pip install 'hermetic\[hf\]'"):
        load_tokenizer(DEMO_TOKENIZER)


def test_the_fingerprint_is_the_same_for_the_same_tokenizer_and_survives_padding_calls():
    fresh, used = load_tokenizer(DEMO_TOKENIZER), load_tokenizer(DEMO_TOKENIZER)
    used(["You", "You are told."], padding=True, truncation=True, max_length=3)

    assert tokenizer_fingerprint(used) == tokenizer_fingerprint(fresh)


@pytest.mark.parametrize(
    "changes",
    [
        {"chat_template": "{{ messages }}"},
        {"eos_token": "<|user|>"},
        {"json_changes": {"normalizer": {"type": "Lowercase"}}},
    ],
    ids=["template", "special token", "normalizer"],
)
def test_the_fingerprint_changes_with_whatever_changes_the_tokens(tmp_path, changes):
    other = load_tokenizer(tokenizer_folder(tmp_path / "tokenizer", **changes))

    assert tokenizer_fingerprint(other) != tokenizer_fingerprint(demo_tokenizer())


def test_a_tokenizer_written_in_python_has_a_fingerprint_of_its_vocabulary():
    small, large = transformers.ByT5Tokenizer(extra_ids=1), transformers.ByT5Tokenizer(extra_ids=2)

    assert tokenizer_fingerprint(small) == tokenizer_fingerprint(transformers.ByT5Tokenizer(extra_ids=1))
    assert tokenizer_fingerprint(small) != tokenizer_fingerprint(large)


def given_tokens(ids, **options):
    values = {"input_ids": ids} | options
    record = parse_record(SourceRecord(where=WHERE, number=4, values=values), vocabulary=300)
    return encode(record, demo_tokenizer())


def test_ends_inside_a_document_stay_targets_where_the_end_token_is_the_padding_token_too(tmp_path):
    folder = tokenizer_folder(tmp_path / "tokenizer", eos_token=SYSTEM, pad_token=SYSTEM)
    tokenizer = load_tokenizer(folder)
    assert tokenizer.eos_token_id == tokenizer.pad_token_id == 2
    records = [{"input_ids": [5, 2, 6, 2]}, {"input_ids": [7, 2]}]

    part = encode_part(
        [SourceRecord(where=WHERE, number=n, values=values) for n, values in enumerate(records, 1)], tokenizer=tokenizer
    )

    assert part.lengths.tolist() == [4, 2]
    assert part.tokens.tolist() == [5, 2, 6, 2, 7, 2]
    assert part.labels.tolist() == [-100, 2, 6, 2, -100, 2]


def test_the_length_of_a_document_is_not_where_its_first_end_stands():
    assert given_tokens([5, 1, 6, 1]).input_ids.tolist() == [5, 1, 6, 1]
    assert given_tokens([5, 1, 6, 1, 1]).labels.tolist() == [-100, 1, 6, 1, 1]


def test_ends_of_turns_do_not_cut_a_conversation_and_all_answers_keep_theirs(tmp_path):
    tokenizer = load_tokenizer(tokenizer_folder(tmp_path / "tokenizer", pad_token="<|end|>"))  # noqa: S106 - no password
    chat = ChatRecord(where=WHERE, messages=CHAT["messages"])

    document = encode(chat, tokenizer)

    ends = document.input_ids == tokenizer.eos_token_id
    assert int(ends.sum()) == 4
    assert document.labels[ends].tolist() == [-100, tokenizer.eos_token_id] * 2


def test_the_first_token_of_an_answer_is_supervised_and_the_last_of_its_prompt_is_not():
    chat = ChatRecord(where=WHERE, messages=CHAT["messages"][:2])

    document = encode(chat, demo_tokenizer())

    assert spelled(demo_tokenizer(), document.input_ids)[-3:] == ["<|assistant|>", "5", "<|end|>"]
    assert spelled(demo_tokenizer(), document.labels)[-3:] == [None, "5", "<|end|>"]
    assert set(document.labels[:-2].tolist()) == {-100}


def test_a_prompt_of_three_tokens_and_an_answer_of_two_have_these_labels():
    document = encode(pair("You are told", " are"), demo_tokenizer())

    assert spelled(demo_tokenizer(), document.input_ids) == ["You", "Ġare", "Ġtold", "Ġare", "<|end|>"]
    assert document.labels.tolist() == [-100, -100, -100, *document.input_ids[3:].tolist()]


@pytest.mark.parametrize(
    ("train_on", "expected"),
    [
        ("assistant", [None, None, "Ġtold", ".", "<|end|>"]),
        ("last", [None, None, "Ġtold", ".", "<|end|>"]),
        ("all", [None, "Ġare", "Ġtold", ".", "<|end|>"]),
    ],
)
def test_of_a_pair_all_trains_the_prompt_too(train_on, expected):
    assert spelled(demo_tokenizer(), encode(pair("You are", " told."), demo_tokenizer(), train_on).labels) == expected


@pytest.mark.parametrize("train_on", ["assistant", "last", "all"])
def test_texts_and_given_tokens_do_not_depend_on_what_is_trained(train_on):
    document = encode(text("You are"), demo_tokenizer(), train_on)
    given = TokenRecord(where=WHERE, input_ids=np.array([5, 6], np.int32), labels=np.array([-100, 9], np.int32))

    assert spelled(demo_tokenizer(), document.labels) == [None, "Ġare", "<|end|>"]
    assert encode(given, demo_tokenizer(), train_on).labels.tolist() == [-100, 9]


def test_an_answer_that_writes_special_tokens_is_supervised_whole_and_a_question_that_does_is_not():
    quoting = [
        {"role": "user", "content": "<|assistant|>no<|end|>"},
        {"role": "assistant", "content": "<|user|>x<|end|>y"},
    ]

    document = encode(ChatRecord(where=WHERE, messages=quoting), demo_tokenizer())

    kept = document.labels[document.labels != -100]
    assert demo_tokenizer().decode(kept) == "<|user|>x<|end|>y<|end|>"
