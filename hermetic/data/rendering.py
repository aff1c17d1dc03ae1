"""Conversations to text, by the tokenizer's chat template.

Algorithm: conversations that share their tools are rendered together, by transformers' own renderer, which keeps
the compiled template; a tokenizer whose class renders in its own way is asked itself. Guarantee: the text is that of
``apply_chat_template``; a conversation that the template refuses is an error of its own and costs no other.
Price: one run of the template for each conversation.
"""

import itertools
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date
from functools import lru_cache
from typing import Any, Final, TypeAlias

from hermetic.data.dependencies import import_optional
from hermetic.data.encoded import Span
from hermetic.data.encoder import TextEncoder
from hermetic.data.shapes.checks import check_unicode
from hermetic.data.shapes.types import ChatRecord
from hermetic.errors import DataError, RecordError, TemplateError

__all__ = ["Rendered", "Renderer", "Whole"]

_CLOCK: Final = "strftime_now"
_DIRECTIVES: Final = "aAbBcdHIjmMpSUwWxXyYZ"
_GENERATION_MARKER: Final = re.compile(r"\{%[-+]?\s*generation\s*[-+]?%\}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Rendered:
    """A conversation as text."""

    text: str
    marked: Sequence[Span] = ()
    """Characters that the template marks as the assistant's, in order, if it was asked for them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Whole:
    """A whole conversation: its text, its tokens and, where they were asked for, the characters of each token."""

    chat: ChatRecord
    text: str
    marked: Sequence[Span]
    ids: list[int]
    encoding: Any = None


Batch: TypeAlias = Callable[[Sequence[ChatRecord]], list[Rendered]]


class Renderer:
    """The chat template of a tokenizer.

    Args:
        encoder: the tokenizer.
        today: the date of templates that write one (``strftime_now``); by default that of the clock.
    """

    def __init__(self, encoder: TextEncoder, today: date | None = None) -> None:
        self._tokenizer = encoder.tokenizer
        self._today = today
        self._plain = encoder.backend is not None

    def check_has_template(self, where: str) -> None:
        """Without a template no conversation at all can be rendered: no fault of the first one.

        Raises:
            TemplateError: If the tokenizer has none.
            MissingDependencyError: If Jinja is not installed.
        """
        import_optional("jinja2")
        template = self._tokenizer.chat_template
        if template is None or (isinstance(template, dict) and "default" not in template):
            kind = "no chat template" if template is None else f"only the chat templates {sorted(template)}"
            raise TemplateError(
                f"{where}: the tokenizer {self._tokenizer.name_or_path!r} has {kind}, expected a default one "
                "to render a conversation; put a 'chat_template' into its tokenizer_config.json, or use the "
                "tokenizer of the model's chat-tuned sibling",
                reason="no_template",
            )

    def has_markers(self, chat: ChatRecord) -> bool:
        """Whether the template marks what the assistant writes, and the tokenizer can follow it."""
        return self._plain and _is_marked(self._tokenizer.get_chat_template(tools=chat.tools))

    def render(
        self, chats: Sequence[ChatRecord], *, prompt: bool = False, marked: bool = False
    ) -> list[Rendered | DataError]:
        """Render conversations.

        Args:
            chats: any number of them.
            prompt: whether the prompt for an answer of the assistant stands at the end.
            marked: whether the characters between generation markers are wanted.
        """
        rendered: list[Rendered | DataError] = []
        for _, group in itertools.groupby(chats, key=lambda chat: repr(chat.tools)):
            rendered += _each(lambda batch: self._render(batch, prompt=prompt, marked=marked), list(group))
        return rendered

    def _render(self, chats: Sequence[ChatRecord], *, prompt: bool, marked: bool) -> list[Rendered]:
        """Conversations with the same tools."""
        messages = [chat.messages for chat in chats]
        tools = chats[0].tools
        if not self._plain:
            texts = self._tokenizer.apply_chat_template(
                messages,
                tools=tools,
                chat_template=self._template(tools),
                tokenize=False,
                add_generation_prompt=prompt,
            )
            return [Rendered(text=text) for text in texts]
        transformers = import_optional("transformers.utils.chat_template_utils")
        texts, spans = transformers.render_jinja_template(
            conversations=messages,
            tools=tools,
            chat_template=self._template(tools),
            add_generation_prompt=prompt,
            return_assistant_tokens_mask=marked,
            **self._tokenizer.special_tokens_map,
        )
        marks = spans if marked else [()] * len(texts)
        return [Rendered(text=text, marked=found) for text, found in zip(texts, marks, strict=True)]

    def _template(self, tools: list[Any] | None) -> str:
        template: str = self._tokenizer.get_chat_template(tools=tools)
        return template if self._today is None else _dated(template, self._today)


@lru_cache
def _dated(template: str, today: date) -> str:
    """The template with a ``strftime_now`` of its own, which hides that of transformers, in front.

    transformers lets no function through to a template, so this one is written in Jinja.
    """
    if _CLOCK not in template:
        return template
    parts = "".join(f"|replace('%{letter}', {today.strftime(f'%{letter}')!r})" for letter in _DIRECTIVES)
    return "{%- macro " + _CLOCK + "(format) -%}{{- format" + parts + " -}}{%- endmacro -%}" + template


@lru_cache
def _is_marked(template: str) -> bool:
    return _GENERATION_MARKER.search(template) is not None


def _each(render: Batch, chats: Sequence[ChatRecord]) -> list[Rendered | DataError]:
    try:
        return [_checked(*pair) for pair in zip(chats, render(chats), strict=True)]
    except (ImportError, MemoryError):
        raise  # no fault of a record
    except Exception as error:  # noqa: BLE001 - a template is foreign code and fails in its own ways
        why = " ".join(str(error).split())
        if len(chats) > 1:
            return [result for chat in chats for result in _each(render, [chat])]
        return [
            TemplateError(
                f"{chats[0].where}: the chat template cannot render this conversation ({why}); "
                "expected turns in the order and of the kind that the template allows; change "
                "the record or the template",
                reason="template_refused",
            )
        ]


def _checked(chat: ChatRecord, rendered: Rendered) -> Rendered | DataError:
    """A key that only the template reads may hold what no tokenizer takes."""
    try:
        check_unicode(f"{chat.where}: the rendered conversation", rendered.text)
    except RecordError as error:
        return error
    return rendered
