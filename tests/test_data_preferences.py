"""Preference pairs: two documents of one record, supervised only in what makes them differ."""

import re

import pytest
from data_helpers import demo_tokenizer, tokenizer_folder
from hypothesis import given
from hypothesis import strategies as st

from hermetic.constants import IGNORE_INDEX
from hermetic.data import load_tokenizer, tokenize_file
from hermetic.data.encode import encode_part
from hermetic.data.sources import SourceRecord
from hermetic.errors import RecordError

USER = {"role": "user", "content": "hi"}
YES = {"role": "assistant", "content": "yes"}
NO = {"role": "assistant", "content": "no"}
END = "<|end|>"


def source(values, number=4):
    return SourceRecord(where=f"pairs.jsonl:{number}", number=number, values=values)


def encode(values, tokenizer=None, **options):
    return encode_part([source(values)], tokenizer=tokenizer or demo_tokenizer(), **options)


def documents(part, tokenizer=None):
    """Each document's text and its supervised text."""
    decode = (tokenizer or demo_tokenizer()).decode
    stops = part.lengths.cumsum().tolist()
    texts = []
    for start, stop in zip([0, *stops], stops, strict=False):
        tokens, labels = part.tokens[start:stop], part.labels[start:stop]
        texts.append((decode(tokens), decode(tokens[labels != IGNORE_INDEX])))
    return texts


CHOSEN = f"<|user|>hi{END}<|assistant|>yes{END}"
REJECTED = f"<|user|>hi{END}<|assistant|>no{END}"


@pytest.mark.parametrize("train_on", ["assistant", "last", "all"])
@pytest.mark.parametrize(
    "values",
    [
        {"prompt": [USER], "chosen": [YES], "rejected": [NO]},
        {"chosen": [USER, YES], "rejected": [USER, NO]},
    ],
    ids=["explicit prompt", "implicit prompt"],
)
def test_a_pair_of_messages_is_two_neighbours_of_one_number_supervised_in_their_answers(values, train_on):
    part = encode(values, train_on=train_on)

    assert documents(part) == [(CHOSEN, f"yes{END}"), (REJECTED, f"no{END}")]
    assert part.roles.tolist() == [1, 2]
    assert part.numbers.tolist() == [4, 4]


@pytest.mark.parametrize("train_on", ["assistant", "last", "all"])
def test_a_pair_of_texts_with_a_prompt_is_supervised_in_its_completions(train_on):
    part = encode({"prompt": "You are", "chosen": " told.", "rejected": " old."}, train_on=train_on)

    assert documents(part) == [(f"You are told.{END}", f" told.{END}"), (f"You are old.{END}", f" old.{END}")]


def test_a_pair_of_texts_without_a_prompt_is_supervised_from_the_first_token_that_differs():
    part = encode({"chosen": "You are told.", "rejected": "You are"})

    assert documents(part) == [(f"You are told.{END}", f" told.{END}"), (f"You are{END}", END)]


def test_earlier_answers_that_both_share_are_context():
    shared = [USER, YES, USER]
    part = encode({"chosen": [*shared, YES, USER, NO], "rejected": [*shared, NO]})

    assert [text for _, text in documents(part)] == [f"yes{END}no{END}", f"no{END}"]
    assert [
        text
        for _, text in documents(
            encode({"chosen": [*shared, YES, USER, NO], "rejected": [*shared, NO]}, train_on="last")
        )
    ] == [
        f"no{END}",
        f"no{END}",
    ]


@given(kinds=st.lists(st.booleans(), min_size=1, max_size=8))
def test_pairs_among_other_records_keep_their_order_and_numbers(kinds):
    pair, text = {"prompt": "a", "chosen": "b", "rejected": "c"}, {"text": "d"}
    records = [source(pair if is_pair else text, number) for number, is_pair in enumerate(kinds, start=1)]

    part = encode_part(records, tokenizer=demo_tokenizer())

    assert part.roles.tolist() == [role for is_pair in kinds for role in ([1, 2] if is_pair else [0])]
    assert part.numbers.tolist() == [n for n, is_pair in enumerate(kinds, start=1) for _ in range(1 + is_pair)]


def test_a_pair_with_one_bad_side_is_skipped_whole(tmp_path):
    strict = "{%- if messages[-1]['content'] == 'no' -%}{{- raise_exception('no') -}}{%- endif -%}"
    template = strict + demo_tokenizer().chat_template
    tokenizer = load_tokenizer(tokenizer_folder(tmp_path / "tokenizer", chat_template=template))

    part = encode({"chosen": [USER, YES], "rejected": [USER, NO]}, tokenizer, on_bad_record="skip")

    assert len(part.lengths) == len(part.tokens) == 0
    assert [(skipped.number, skipped.reason) for skipped in part.skipped] == [(4, "template_refused")]


def test_without_an_end_token_a_text_that_the_other_begins_with_has_nothing_of_its_own(tmp_path):
    tokenizer = load_tokenizer(tokenizer_folder(tmp_path / "tokenizer", eos_token=None))

    with pytest.raises(RecordError, match=r"pairs\.jsonl:4: the tokens of 'chosen' or of 'rejected' are how the other"):
        encode({"chosen": "You are told.", "rejected": "You are"}, tokenizer)


BAD_PAIRS = {
    "equal": ({"chosen": "a", "rejected": "a"}, "'chosen' and 'rejected' are equal", "no_preference"),
    "mixed kinds": (
        {"chosen": "a", "rejected": [NO]},
        "'chosen' is a string and 'rejected' a list, expected two strings or two lists",
        "mixed_kinds",
    ),
    "prompt of another kind": (
        {"prompt": "hi", "chosen": [USER, YES], "rejected": [USER, NO]},
        "'prompt' is a string and 'chosen' a list, .* remove 'prompt' where the messages begin with it",
        "mixed_kinds",
    ),
    "prompt twice": (
        {"prompt": [USER], "chosen": [USER, YES], "rejected": [NO]},
        "'chosen' begins with the 1 messages of 'prompt'",
        "prompt_twice",
    ),
    "empty text": ({"chosen": "a", "rejected": ""}, "'rejected' is empty", "empty"),
    "empty messages": ({"chosen": [USER, YES], "rejected": []}, "'rejected' is empty", "empty"),
    "empty completion": ({"prompt": "a", "chosen": "", "rejected": "b"}, "'chosen' is empty", "empty"),
    "text not a string": ({"chosen": 1, "rejected": "a"}, "'chosen' is an int, expected a string", "not_a_string"),
    "prompts that differ": (
        {"chosen": [{"role": "user", "content": "ho"}, YES], "rejected": [USER, NO]},
        "after the 0 messages that 'chosen' and 'rejected' share, 'chosen' has a message of the user",
        "prompts_differ",
    ),
    "no answer": (
        {"chosen": [USER, YES], "rejected": [USER]},
        "after the 1 messages that 'chosen' and 'rejected' share, 'rejected' has nothing",
        "prompts_differ",
    ),
    "no answer after a prompt": (
        {"prompt": [USER], "chosen": [YES], "rejected": [{"role": "user", "content": "ho"}]},
        "the conversation has no assistant turn among its 1 messages",
        "no_assistant",
    ),
    "half a pair": ({"chosen": "a"}, r"the keys \['chosen'\] are not exactly one known shape", "no_shape"),
}


@pytest.mark.parametrize(("values", "message", "reason"), BAD_PAIRS.values(), ids=BAD_PAIRS)
def test_a_malformed_pair_names_its_place_its_fault_and_its_reason(values, message, reason):
    with pytest.raises(RecordError, match=f"{re.escape('pairs.jsonl:4')}: .*{message}") as caught:
        encode(values)

    assert caught.value.reason == reason


def test_a_pair_has_no_place_among_the_documents_of_one_file(tmp_path):
    path = tmp_path / "pairs.jsonl"
    path.write_text('{"text": "a"}\n{"chosen": "a", "rejected": "b"}\n')

    with pytest.raises(RecordError, match=r"pairs\.jsonl:2: the record is a preference pair, expected records of one"):
        tokenize_file(path, tokenizer=demo_tokenizer())
