"""Conversations to tokens, and which of these tokens are supervised.

    train_on    supervised
    all         every token
    assistant   every answer of the assistant, each up to its end of turn
    last        the last one alone

Where the answers are is found in one of two ways, chosen by the template, never by luck:

*   A template with ``{% generation %}`` markers says itself what the assistant writes. Of the answers that are
    not wanted (all but the last; those of a prompt) only their number of characters matters, which is found by
    rendering the conversation up to the first that is wanted.
*   For any other template each answer is found by rendering (see :mod:`hermetic.data.prefixes`): before it
    stands what the model will see when it has to answer.

    messages   user: hi            assistant: yes          user: ok
    tokens     <user> hi <end>     <assistant> yes <end>   <user> ok <end>
    assistant    0    0    0            0       1    1       0    0    0

Guarantee: the tokens are those of ``apply_chat_template``; a conversation whose answers cannot be told from the
rest for certain is a :class:`TemplateError`, never a guess. A conversation that cannot be rendered costs no other.
Price: one run of the template and of the tokenizer for each conversation; without markers two more runs of the
template for each answer.
"""

from collections.abc import Callable, Sequence
from datetime import date
from functools import cached_property
from typing import Any, Final, Literal, TypeAlias

from hermetic.data.encoded import Outcome, Span, document
from hermetic.data.encoder import TextEncoder
from hermetic.data.prefixes import PrefixFinder
from hermetic.data.rendering import Rendered, Renderer, Whole
from hermetic.data.shapes.types import ChatRecord
from hermetic.data.spans import EndOfTurn, spans_of_tokens
from hermetic.errors import DataError, RecordError, TemplateError

__all__ = ["ChatEncoder", "TrainOn"]

TrainOn: TypeAlias = Literal["all", "assistant", "last"]

_TRIAL: Final = ChatRecord(
    where="a trial of one user and one assistant turn, which shows how a turn ends",
    messages=[{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}],
)


class ChatEncoder:
    """Renders, tokenizes and labels conversations.

    Args:
        encoder: the tokenizer.
        today: the date of templates that write one; by default that of the clock.
    """

    def __init__(self, encoder: TextEncoder, today: date | None = None) -> None:
        self._encoder = encoder
        self._renderer = Renderer(encoder, today)
        self._prefixes = PrefixFinder(encoder, self._renderer)

    def encode(self, chats: Sequence[ChatRecord], train_on: TrainOn) -> list[Outcome]:
        """One document, or the reason why there is none, for each conversation.

        Raises:
            TemplateError: If the tokenizer has no chat template, or one that does not render two short turns.
        """
        if not chats:
            return []
        self._renderer.check_has_template(chats[0].where)
        outcomes: dict[int, Outcome] = {}
        kinds: dict[_Encode, list[int]] = {}
        for index, chat in enumerate(chats):
            if train_on != "all" and not _wanted(chat, train_on):
                outcomes[index] = _no_answer(chat)
            else:
                kinds.setdefault(self._way(chat, train_on), []).append(index)
        for encode, indices in kinds.items():
            outcomes.update(zip(indices, encode([chats[index] for index in indices], train_on), strict=True))
        return [outcomes[index] for index in range(len(chats))]

    def _way(self, chat: ChatRecord, train_on: TrainOn) -> "_Encode":
        if train_on == "all":
            return self._encode_all
        return self._encode_by_markers if self._renderer.has_markers(chat) else self._encode_by_prefixes

    def _encode_all(self, chats: Sequence[ChatRecord], _: TrainOn) -> list[Outcome]:
        wholes = self._tokenized(chats, self._renderer.render(chats), characters=False)
        return [
            whole if isinstance(whole, DataError) else document(whole.chat.where, whole.ids, [(0, len(whole.ids))])
            for whole in wholes
        ]

    def _encode_by_markers(self, chats: Sequence[ChatRecord], train_on: TrainOn) -> list[Outcome]:
        rendered = self._wanted_marks(chats, self._renderer.render(chats, marked=True), train_on)
        return [
            whole if isinstance(whole, DataError) else self._labelled(whole, spans_of_tokens(whole))
            for whole in self._tokenized(chats, rendered, characters=True)
        ]

    def _encode_by_prefixes(self, chats: Sequence[ChatRecord], train_on: TrainOn) -> list[Outcome]:
        fast = self._encoder.backend is not None
        rendered = [
            _begins_with_assistant(chat) if _wanted(chat, train_on)[0] == 0 else found
            for chat, found in zip(chats, self._renderer.render(chats), strict=True)
        ]
        wholes = self._tokenized(chats, rendered, characters=fast)
        good = [whole for whole in wholes if isinstance(whole, Whole)]
        spans = iter(self._prefixes.find(good, [_wanted(whole.chat, train_on) for whole in good]))
        return [whole if isinstance(whole, DataError) else self._labelled(whole, next(spans)) for whole in wholes]

    def _tokenized(
        self, chats: Sequence[ChatRecord], rendered: Sequence[Rendered | DataError], *, characters: bool
    ) -> list[Whole | DataError]:
        """Tokens of all conversations that could be rendered; with their characters if these are needed."""
        good = [pair for pair in zip(chats, rendered, strict=True) if isinstance(pair[1], Rendered)]
        names, texts = (
            [chat.where for chat, _ in good],
            [found.text for _, found in good if isinstance(found, Rendered)],
        )
        encoded = iter((self._encoder.encodings if characters else self._encoder.token_ids)(names, texts))
        return [
            found if isinstance(found, DataError) else _whole(chat, found, next(encoded), characters=characters)
            for chat, found in zip(chats, rendered, strict=True)
        ]

    def _labelled(self, whole: Whole, spans: Sequence[Span] | DataError) -> Outcome:
        if isinstance(spans, DataError):
            return spans
        ended = [self._end_of_turn.up_to_end(whole.ids, span) for span in spans]
        return document(whole.chat.where, whole.ids, ended)

    @cached_property
    def _end_of_turn(self) -> EndOfTurn:
        (trial,) = self._tokenized([_TRIAL], self._renderer.render([_TRIAL]), characters=False)
        if isinstance(trial, DataError):
            raise trial
        return EndOfTurn.from_trial(trial.ids, self._encoder.tokenizer)

    def _wanted_marks(
        self, chats: Sequence[ChatRecord], rendered: Sequence[Rendered | DataError], train_on: TrainOn
    ) -> list[Rendered | DataError]:
        """The same without the marks of answers that are not to be supervised."""
        result = list(rendered)
        firsts = {index: _wanted(chat, train_on)[0] for index, chat in enumerate(chats)}
        left = [index for index, first in firsts.items() if _answers(chats[index], before=first)]
        for prompt in (True, False):
            prefixes = self._renderer.render([chats[index].up_to(firsts[index]) for index in left], prompt=prompt)
            cut = {index: _marks_after(result[index], prefix) for index, prefix in zip(left, prefixes, strict=True)}
            result = [cut.get(index) or found for index, found in enumerate(result)]
            left = [index for index in left if cut[index] is None]
        for index in left:
            result[index] = _rewritten(chats[index], firsts[index])
        return result


_Encode: TypeAlias = Callable[[Sequence[ChatRecord], TrainOn], list[Outcome]]


def _marks_after(whole: Rendered | DataError, prefix: Rendered | DataError) -> Rendered | DataError | None:
    """The marks that do not lie in a prefix; None if this is not how the whole begins."""
    if isinstance(whole, DataError):
        return whole
    if isinstance(prefix, DataError) or not whole.text.startswith(prefix.text):
        return None
    start = len(prefix.text)
    return Rendered(text=whole.text, marked=[span for span in whole.marked if span[1] > start or span[0] >= start])


def _rewritten(chat: ChatRecord, message: int) -> TemplateError:
    return TemplateError(
        f"{chat.where}: the conversation before message {message} is not how the whole conversation begins, so "
        "that its marked answers cannot be told from the earlier ones; expected a chat template that never "
        "changes earlier turns; train on all answers, or make each turn a document of its own",
        reason="template_rewrites",
    )


def _answers(chat: ChatRecord, *, before: int) -> bool:
    return any(message["role"] == "assistant" for message in chat.messages[:before])


def _wanted(chat: ChatRecord, train_on: TrainOn) -> list[int]:
    """The answers that are to be supervised: messages of the assistant, not of the prompt."""
    answers = [
        index for index, message in enumerate(chat.messages) if index >= chat.first and message["role"] == "assistant"
    ]
    return answers[-1:] if train_on == "last" else answers


def _whole(chat: ChatRecord, rendered: Rendered, encoded: Any, *, characters: bool) -> Whole | DataError:
    if isinstance(encoded, DataError):
        return encoded
    return Whole(
        chat=chat,
        text=rendered.text,
        marked=rendered.marked,
        ids=encoded.ids if characters else encoded,
        encoding=encoded if characters else None,
    )


def _no_answer(chat: ChatRecord) -> RecordError:
    messages = chat.messages[chat.first :]
    return RecordError(
        f"{chat.where}: the conversation has no assistant turn among its {len(messages)} messages, expected "
        "one or more, for nothing else is supervised; remove the record, or train on all tokens",
        reason="no_assistant",
    )


def _begins_with_assistant(chat: ChatRecord) -> TemplateError:
    return TemplateError(
        f"{chat.where}: the conversation begins with the assistant, so there is nothing to render before "
        "its turn; expected a user or system message first, or a chat template with generation markers",
        reason="begins_with_assistant",
    )
