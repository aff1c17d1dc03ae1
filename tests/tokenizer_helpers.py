"""For the tests of hermetic.data: small tokenizers of several kinds, and conversations that are hard on them."""

import functools

import transformers
from data_helpers import demo_tokenizer
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from hermetic.demo.conversations import conversations

UNKNOWN = "<unk>"
SPECIAL = ["<|pad|>", "<|end|>", "<|system|>", "<|user|>", "<|assistant|>", "<|tool|>", UNKNOWN]

MARKED_TEMPLATE = demo_tokenizer().chat_template
UNMARKED_TEMPLATE = MARKED_TEMPLATE.replace("{%- generation -%}", "").replace("{%- endgeneration -%}", "")

# As many a chat template has it: a header with a line break, and one after the end of the turn.
LINES_TEMPLATE = (
    "{%- for m in messages -%}{%- if m['role'] == 'assistant' -%}{{- '<|assistant|>assistant\\n' -}}{%- generation -%}"
    "{{- m['content'] + '<|end|>' -}}{%- endgeneration -%}{{- '\\n' -}}{%- else -%}"
    "{{- '<|' + m['role'] + '|>' + m['role'] + '\\n' + m['content'] + '<|end|>\\n' -}}{%- endif -%}{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|assistant|>assistant\\n' -}}{%- endif -%}"
)
UNMARKED_LINES_TEMPLATE = LINES_TEMPLATE.replace("{%- generation -%}", "").replace("{%- endgeneration -%}", "")

# No special token at all: borders lie within ordinary text.
PROSE_TEMPLATE = (
    "{%- for m in messages -%}{%- if m['role'] == 'assistant' -%}{{- 'Assistant: ' -}}{%- generation -%}"
    "{{- m['content'] -}}{%- endgeneration -%}{{- '\\n' -}}{%- else -%}{{- 'User: ' + m['content'] + '\\n' -}}"
    "{%- endif -%}{%- endfor -%}{%- if add_generation_prompt -%}{{- 'Assistant: ' -}}{%- endif -%}"
)

UNMARKED_PROSE_TEMPLATE = PROSE_TEMPLATE.replace("{%- generation -%}", "").replace("{%- endgeneration -%}", "")

PIECES = [
    "a", " ", "  ", "\n", "\t", ".", "hello", " world", "é", "e\u0301", "ﬁ", "ß", "İ", "漢字", "😀", "👩‍👧", "\x00",
    "<|end|>", "<|user|>", "<|assistant|>", "<|end", "|>", "<tool>", " <tool> ", " </tool>\n",
    "<p>&amp;</p>", "\u200b", "\ufeff",
]  # fmt: skip
"""Whitespace, composed and decomposed letters, wide characters, and the tokenizers' own added tokens."""

CONTENTS = st.lists(st.sampled_from(PIECES), max_size=6).map("".join) | st.text(
    st.characters(codec="utf-8"), max_size=8
)
ROLES = st.sampled_from(["system", "user", "tool", "assistant"])


@st.composite
def chats(draw, *, contents=CONTENTS, answered=True):
    """Messages that begin with a user and hold an answer of the assistant."""
    middle = draw(st.lists(ROLES, max_size=5))
    roles = ["user", *middle, *(["assistant"] if answered else [])]
    return [{"role": role, "content": draw(contents)} for role in roles]


def _corpus():
    for conversation in conversations(count=60, seed=0):
        yield from (message["content"] for message in conversation["messages"])
    yield from ["assistant\n", "user\n", "漢字 😀 é ß ﬁ", *["a\n\n\nb"] * 200]


def _trained(model, trainer, **parts):
    tokenizer = Tokenizer(model)
    for name, part in parts.items():
        setattr(tokenizer, name, part)
    tokenizer.train_from_iterator(_corpus(), trainer)
    tokenizer.add_tokens([AddedToken("<tool>", normalized=True)])
    tokenizer.add_tokens([AddedToken("</tool>", lstrip=True, rstrip=True, normalized=False)])
    names = {"eos_token": "<|end|>", "pad_token": "<|pad|>", "unk_token": UNKNOWN}
    return transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names)


def _byte_level(*, trim_offsets, **parts):
    trainer = trainers.BpeTrainer(
        vocab_size=500, special_tokens=SPECIAL, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
    )
    return _trained(
        models.BPE(),
        trainer,
        pre_tokenizer=pre_tokenizers.ByteLevel(add_prefix_space=False),
        decoder=decoders.ByteLevel(),
        post_processor=processors.ByteLevel(trim_offsets=trim_offsets),
        **parts,
    )


def _metaspace(scheme):
    return _trained(
        models.BPE(unk_token=UNKNOWN),
        trainers.BpeTrainer(vocab_size=400, special_tokens=SPECIAL),
        pre_tokenizer=pre_tokenizers.Metaspace(prepend_scheme=scheme),
        decoder=decoders.Metaspace(prepend_scheme=scheme),
    )


def _words():
    return _trained(
        models.WordPiece(unk_token=UNKNOWN),
        trainers.WordPieceTrainer(vocab_size=400, special_tokens=SPECIAL),
        normalizer=normalizers.BertNormalizer(),
        pre_tokenizer=pre_tokenizers.BertPreTokenizer(),
        decoder=decoders.WordPiece(),
    )


_KINDS = {
    "byte-level": lambda: _byte_level(trim_offsets=False),
    "byte-level, trimmed": lambda: _byte_level(trim_offsets=True),
    "byte-level, composed": lambda: _byte_level(trim_offsets=False, normalizer=normalizers.NFKC()),
    "metaspace, always": lambda: _metaspace("always"),
    "metaspace, first": lambda: _metaspace("first"),
    "words": _words,
}
KINDS = list(_KINDS)


@functools.cache
def small_tokenizer(kind, template):
    tokenizer = _KINDS[kind]()
    tokenizer.chat_template = template
    return tokenizer
