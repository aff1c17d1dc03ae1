"""Which tokens of a conversation are the assistant's: by markers, by rendering, or an error."""

import numpy as np
import pytest
import transformers
from data_helpers import CHAT, DEMO_TOKENIZER, PLAIN_TEMPLATE, demo_tokenizer, tokenizer_folder
from hypothesis import given, settings
from hypothesis import strategies as st

from hermetic.data import load_tokenizer
from hermetic.constants import IGNORE_INDEX
from hermetic.data.chat import ChatEncoder
from hermetic.data.encoder import TextEncoder
from hermetic.data.records import ChatRecord
from hermetic.errors import DataError, TemplateError

MARKED = "{%- generation -%}"
DEMO_TEMPLATE = demo_tokenizer().chat_template
CONTENTS = st.text(st.characters(codec="utf-8", exclude_characters="<|>"), min_size=1, max_size=12)


def chat(messages, line=1, tools=None):
    return ChatRecord(where=f"chats.jsonl:{line}", messages=messages, tools=tools)


def encode_chats(chats, tokenizer, train_on="assistant"):
    """The tokens of each conversation and whether each is supervised; the first error is raised."""
    encoded = []
    for outcome in ChatEncoder(TextEncoder(tokenizer)).encode(chats, train_on):
        if isinstance(outcome, DataError):
            raise outcome
        encoded.append((outcome.input_ids, outcome.labels != IGNORE_INDEX))
    return encoded


def turns(*contents):
    roles = ("user", "assistant")
    return [{"role": roles[i % 2], "content": content} for i, content in enumerate(contents)]


def with_template(tmp_path, template, **changes):
    return load_tokenizer(tokenizer_folder(tmp_path / "tokenizer", chat_template=template, **changes))


def supervised_text(tokenizer, encoded):
    tokens, mask = encoded
    return tokenizer.decode(tokens[mask])


@pytest.fixture(scope="module")
def plain_tokenizer(tmp_path_factory):
    return with_template(tmp_path_factory.mktemp("plain"), PLAIN_TEMPLATE)


def test_the_assistant_mask_of_a_short_chat_is_exactly_its_answers_and_ends_of_turn():
    tokens, mask = encode_chats([chat(turns("hi", "yes", "ok", "no"))], demo_tokenizer())[0]
    spelled = demo_tokenizer().convert_ids_to_tokens(tokens)

    assert "".join(spelled) == "<|user|>hi<|end|><|assistant|>yes<|end|><|user|>ok<|end|><|assistant|>no<|end|>"
    assert "".join(np.array(spelled)[mask]) == "yes<|end|>no<|end|>"
    assert tokens.dtype == np.int32
    assert mask.dtype == np.bool_


@given(contents=st.lists(CONTENTS, min_size=2, max_size=6))
@settings(max_examples=60)
def test_markers_and_rendering_agree_on_a_template_that_has_both(plain_tokenizer, contents):
    assert MARKED in DEMO_TEMPLATE
    assert "generation -%}" not in plain_tokenizer.chat_template
    conversation = [chat(turns(*contents))]

    (marked_tokens, marked_mask) = encode_chats(conversation, demo_tokenizer())[0]
    (plain_tokens, plain_mask) = encode_chats(conversation, plain_tokenizer)[0]

    assert marked_tokens.tolist() == plain_tokens.tolist()
    assert marked_mask.tolist() == plain_mask.tolist()
    assert marked_mask.any()


def test_without_markers_each_answer_and_its_end_of_turn_are_found(plain_tokenizer):
    encoded = encode_chats([chat(CHAT["messages"])], plain_tokenizer)[0]

    assert supervised_text(plain_tokenizer, encoded) == "5<|end|>You are welcome.<|end|>"


@pytest.mark.parametrize(
    ("inside", "after"),
    [("", "<|end|>\\n"), ("<|end|>", "\\n"), ("<|end|>\\n", "")],
    ids=["none", "end", "break"],
)
def test_a_turn_ends_with_its_end_of_turn_token_wherever_the_markers_end(tmp_path, inside, after):
    template = (
        "{%- for m in messages -%}{%- if m['role'] == 'assistant' -%}{{- '<|assistant|>' -}}"
        "{%- generation -%}{{- m['content'] + 'INSIDE' -}}{%- endgeneration -%}{{- 'AFTER' -}}"
        "{%- else -%}{{- '<|user|>' + m['content'] + '<|end|>\\n' -}}{%- endif -%}{%- endfor -%}"
    )
    tokenizer = with_template(tmp_path, template.replace("INSIDE", inside).replace("AFTER", after))
    tokens, mask = encode_chats([chat(turns("hi", "yes", "ok", "no"))], tokenizer)[0]

    assert tokenizer.decode(tokens) == (
        "<|user|>hi<|end|>\n<|assistant|>yes<|end|>\n<|user|>ok<|end|>\n<|assistant|>no<|end|>\n"
    )
    assert tokenizer.decode(tokens[mask]) == "yes<|end|>no<|end|>"


def test_without_markers_the_line_break_after_an_end_of_turn_is_not_supervised(tmp_path):
    tokenizer = with_template(tmp_path, PLAIN_TEMPLATE.replace("'<|end|>'", "'<|end|>\\n'"))
    encoded = encode_chats([chat(turns("hi", "yes", "ok", "no"))], tokenizer)[0]

    assert supervised_text(tokenizer, encoded) == "yes<|end|>no<|end|>"


def test_system_user_and_tool_turns_are_never_supervised(plain_tokenizer):
    messages = [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "add"},
        {"role": "assistant", "content": "calling"},
        {"role": "tool", "content": "7"},
        {"role": "assistant", "content": "seven"},
        {"role": "user", "content": "bye"},
    ]
    for tokenizer in (demo_tokenizer(), plain_tokenizer):
        encoded = encode_chats([chat(messages)], tokenizer)[0]
        assert supervised_text(tokenizer, encoded) == "calling<|end|>seven<|end|>"


def test_many_conversations_come_back_in_order():
    conversations = [chat(turns(f"say {n}", str(n)), line=n) for n in range(50)]
    texts = [supervised_text(demo_tokenizer(), encoded) for encoded in encode_chats(conversations, demo_tokenizer())]

    assert texts == [f"{n}<|end|>" for n in range(50)]


def test_each_conversation_is_rendered_with_its_own_tools(tmp_path):
    template = "{%- if tools -%}{{- tools[0]['name'] + ': ' -}}{%- endif -%}" + DEMO_TEMPLATE
    tokenizer = with_template(tmp_path, template)
    add, multiply = [{"name": "add"}], [{"name": "multiply"}]
    conversations = [chat(turns("hi", "yes"), tools=tools) for tools in (add, None, multiply, multiply)]

    texts = [tokenizer.decode(tokens) for tokens, _ in encode_chats(conversations, tokenizer)]

    rendered = "<|user|>hi<|end|><|assistant|>yes<|end|>"
    assert texts == [f"add: {rendered}", rendered, f"multiply: {rendered}", f"multiply: {rendered}"]


def test_an_answer_of_tool_calls_reaches_the_template_without_content(tmp_path):
    template = (
        "{%- for m in messages -%}{{- '<|' + m['role'] + '|>' -}}{%- generation -%}"
        "{{- m['content'] if m['content'] is defined else m['tool_calls'][0]['name'] -}}"
        "{{- '<|end|>' -}}{%- endgeneration -%}{%- endfor -%}"
    )
    tokenizer = with_template(tmp_path, template)
    call = {"role": "assistant", "content": None, "tool_calls": [{"name": "add"}]}

    tokens, _ = encode_chats([chat([{"role": "user", "content": "hi"}, call])], tokenizer)[0]

    assert tokenizer.decode(tokens) == "<|user|>hi<|end|><|assistant|>add<|end|>"


def test_a_tokenizer_written_in_python_is_masked_by_rendering_even_under_markers():
    tokenizer = transformers.ByT5Tokenizer()
    tokenizer.chat_template = DEMO_TEMPLATE.replace("<|end|>", "</s>")
    assert not tokenizer.is_fast

    encoded = encode_chats([chat(turns("hi", "yes", "ok", "no"))], tokenizer)[0]

    assert supervised_text(tokenizer, encoded) == "yes</s>no</s>"


def test_a_template_that_rewrites_earlier_turns_is_refused_with_the_first_difference(tmp_path):
    forgetful = PLAIN_TEMPLATE.replace(
        "message['content']", "(message['content'] if loop.last or message['role'] == 'user' else 'cut')"
    )
    tokenizer = with_template(tmp_path, forgetful)
    expected = (
        r"chats\.jsonl:9: the conversation up to message 1 is not how the whole conversation begins: "
        r"from token 4 on it reads '<\|user\|>hi<\|end\|><\|assistant\|>thinking' "
        r"instead of '<\|user\|>hi<\|end\|><\|assistant\|>cut<\|end\|>.*'; expected a chat template that"
    )

    with pytest.raises(TemplateError, match=expected):
        encode_chats([chat(turns("hi", "thinking", "ok", "no"), line=9)], tokenizer)


def test_a_generation_prompt_that_the_answer_does_not_continue_is_refused(tmp_path):
    tokenizer = with_template(tmp_path, PLAIN_TEMPLATE.replace("{{- '<|assistant|>' -}}", "{{- '<|tool|>' -}}"))

    with pytest.raises(TemplateError, match="the prompt before message 1 is not how the whole conversation begins"):
        encode_chats([chat(turns("hi", "yes"))], tokenizer)


def test_a_tokenizer_without_a_chat_template_says_how_to_add_one(tmp_path):
    tokenizer = with_template(tmp_path, None)

    expected = r"chats\.jsonl:1: the tokenizer '.*' has no chat template, .*put a 'chat_template' into its"
    with pytest.raises(TemplateError, match=expected):
        encode_chats([chat(turns("hi", "yes"))], tokenizer)


@pytest.mark.parametrize("template", [DEMO_TEMPLATE, PLAIN_TEMPLATE], ids=["markers", "rendering"])
def test_a_conversation_that_the_template_refuses_is_named_among_many(tmp_path, template):
    strict = "{%- if messages[0]['content'] == 'bad' -%}{{- raise_exception('no thanks') -}}{%- endif -%}" + template
    tokenizer = with_template(tmp_path, strict)
    conversations = [chat(turns("bad" if line == 3 else "hi", "yes"), line=line) for line in range(1, 6)]

    expected = r"chats\.jsonl:3: the chat template cannot render this conversation \(no thanks\)"
    with pytest.raises(TemplateError, match=expected):
        encode_chats(conversations, tokenizer)


def test_a_template_that_cannot_render_one_question_and_its_answer_is_refused(tmp_path):
    demanding = "{%- if messages | length < 4 -%}{{- raise_exception('too short') -}}{%- endif -%}" + DEMO_TEMPLATE
    tokenizer = with_template(tmp_path, demanding)

    expected = "a trial of one user and one assistant turn, which shows how a turn ends: the chat .*too short"
    with pytest.raises(TemplateError, match=expected):
        encode_chats([chat(turns("hi", "yes", "ok", "no"))], tokenizer)


def test_a_conversation_that_begins_with_the_assistant_needs_markers(plain_tokenizer):
    messages = [{"role": "assistant", "content": "welcome"}, {"role": "user", "content": "hi"}]

    assert supervised_text(demo_tokenizer(), encode_chats([chat(messages)], demo_tokenizer())[0]) == "welcome<|end|>"
    with pytest.raises(TemplateError, match="begins with the assistant, so there is nothing to render before"):
        encode_chats([chat(messages)], plain_tokenizer)


def test_the_demo_tokenizer_is_found_where_the_package_ships_it():
    assert sorted(path.name for path in DEMO_TOKENIZER.iterdir()) == [
        "tokenizer.json",
        "tokenizer_config.json",
    ]
