"""Which tokens of a conversation are the assistant's: by markers, by rendering, or an error."""

from datetime import date

import numpy as np
import pytest
import transformers
from data_helpers import CHAT, DEMO_TOKENIZER, PLAIN_TEMPLATE, demo_tokenizer, tokenizer_folder
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizer_helpers import (
    KINDS,
    LINES_TEMPLATE,
    MARKED_TEMPLATE,
    PROSE_TEMPLATE,
    UNMARKED_LINES_TEMPLATE,
    UNMARKED_PROSE_TEMPLATE,
    UNMARKED_TEMPLATE,
    chats,
    small_tokenizer,
)

from hermetic.constants import IGNORE_INDEX
from hermetic.data import load_tokenizer
from hermetic.data.chat import ChatEncoder
from hermetic.data.encoder import TextEncoder
from hermetic.data.records import ChatRecord, parse_record
from hermetic.data.rendering import Renderer, Whole
from hermetic.data.sources import SourceRecord
from hermetic.data.spans import EndOfTurn, spans_of_tokens
from hermetic.errors import DataError, RecordError, TemplateError

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
    values = {"messages": [{"role": "user", "content": "hi"}, call]}
    record = parse_record(SourceRecord(where="chats.jsonl:1", number=1, values=values), vocabulary=10)

    tokens, _ = encode_chats([record], tokenizer)[0]

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


def tokens_that_touch(offsets, spans):
    """The definition: a token is in a span if one of its characters is."""
    return [any(start < stop and end > begin for begin, stop in spans) for start, end in offsets]


def rendered_and_encoded(messages, tokenizer):
    encoder = TextEncoder(tokenizer)
    record = chat(messages)
    (rendered,) = Renderer(encoder).render([record], marked=True)
    (encoding,) = encoder.encodings(["here"], [rendered.text])
    return Whole(chat=record, text=rendered.text, marked=rendered.marked, ids=encoding.ids, encoding=encoding)


@pytest.mark.parametrize("template", [MARKED_TEMPLATE, LINES_TEMPLATE, PROSE_TEMPLATE], ids=["end", "lines", "prose"])
@pytest.mark.parametrize("kind", KINDS)
@given(messages=chats())
@settings(max_examples=25, deadline=None)
def test_marked_characters_become_exactly_the_tokens_that_touch_them(kind, template, messages):
    tokenizer = small_tokenizer(kind, template)
    whole = rendered_and_encoded(messages, tokenizer)
    public = tokenizer(whole.text, add_special_tokens=False, return_offsets_mapping=True)

    mask = np.zeros(len(whole.ids), dtype=bool)
    for start, stop in spans_of_tokens(whole):
        mask[start:stop] = True

    assert whole.ids == public["input_ids"]
    assert mask.tolist() == tokens_that_touch(public["offset_mapping"], whole.marked)


def test_the_check_of_marked_characters_sees_a_span_that_is_one_character_off():
    tokenizer = small_tokenizer("byte-level", MARKED_TEMPLATE)
    whole = rendered_and_encoded(turns("hi", "yes"), tokenizer)
    ((start, stop),) = whole.marked

    assert tokens_that_touch(whole.encoding.offsets, [(start, stop)]) != tokens_that_touch(
        whole.encoding.offsets, [(start - 1, stop)]
    )


@given(messages=chats())
@settings(max_examples=60, deadline=None)
def test_tokens_and_mask_are_those_of_apply_chat_template(messages):
    expected = demo_tokenizer().apply_chat_template(messages, return_dict=True, return_assistant_tokens_mask=True)

    tokens, mask = encode_chats([chat(messages)], demo_tokenizer())[0]

    assert tokens.tolist() == expected["input_ids"]
    assert mask.tolist() == [bool(entry) for entry in expected["assistant_masks"]]


def by_tokenizing_every_prefix(encoder):
    encoder._prefixes._cutting = {}
    return encoder


@pytest.mark.parametrize(
    "template", [UNMARKED_TEMPLATE, UNMARKED_LINES_TEMPLATE, UNMARKED_PROSE_TEMPLATE], ids=["end", "lines", "prose"]
)
@pytest.mark.parametrize("kind", KINDS)
@given(messages=chats())
@settings(max_examples=25, deadline=None)
def test_answers_found_at_special_tokens_are_those_that_tokenizing_every_prefix_finds(kind, template, messages):
    encoder = TextEncoder(small_tokenizer(kind, template))

    (quick,) = ChatEncoder(encoder).encode([chat(messages)], "assistant")
    (slow,) = by_tokenizing_every_prefix(ChatEncoder(encoder)).encode([chat(messages)], "assistant")

    if isinstance(slow, DataError):
        assert str(quick) == str(slow)
    else:
        assert quick.input_ids.tolist() == slow.input_ids.tolist()
        assert quick.labels.tolist() == slow.labels.tolist()


def texts_tokenized(encoder, record, monkeypatch):
    texts = []
    tokenize = TextEncoder.token_ids
    monkeypatch.setattr(
        TextEncoder, "token_ids", lambda self, names, given: texts.extend(given) or tokenize(self, names, given)
    )
    encoder.encode([record], "assistant")
    monkeypatch.undo()
    return [text for text in texts if "hi" in text]


def test_no_prefix_is_tokenized_where_special_tokens_tell(monkeypatch):
    encoder = TextEncoder(small_tokenizer("byte-level", UNMARKED_LINES_TEMPLATE))
    record = chat(turns("hi", "yes", "ok", "no"))

    assert texts_tokenized(ChatEncoder(encoder), record, monkeypatch) == []
    # The end of the last answer is not the end of the text: a line break follows it.
    assert len(texts_tokenized(by_tokenizing_every_prefix(ChatEncoder(encoder)), record, monkeypatch)) == 3


def test_an_answer_that_merges_with_the_header_before_it_is_refused():
    tokenizer = small_tokenizer("byte-level", UNMARKED_LINES_TEMPLATE)
    expected = "the prompt before message 1 is not how the whole .*; expected .* first characters do not merge with"

    with pytest.raises(TemplateError, match=expected) as caught:
        encode_chats([chat(turns("hi", "\n\nyes"))], tokenizer)

    assert caught.value.reason == "template_rewrites"


@pytest.mark.parametrize("template", [LINES_TEMPLATE, UNMARKED_LINES_TEMPLATE], ids=["markers", "rendering"])
@given(messages=chats(contents=st.text("abc ", min_size=1, max_size=6)))
@settings(max_examples=40, deadline=None)
def test_on_last_the_supervised_tokens_are_the_last_run_of_those_of_all_answers(template, messages):
    tokenizer = small_tokenizer("byte-level", template)

    ((tokens, every),) = encode_chats([chat(messages)], tokenizer)
    ((same, last),) = encode_chats([chat(messages)], tokenizer, "last")

    begins = np.flatnonzero(every & ~np.roll(every, 1))
    assert tokens.tolist() == same.tolist()
    assert len(begins) == sum(message["role"] == "assistant" for message in messages)
    assert last.tolist() == (every & (np.arange(len(tokens)) >= begins[-1])).tolist()


@given(messages=chats(answered=False))
@settings(max_examples=30, deadline=None)
def test_on_all_every_token_but_the_first_is_supervised_with_answers_and_without(messages):
    ((_, mask),) = encode_chats([chat(messages)], demo_tokenizer(), "all")

    assert mask.tolist() == [False] + [True] * (len(mask) - 1)


@pytest.mark.parametrize("template", [MARKED_TEMPLATE, UNMARKED_TEMPLATE], ids=["markers", "rendering"])
def test_answers_before_the_first_wanted_message_are_context(template):
    tokenizer = small_tokenizer("byte-level", template)
    record = ChatRecord(where="chats.jsonl:1", messages=turns("hi", "yes", "ok", "no", "so", "go"), first=2)

    assert supervised_text(tokenizer, encode_chats([record], tokenizer)[0]) == "no<|end|>go<|end|>"
    assert supervised_text(tokenizer, encode_chats([record], tokenizer, "last")[0]) == "go<|end|>"


def test_an_answer_of_several_marked_pieces_is_one_answer_on_last(tmp_path):
    template = (
        "{%- for m in messages -%}{{- '<|' + m['role'] + '|>' -}}{%- if m['role'] == 'assistant' -%}"
        "{%- generation -%}{{- m['thought'] -}}{%- endgeneration -%}{{- ':' -}}"
        "{%- generation -%}{{- m['content'] + '<|end|>' -}}{%- endgeneration -%}"
        "{%- else -%}{{- m['content'] + '<|end|>' -}}{%- endif -%}{%- endfor -%}"
    )
    tokenizer = with_template(tmp_path, template)
    messages = [message | {"thought": "so"} for message in turns("hi", "yes", "ok", "no")]

    assert supervised_text(tokenizer, encode_chats([chat(messages)], tokenizer, "last")[0]) == "sono<|end|>"


def test_a_marked_template_that_rewrites_earlier_turns_is_refused_only_where_that_matters(tmp_path):
    forgetful = MARKED_TEMPLATE.replace(
        "message['content'] + '<|end|>' -}}{%- endgen",
        "(message['content'] if loop.last else 'cut') + '<|end|>' -}}{%- endgen",
    )
    tokenizer = with_template(tmp_path, forgetful.replace("if message['role']", "if true or message['role']"))
    records = [chat(turns("hi", "yes"), line=1), chat(turns("hi", "thinking", "ok", "no"), line=2)]

    outcomes = ChatEncoder(TextEncoder(tokenizer)).encode(records, "last")

    assert [isinstance(outcome, DataError) for outcome in outcomes] == [False, True]
    assert "chats.jsonl:2: the conversation before message 3 is not how the whole" in str(outcomes[1])
    assert outcomes[1].reason == "template_rewrites"
    assert len(encode_chats(records, tokenizer)) == 2


def test_a_refused_conversation_costs_no_other():
    tokenizer = small_tokenizer(
        "byte-level", "{{- raise_exception('no') if messages | length == 3 -}}" + MARKED_TEMPLATE
    )
    records = [chat(turns(*["hi"] * count), line=count) for count in (2, 3, 4)]

    outcomes = ChatEncoder(TextEncoder(tokenizer)).encode(records, "assistant")

    assert [getattr(outcome, "reason", None) for outcome in outcomes] == [None, "template_refused", None]


def test_a_conversation_without_an_answer_is_an_error_unless_all_is_trained():
    messages = [{"role": "user", "content": "hi"}]

    with pytest.raises(
        RecordError, match=r"chats\.jsonl:1: the conversation has no assistant turn among its 1"
    ) as caught:
        encode_chats([chat(messages)], demo_tokenizer())

    assert caught.value.reason == "no_assistant"


def test_half_a_surrogate_in_a_key_that_only_the_template_reads_is_an_error(tmp_path):
    tokenizer = with_template(
        tmp_path, MARKED_TEMPLATE.replace("message['content']", "message['content'] + message['x']")
    )
    messages = [message | {"x": "\udc00"} for message in turns("hi", "yes")]

    with pytest.raises(RecordError, match="the rendered conversation holds half of a surrogate pair") as caught:
        encode_chats([chat(messages)], tokenizer)

    assert caught.value.reason == "not_unicode"


END = EndOfTurn(lead=[9], closing=frozenset({2}), blank=frozenset({9}))


@pytest.mark.parametrize(
    ("ids", "span", "expected"),
    [
        ([5, 6, 2, 9, 7], (1, 2), (1, 3)),
        ([5, 6, 2, 9, 7], (1, 3), (1, 3)),
        ([5, 6, 2, 9, 7], (1, 4), (1, 3)),
        ([5, 6, 9, 2, 9, 7], (1, 2), (1, 4)),
        ([5, 6, 9, 7], (1, 2), (1, 2)),
        ([5, 6, 9, 9, 7], (1, 4), (1, 4)),
        ([5, 6, 2, 2, 7], (1, 2), (1, 4)),
        ([5, 2, 9, 6, 2], (1, 4), (1, 5)),
        ([5, 2, 7], (1, 1), (1, 2)),
        ([5, 6], (1, 2), (1, 2)),
    ],
    ids=[
        "closing after",
        "closing inside",
        "blank inside",
        "closing after a blank",
        "blank but no closing",
        "blanks of its own",
        "two closings",
        "closing within the content",
        "empty answer",
        "end of the text",
    ],
)
def test_an_answer_ends_with_the_closing_tokens_that_follow_it(ids, span, expected):
    assert END.up_to_end(ids, span) == expected


def test_the_end_of_a_turn_is_read_off_a_trial_in_its_order():
    newline = demo_tokenizer()("\n")["input_ids"]
    ids = demo_tokenizer()("<|user|>a<|assistant|>b\n<|end|>\n")["input_ids"]

    assert EndOfTurn.from_trial(ids, demo_tokenizer()) == EndOfTurn(
        lead=newline, closing=frozenset({demo_tokenizer().eos_token_id}), blank=frozenset(newline)
    )


def test_an_unknown_text_is_no_place_where_a_text_was_cut_although_its_token_is_special():
    encoder = TextEncoder(small_tokenizer("metaspace, always", UNMARKED_PROSE_TEMPLATE))
    unknown = encoder.tokenizer.unk_token_id
    finder = ChatEncoder(encoder)._prefixes

    found = []
    for text in ("<unk> b", "\u16a0 b"):
        (encoding,) = encoder.encodings(["here"], [text])
        assert unknown in encoding.ids
        whole = Whole(chat=chat([]), text=text, marked=(), ids=encoding.ids, encoding=encoding)
        found.append(finder._last_cut(whole, text.index("b")))

    assert found == [0, None]


def test_only_added_tokens_that_take_in_nothing_around_them_cut_a_text_first():
    encoder = TextEncoder(small_tokenizer("byte-level", MARKED_TEMPLATE))
    added = {token.content for token in encoder.tokenizer.added_tokens_decoder.values()}

    assert set(ChatEncoder(encoder)._prefixes._cutting.values()) == added - {"<tool>", "</tool>"}
    assert {"<tool>", "</tool>"} < added


def test_a_template_that_rewrites_earlier_turns_without_changing_their_length_is_refused(tmp_path):
    louder = PLAIN_TEMPLATE.replace(
        "message['content']", "(message['content'] if loop.last else message['content'] | upper)"
    )
    tokenizer = with_template(tmp_path, louder)

    with pytest.raises(TemplateError, match="the prompt before message 1 is not how the whole"):
        encode_chats([chat(turns("hi", "yes", "ok", "no"))], tokenizer)


def test_a_marked_template_whose_prompt_says_more_than_an_answer_does_knows_its_last_answer(tmp_path):
    thinking = MARKED_TEMPLATE.replace("{{- '<|assistant|>' -}}", "{{- '<|assistant|>think: ' -}}")
    tokenizer = with_template(tmp_path, thinking)

    encoded = encode_chats([chat(turns("hi", "yes", "ok", "no"))], tokenizer, "last")[0]

    assert thinking != MARKED_TEMPLATE
    assert supervised_text(tokenizer, encoded) == "no<|end|>"


def test_several_templates_of_which_none_is_the_default_are_no_template(tmp_path):
    tokenizer = with_template(tmp_path, MARKED_TEMPLATE)
    tokenizer.chat_template = {"tool_use": MARKED_TEMPLATE}

    with pytest.raises(TemplateError, match=r"has only the chat templates \['tool_use'\], expected a default one"):
        encode_chats([chat(turns("hi", "yes"))], tokenizer)


@given(
    day=st.dates(date(1990, 1, 1), date(2100, 1, 1)),
    form=st.lists(st.sampled_from(["%d", "%b", "%Y", "%B", "%m", "%y", "%A", " ", "-", ", the "]), max_size=6).map(
        "".join
    ),
)
@settings(max_examples=30)
def test_a_date_that_is_given_is_what_a_template_writes_for_today(day, form):
    template = "{{ strftime_now(" + repr(form) + ") }}|{% for message in messages %}{{ message.content }}{% endfor %}"
    chat = ChatRecord(where="a:1", messages=[{"role": "user", "content": "hi"}])
    encoder = TextEncoder(small_tokenizer("byte-level", template))

    (rendered,) = Renderer(encoder, day).render([chat])

    assert rendered.text == f"{day.strftime(form)}|hi"
