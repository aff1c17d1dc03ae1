"""Shapes of records: exactly one, well formed, or an error with file, line, offender and way out."""

import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hermetic.data.records import ChatRecord, PairRecord, TextRecord, parse_record
from hermetic.data.sources import SourceRecord
from hermetic.errors import RecordError

USER = {"role": "user", "content": "hi"}
ANSWER = {"role": "assistant", "content": "yes"}


def parse(values, vocabulary=10):
    record = SourceRecord(where="chats.jsonl:7", number=7, values=values)
    return parse_record(record, vocabulary=vocabulary)


def test_each_shape_is_recognised_by_its_keys():
    assert parse({"messages": [USER, ANSWER]}) == ChatRecord(where="chats.jsonl:7", messages=[USER, ANSWER], tools=None)
    assert parse({"prompt": "a", "completion": "b"}) == PairRecord(where="chats.jsonl:7", prompt="a", completion="b")
    assert parse({"text": "a"}) == TextRecord(where="chats.jsonl:7", text="a")


def test_tokens_without_labels_are_all_supervised():
    record = parse({"input_ids": [5, 6, 7]})

    assert record.input_ids.tolist() == [5, 6, 7]
    assert record.labels.tolist() == [5, 6, 7]


def test_labels_are_taken_as_given():
    assert parse({"input_ids": [5, 6, 7], "labels": [-100, -100, 7]}).labels.tolist() == [-100, -100, 7]


@pytest.mark.parametrize("mask", [[0, 1, 1], [False, True, True]])
def test_a_loss_mask_becomes_labels(mask):
    assert parse({"input_ids": [5, 6, 7], "loss_mask": mask}).labels.tolist() == [-100, 6, 7]


def test_keys_of_no_shape_and_null_values_are_ignored():
    assert parse({"text": "a", "id": 3, "messages": None, "labels": None}).text == "a"


def test_tools_and_further_keys_of_a_message_are_kept_for_the_template():
    call = {"role": "assistant", "content": None, "tool_calls": [{"name": "add"}]}
    record = parse({"messages": [USER, call], "tools": [{"name": "add"}]})

    assert record.messages[1] == {"role": "assistant", "tool_calls": [{"name": "add"}]}
    assert record.tools == [{"name": "add"}]


def test_an_attention_mask_of_ones_says_nothing_and_is_allowed():
    assert parse({"input_ids": [5, 6], "attention_mask": [1, 1]}).input_ids.tolist() == [5, 6]


BAD_RECORDS = {
    "no shape": (
        {"question": "a", "answer": "b"},
        r"the keys \['answer', 'question'\] are not exactly one known shape, expected messages \| conversations",
    ),
    "two shapes": (
        {"text": "a", "messages": [USER, ANSWER]},
        r"the keys \['messages', 'text'\] fit 2 shapes \(messages; text\), expected messages \| conversations",
    ),
    "half a shape": ({"prompt": "a"}, r"the keys \['prompt'\] are not exactly one"),
    "labels of a text": ({"text": "a", "labels": [1]}, r"the keys \['labels', 'text'\] are not exactly one"),
    "both labels and mask": (
        {"input_ids": [1], "labels": [1], "loss_mask": [1]},
        "both 'labels' and 'loss_mask', expected one of them",
    ),
    "empty messages": ({"messages": []}, "'messages' is empty, expected a document with at least one token"),
    "messages not a list": ({"messages": "hi"}, "'messages' is a string, expected a list"),
    "message not an object": ({"messages": ["hi"]}, "message 0 is a string, expected an object"),
    "unknown role": (
        {"messages": [USER, {"role": "bot", "content": "x"}]},
        "message 1 has the unknown role 'bot', expected one of system, user, assistant, tool",
    ),
    "content not a string": (
        {"messages": [{"role": "user", "content": [{"type": "text"}]}, ANSWER]},
        r"message 0 \(user\): 'content' is a list, expected a string",
    ),
    "content missing": (
        {"messages": [USER, {"role": "assistant"}]},
        "'content' is null, expected a string",
    ),
    "half a surrogate": ({"text": "ab\ud800"}, r"'text' holds half of a surrogate pair, '\\ud800', at character 2"),
    "prompt not a string": ({"prompt": 3, "completion": "b"}, "'prompt' is an int, expected a string"),
    "empty completion": (
        {"prompt": "a", "completion": ""},
        "'completion' is empty, expected a document with at",
    ),
    "empty text": ({"text": ""}, "'text' is empty, expected a document with at least one token"),
    "text not a string": ({"text": 3}, "'text' is an int, expected a string"),
    "no tokens": ({"input_ids": []}, "'input_ids' is empty, expected a document with at least one token"),
    "ids not a list": ({"input_ids": "123"}, "'input_ids' is a string, expected a list of integers"),
    "ids not integers": ({"input_ids": [1, 2.0]}, r"input_ids\[1\] is 2\.0, a float, expected an integer"),
    "ids boolean": ({"input_ids": [1, True]}, r"input_ids\[1\] is True, a bool, expected an integer"),
    "negative id": ({"input_ids": [1, -1]}, r"input_ids\[1\] is -1, expected 0 to 9; check which tokenizer"),
    "id beyond the vocabulary": ({"input_ids": [1, 10]}, r"input_ids\[1\] is 10, expected 0 to 9;"),
    "labels of another length": (
        {"input_ids": [1, 2], "labels": [1]},
        "'labels' has 1 entries for 2 input_ids, expected as many",
    ),
    "label out of range": (
        {"input_ids": [1, 2], "labels": [-100, -1]},
        r"labels\[1\] is -1, expected 0 to 9 or -100",
    ),
    "mask of another length": (
        {"input_ids": [1, 2], "loss_mask": [1, 1, 1]},
        "'loss_mask' has 3 entries for 2 input_ids",
    ),
    "mask neither 0 nor 1": (
        {"input_ids": [1, 2], "loss_mask": [0, 2]},
        r"loss_mask\[1\] is 2, expected 0 to 1",
    ),
    "already packed": (
        {"input_ids": [1, 2], "seq_lengths": [1, 1]},
        "'seq_lengths' beside 'input_ids' shows a row that is already packed or padded",
    ),
    "padded": (
        {"input_ids": [1, 0], "attention_mask": [1, 0]},
        "'attention_mask' beside 'input_ids' shows a row",
    ),
}


@pytest.mark.parametrize(("values", "message"), BAD_RECORDS.values(), ids=BAD_RECORDS)
def test_a_malformed_record_names_its_place_its_fault_and_what_was_expected(values, message):
    with pytest.raises(RecordError, match=f"{re.escape('chats.jsonl:7')}: .*{message}"):
        parse(values)


def test_the_largest_id_of_the_vocabulary_is_allowed():
    assert parse({"input_ids": [9, 0]}).input_ids.tolist() == [9, 0]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 12) | st.floats(allow_nan=True) | st.text(max_size=3),
    lambda values: (
        st.lists(values, max_size=3)
        | st.dictionaries(st.sampled_from(["role", "content", "from", "value", "tool_calls"]), values, max_size=3)
    ),
    max_leaves=6,
)
KEYS = [
    *("messages", "conversations", "prompt", "completion", "text", "input_ids", "labels", "loss_mask"),
    *("instruction", "input", "output", "history", "system", "tools", "chosen", "rejected", "label", "attention_mask"),
]
SHAPES = [
    *(["messages"], ["conversations"], ["prompt", "completion"], ["text"], ["input_ids"], ["input_ids", "labels"]),
    *(["input_ids", "loss_mask"], ["instruction", "output"], ["chosen", "rejected"], ["prompt", "chosen", "rejected"]),
]
REASONS = {
    *("already_packed", "bad_history", "bad_tool_call", "bad_tools", "empty", "lengths_differ", "mixed_kinds"),
    *("no_preference", "no_shape", "not_a_list", "not_a_message", "not_a_string", "not_integers", "not_unicode"),
    *("out_of_range", "prompt_twice", "prompts_differ", "two_shapes", "two_systems", "unknown_role"),
    "unpaired_preference",
}


def place_and_reason(values):
    """Where the record or its error says that it is from, and the error's reason."""
    try:
        return parse(values).where, None
    except RecordError as error:
        return str(error)[: len("chats.jsonl:7")], error.reason


@given(shape=st.sampled_from(SHAPES), beside=st.dictionaries(st.sampled_from(KEYS), JSON, max_size=2), data=st.data())
@settings(max_examples=300, deadline=None)
def test_whatever_the_values_are_a_record_is_parsed_or_refused_with_place_and_reason(shape, beside, data):
    where, reason = place_and_reason(beside | {key: data.draw(JSON) for key in shape})

    assert where == "chats.jsonl:7"
    assert reason is None or reason in REASONS


def test_every_reason_is_in_the_documentation():
    page = (Path(__file__).parents[1] / "docs" / "documents.md").read_text(encoding="utf-8")
    others = {"no_assistant", "template_refused", "template_rewrites", "begins_with_assistant", "tokenizer_refused"}

    assert {reason for reason in REASONS | others if f"`{reason}`" not in page} == set()


def test_the_reasons_here_are_all_those_of_the_code():
    data = Path(__file__).parents[1] / "hermetic" / "data"
    files = [*(data / "shapes").glob("*.py"), data / "records.py"]
    found = {reason for path in files for reason in re.findall(r'reason="(\w+)"', path.read_text(encoding="utf-8"))}
    found |= {"two_shapes", "no_shape"}

    assert found == REASONS
