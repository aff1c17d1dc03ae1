"""ShareGPT, Alpaca, prompts of messages: the same conversation as ``messages``, or an error that says why not."""

import json
import re

import pytest
from data_helpers import demo_tokenizer, tokenizer_folder
from hypothesis import given
from hypothesis import strategies as st
from tokenizer_helpers import CONTENTS

from hermetic.constants import IGNORE_INDEX
from hermetic.data import load_tokenizer
from hermetic.data.encode import encode_part
from hermetic.data.records import ChatRecord, PairRecord, parse_record
from hermetic.data.sources import SourceRecord
from hermetic.errors import RecordError

USER = {"role": "user", "content": "hi"}
ANSWER = {"role": "assistant", "content": "yes"}
TOOLS = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}]


def source(values, number=7):
    return SourceRecord(where=f"data.jsonl:{number}", number=number, values=values)


def parse(values, **options):
    return parse_record(source(values), vocabulary=10, **options)


def messages_of(values, **options):
    return parse(values, **options).messages


def supervised(values, tokenizer=None, **options):
    tokenizer = tokenizer or demo_tokenizer()
    part = encode_part([source(values)], tokenizer=tokenizer, **options)
    return tokenizer.decode(part.tokens), tokenizer.decode(part.tokens[part.labels != IGNORE_INDEX])


@pytest.mark.parametrize(
    ("speaker", "role"),
    [
        ("human", "user"),
        ("user", "user"),
        ("gpt", "assistant"),
        ("assistant", "assistant"),
        ("chatgpt", "assistant"),
        ("bing", "assistant"),
        ("bard", "assistant"),
        ("system", "system"),
        ("observation", "tool"),
        ("tool", "tool"),
    ],
)
def test_each_speaker_of_sharegpt_has_a_role(speaker, role):
    assert messages_of({"conversations": [{"from": speaker, "value": "hi"}]}) == [{"role": role, "content": "hi"}]


@given(contents=st.lists(CONTENTS, min_size=2, max_size=5))
def test_sharegpt_and_messages_make_the_same_document(contents):
    turns = [("human", "user"), ("gpt", "assistant")]
    sharegpt = [{"from": turns[index % 2][0], "value": content} for index, content in enumerate(contents)]
    messages = [{"role": turns[index % 2][1], "content": content} for index, content in enumerate(contents)]

    parts = [
        encode_part([source({key: turns})], tokenizer=demo_tokenizer())
        for key, turns in (("conversations", sharegpt), ("messages", messages))
    ]

    assert parts[0].tokens.tolist() == parts[1].tokens.tolist()
    assert parts[0].labels.tolist() == parts[1].labels.tolist()


def test_turns_of_sharegpt_may_be_messages_and_keep_their_further_keys():
    turns = [USER | {"name": "ana"}, {"from": "gpt", "value": "yes", "reasoning_content": "so", "weight": None}]

    assert messages_of({"conversations": turns}) == [USER | {"name": "ana"}, ANSWER | {"reasoning_content": "so"}]


def test_a_function_call_of_sharegpt_is_a_tool_call_of_the_assistant():
    call = {"name": "add", "arguments": {"a": 2}}
    turns = [{"from": "human", "value": "hi"}, {"from": "function_call", "value": json.dumps(call)}]

    expected = {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": call}]}
    assert messages_of({"conversations": turns})[1] == expected
    assert messages_of({"conversations": [{"from": "function_call", "value": json.dumps([call])}]})[0] == expected


def test_a_system_text_beside_the_turns_comes_first_and_only_once():
    turns = [{"from": "human", "value": "hi"}]
    system = {"role": "system", "content": "be brief"}

    assert messages_of({"conversations": turns, "system": "be brief"}) == [system, USER]
    assert messages_of({"conversations": [{"from": "system", "value": "be brief"}, *turns], "system": "be brief"}) == [
        system,
        USER,
    ]
    assert messages_of({"conversations": turns, "system": ""}) == [USER]


@pytest.mark.parametrize("key", ["messages", "conversations"])
@pytest.mark.parametrize(
    ("tools", "expected"),
    [(TOOLS, TOOLS), (json.dumps(TOOLS), TOOLS), ([], None), ("", None), ("[]", None), (" ", None)],
)
def test_tools_are_a_list_or_its_json_text_and_an_empty_list_is_none(key, tools, expected):
    assert parse({key: [USER, ANSWER], "tools": tools}).tools == expected


def test_tools_reach_the_template_of_every_shape_of_messages(tmp_path):
    template = (
        "{%- if tools -%}{{- tools[0]['function']['name'] + ': ' -}}{%- endif -%}" + demo_tokenizer().chat_template
    )
    tokenizer = load_tokenizer(tokenizer_folder(tmp_path / "tokenizer", chat_template=template))
    shapes = [
        {"messages": [USER, ANSWER]},
        {"conversations": [{"from": "human", "value": "hi"}, {"from": "gpt", "value": "yes"}]},
        {"prompt": [USER], "completion": [ANSWER]},
    ]

    texts = [supervised(values | {"tools": TOOLS}, tokenizer)[0] for values in shapes]

    assert texts == ["add: <|user|>hi<|end|><|assistant|>yes<|end|>"] * 3


def test_alpaca_is_a_conversation_where_there_is_a_template():
    values = {
        "instruction": "Add.",
        "input": "2, 3",
        "output": "5",
        "system": "be brief",
        "history": [["hi", "yes"]],
    }

    assert messages_of(values) == [
        {"role": "system", "content": "be brief"},
        USER,
        ANSWER,
        {"role": "user", "content": "Add.\n2, 3"},
        {"role": "assistant", "content": "5"},
    ]


@pytest.mark.parametrize(
    ("values", "question"),
    [
        ({"instruction": "Add."}, "Add."),
        ({"instruction": "Add.", "input": ""}, "Add."),
        ({"instruction": "", "input": "2, 3"}, "2, 3"),
        ({"instruction": "Add.", "input": None, "history": [], "system": ""}, "Add."),
    ],
)
def test_empty_fields_of_alpaca_leave_nothing_behind(values, question):
    assert messages_of(values | {"output": "yes"}) == [{"role": "user", "content": question}, ANSWER]
    prompt = parse(values | {"output": "yes"}, has_template=False).prompt
    assert prompt.count("###") == 2
    assert prompt.endswith(f":\n{question}\n\n### Response:\n")


def test_alpaca_without_a_template_is_a_prompt_with_headings_and_its_completion(tmp_path):
    values = {"instruction": "Add.", "input": "2, 3", "output": "5", "system": "Be brief.", "history": [["hi", "yes"]]}
    prompt = (
        "Be brief.\n\n### Instruction:\nhi\n\n### Response:\nyes\n\n### Instruction:\nAdd.\n\n### Input:\n2, 3"
        "\n\n### Response:\n"
    )
    tokenizer = load_tokenizer(tokenizer_folder(tmp_path / "tokenizer", chat_template=None))

    assert parse(values, has_template=False) == PairRecord(where="data.jsonl:7", prompt=prompt, completion="5")
    assert supervised(values, tokenizer) == (f"{prompt}5<|end|>", "5<|end|>")


def test_a_prompt_of_messages_is_context_and_the_answers_of_its_completion_are_supervised():
    values = {
        "prompt": [USER, ANSWER, USER],
        "completion": [{"role": "assistant", "content": "no"}, {"role": "tool", "content": "7"}, ANSWER],
    }

    assert parse(values) == ChatRecord(where="data.jsonl:7", messages=values["prompt"] + values["completion"], first=3)
    assert supervised(values)[1] == "no<|end|>yes<|end|>"
    assert supervised(values, train_on="last")[1] == "yes<|end|>"
    whole = supervised(values)[0]
    assert supervised(values, train_on="all")[1] == whole.removeprefix("<|user|>")


def test_keys_of_no_shape_beside_one_are_ignored():
    beside = {"id": 3, "source": "web", "category": "qa", "system": "linux", "input": "x", "history": 1, "label": 0.5}

    assert parse({"text": "a"} | beside).text == "a"
    assert messages_of({"messages": [USER, ANSWER]} | beside) == [USER, ANSWER]


BAD_RECORDS = {
    "not a list": ({"conversations": "hi"}, "'conversations' is a string, expected a list of turns", "not_a_list"),
    "no turns": ({"conversations": []}, "'conversations' is empty, expected a document", "empty"),
    "turn not an object": ({"conversations": ["hi"]}, "turn 0 is a string, expected an object", "not_a_message"),
    "unknown speaker": (
        {"conversations": [{"from": "alien", "value": "hi"}]},
        "turn 0 is from 'alien', expected one of human, user, gpt, .*; rename the speaker",
        "unknown_role",
    ),
    "speaker not a string": ({"conversations": [{"from": ["gpt"], "value": "hi"}]}, r"from \['gpt'\]", "unknown_role"),
    "value missing": (
        {"conversations": [{"from": "human"}]},
        r"turn 0 \(human\): 'value' is null, expected a string",
        "not_a_string",
    ),
    "call not JSON": (
        {"conversations": [{"from": "function_call", "value": "add(2)"}]},
        r"turn 0 \(function_call\): 'value' is 'add\(2\)', expected JSON text of an object with 'name'",
        "bad_tool_call",
    ),
    "call without arguments": (
        {"conversations": [{"from": "function_call", "value": '{"name": "add"}'}]},
        "expected JSON text of an object with 'name' and 'arguments'",
        "bad_tool_call",
    ),
    "no calls": ({"conversations": [{"from": "function_call", "value": "[]"}]}, "'value' is '\\[\\]'", "bad_tool_call"),
    "two systems": (
        {"conversations": [{"from": "system", "value": "be long"}], "system": "be brief"},
        "'system' says 'be brief' and the first turn, a system turn too, 'be long', expected one of them",
        "two_systems",
    ),
    "system not a string": (
        {"conversations": [{"from": "human", "value": "hi"}], "system": 3},
        "'system' is an int, expected a string",
        "not_a_string",
    ),
    "tools not JSON": (
        {"messages": [USER], "tools": "add"},
        "'tools' is 'add', expected a list of objects",
        "bad_tools",
    ),
    "tools not objects": ({"messages": [USER], "tools": ["add"]}, r"'tools' is \['add'\], expected", "bad_tools"),
    "tool is an object": ({"messages": [USER], "tools": {"name": "add"}}, "expected a list of objects", "bad_tools"),
    "empty output": ({"instruction": "a", "output": ""}, "'output' is empty", "empty"),
    "empty instruction": ({"instruction": "", "output": "a"}, "'instruction' is empty", "empty"),
    "output not a string": ({"instruction": "a", "output": 3}, "'output' is an int, expected a string", "not_a_string"),
    "input not a string": ({"instruction": "a", "output": "b", "input": []}, "'input' is a list", "not_a_string"),
    "history not a list": (
        {"instruction": "a", "output": "b", "history": "x"},
        "'history' is a string, expected a list",
        "not_a_list",
    ),
    "history not pairs": (
        {"instruction": "a", "output": "b", "history": [["x"]]},
        r"history\[0\] is \['x'\], expected an instruction and its answer",
        "bad_history",
    ),
    "history not strings": (
        {"instruction": "a", "output": "b", "history": [["x", 1]]},
        r"history\[0\] is an int, expected a string",
        "not_a_string",
    ),
    "mixed kinds": (
        {"prompt": "a", "completion": [ANSWER]},
        "'prompt' is a string and 'completion' a list, expected two strings or two lists of messages",
        "mixed_kinds",
    ),
    "prompt twice": (
        {"prompt": [USER], "completion": [USER, ANSWER]},
        "'completion' begins with the 1 messages of 'prompt', expected only what follows",
        "prompt_twice",
    ),
    "no completion": ({"prompt": [USER], "completion": []}, "'completion' is empty", "empty"),
    "unwanted completion": (
        {"prompt": "a", "completion": "b", "label": False},
        "'label' is False, which says whether the completion is wanted",
        "unpaired_preference",
    ),
    "alpaca and text": (
        {"instruction": "a", "output": "b", "text": "c"},
        r"the keys \['instruction', 'output', 'text'\] fit 2 shapes \(text; instruction and output\)",
        "two_shapes",
    ),
    "sharegpt and messages": (
        {"conversations": [USER], "messages": [USER]},
        r"fit 2 shapes \(messages; conversations\)",
        "two_shapes",
    ),
}


@pytest.mark.parametrize(("values", "message", "reason"), BAD_RECORDS.values(), ids=BAD_RECORDS)
def test_a_malformed_record_names_its_place_its_fault_and_its_reason(values, message, reason):
    with pytest.raises(RecordError, match=f"{re.escape('data.jsonl:7')}: .*{message}") as caught:
        parse(values)

    assert caught.value.reason == reason
