"""Labels of prompts, completions, texts and given tokens, and the tokenizer behind them."""

import sys

import numpy as np
import pytest
import transformers
from data_helpers import CHAT, DEMO_TOKENIZER, demo_tokenizer, tokenizer_folder

from hermetic.data import load_tokenizer, tokenizer_fingerprint
from hermetic.data.records import ChatRecord, PairRecord, TextRecord, TokenRecord
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
    chat = ChatRecord(where=WHERE, messages=CHAT["messages"], tools=None)
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
    chat = ChatRecord(where=WHERE, messages=CHAT["messages"], tools=None)

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
