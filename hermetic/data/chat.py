"""Conversations to tokens, and which of these tokens are the assistant's.

Two ways, chosen by the template, never by luck:

*   A template with ``{% generation %}`` markers says itself what the assistant writes.
*   For any other template, each assistant turn is found by rendering: the tokens before it are those of
    ``messages[:k]`` with the generation prompt, which is what the model will see when it has to answer; the
    tokens up to its end are those of ``messages[:k + 1]``.

    messages   user: hi            assistant: yes          user: ok
    tokens     <user> hi <end>     <assistant> yes <end>   <user> ok <end>
    assistant    0    0    0            0       1    1       0    0    0

Either way a turn's supervision ends with its end-of-turn token, also where the markers leave that token out
(or the model would never learn to stop) or take in the line break after it (which a model that has stopped
never writes).

Guarantee: with rendering, both prefixes have to be, token for token, the start of the whole conversation; a
template that rewrites earlier turns (drops their reasoning, say) is a :class:`TemplateError` that shows the
first difference, never a guess. Price: markers cost nothing; rendering tokenizes two prefixes for each
assistant turn.
"""

import itertools
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from hermetic.data.dependencies import import_optional
from hermetic.data.records import ChatRecord
from hermetic.errors import TemplateError

__all__ = ["encode_chats"]

TokenArray: TypeAlias = npt.NDArray[np.int32]
MaskArray: TypeAlias = npt.NDArray[np.bool_]
EncodedChat: TypeAlias = tuple[TokenArray, MaskArray]

_GENERATION_MARKER: Final = re.compile(r"\{%[-+]?\s*generation\s*[-+]?%\}")
_SHOWN_TOKENS: Final = 6
"""Tokens shown on each side where two renderings part."""
_TRIAL: Final = "a trial of one user and one assistant turn, which shows how a turn ends"


def encode_chats(chats: Sequence[ChatRecord], tokenizer: Any) -> list[EncodedChat]:
    """Render and tokenize conversations, and find the assistant's tokens.

    Args:
        chats: any number of conversations.
        tokenizer: a Hugging Face tokenizer.

    Returns:
        For each conversation its token ids, ``[T]`` int32, and whether each is the assistant's, ``[T]`` bool.

    Raises:
        TemplateError: If the tokenizer has no chat template, the template refuses a conversation, or it does
            not tell where the assistant's turns are.
    """
    if not chats:
        return []
    if tokenizer.chat_template is None:
        raise TemplateError(
            f"{chats[0].where}: the tokenizer {tokenizer.name_or_path!r} has no chat template, expected one "
            "to render 'messages'; put a 'chat_template' into its tokenizer_config.json, or use the "
            "tokenizer of the model's chat-tuned sibling"
        )
    encoded: list[EncodedChat] = []
    for _, group in itertools.groupby(chats, key=lambda chat: repr(chat.tools)):
        same_tools = list(group)
        template = tokenizer.get_chat_template(tools=same_tools[0].tools)
        # A tokenizer written in Python cannot say which characters a token covers, so its markers are mute.
        marked = tokenizer.is_fast and _GENERATION_MARKER.search(template)
        encoded += (_encode_by_markers if marked else _encode_by_prefixes)(same_tools, tokenizer)
    closing, glue = _end_of_turn(tokenizer)
    return [(tokens, _up_to_end_of_turn(tokens, mask, closing, glue)) for tokens, mask in encoded]


def _encode_by_markers(chats: Sequence[ChatRecord], tokenizer: Any) -> list[EncodedChat]:
    """All conversations, which share their tools, in one call of the tokenizer."""
    rendered = _render(
        chats,
        lambda batch: tokenizer.apply_chat_template(
            [chat.messages for chat in batch],
            tools=batch[0].tools,
            return_dict=True,
            return_assistant_tokens_mask=True,
        ),
    )
    return [
        (np.array(ids, dtype=np.int32), np.array(mask, dtype=np.bool_))
        for ids, mask in zip(rendered["input_ids"], rendered["assistant_masks"], strict=True)
    ]


def _render(chats: Sequence[ChatRecord], call: Callable[[Sequence[ChatRecord]], Any]) -> Any:
    """The result of ``call`` on all the conversations; on an error, a message that names the one at fault."""
    jinja2 = import_optional("jinja2")
    try:
        return call(chats)
    except (jinja2.TemplateError, TypeError, ValueError) as error:
        if len(chats) > 1:
            for chat in chats:
                _render([chat], call)
        raise TemplateError(
            f"{chats[0].where}: the chat template cannot render this conversation ({error}); "
            "expected turns in the order and of the kind that the template allows; change "
            "the record or the template"
        ) from error


def _end_of_turn(tokenizer: Any) -> tuple[list[int], list[int]]:
    """The added tokens that close an assistant turn and the white space around them, read off a trial."""
    turns = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    trial = ChatRecord(where=_TRIAL, messages=turns, tools=None)
    ids = _render([trial], lambda _: tokenizer.apply_chat_template(turns, return_dict=True))["input_ids"]
    added = tokenizer.added_tokens_decoder
    tail = list(
        itertools.takewhile(lambda token: token in added or not tokenizer.decode([token]).strip(), reversed(ids))
    )
    return [token for token in tail if token in added], [token for token in tail if token not in added]


def _up_to_end_of_turn(tokens: TokenArray, mask: MaskArray, closing: Sequence[int], glue: Sequence[int]) -> MaskArray:
    """Let each span of the mask end with the closing tokens that follow its content.

    Example:
        With the closing token 2 and the glue 9, tokens ``[5, 6, 2, 9, 7]`` and either of the masks
        ``[0, 1, 0, 0, 0]`` and ``[0, 1, 1, 1, 0]`` give ``[0, 1, 1, 0, 0]``.
    """
    ended = mask.copy()
    for index in np.flatnonzero(np.isin(tokens, closing)):
        ended[index] |= index > 0 and ended[index - 1]
        after = index + 1
        while ended[index] and after < len(tokens) and tokens[after] in glue:
            ended[after] = False
            after += 1
    return ended


def _encode_by_prefixes(chats: Sequence[ChatRecord], tokenizer: Any) -> list[EncodedChat]:
    """All conversations and all their prefixes rendered one by one, then tokenized in one call."""
    texts: list[str] = []
    for chat in chats:
        _check_does_not_begin_with_assistant(chat)
        texts += _render([chat], lambda batch: list(_renderings(batch[0], tokenizer)))
    batch = tokenizer(texts, add_special_tokens=False, truncation=False, padding=False)["input_ids"]
    tokenized = iter(batch)
    return [_mask_from_prefixes(chat, tokenized, tokenizer) for chat in chats]


def _check_does_not_begin_with_assistant(chat: ChatRecord) -> None:
    if chat.messages[0]["role"] == "assistant":
        raise TemplateError(
            f"{chat.where}: the conversation begins with the assistant, so there is nothing to render before "
            "its turn; expected a user or system message first, or a chat template with generation markers"
        )


def _assistant_turns(chat: ChatRecord) -> list[int]:
    return [index for index, message in enumerate(chat.messages) if message["role"] == "assistant"]


def _renderings(chat: ChatRecord, tokenizer: Any) -> Iterator[str]:
    """The whole conversation; then, for each assistant turn, what is before it and what is up to its end."""

    def render(messages: list[dict[str, Any]], *, prompt: bool) -> str:
        rendered: str = tokenizer.apply_chat_template(
            messages, tools=chat.tools, tokenize=False, add_generation_prompt=prompt
        )
        return rendered

    yield render(chat.messages, prompt=False)
    for turn in _assistant_turns(chat):
        yield render(chat.messages[:turn], prompt=True)
        yield render(chat.messages[: turn + 1], prompt=False)


def _mask_from_prefixes(chat: ChatRecord, tokenized: Iterator[list[int]], tokenizer: Any) -> EncodedChat:
    """The tokens of one conversation and its assistant mask, from the renderings of :func:`_renderings`."""
    whole = next(tokenized)
    mask = np.zeros(len(whole), dtype=np.bool_)
    for turn in _assistant_turns(chat):
        before, up_to_end = next(tokenized), next(tokenized)
        _check_prefix(before, whole, f"{chat.where}: the prompt before message {turn}", tokenizer)
        _check_prefix(up_to_end, whole, f"{chat.where}: the conversation up to message {turn}", tokenizer)
        mask[len(before) : len(up_to_end)] = True
    return np.array(whole, dtype=np.int32), mask


def _check_prefix(prefix: list[int], whole: list[int], what: str, tokenizer: Any) -> None:
    if whole[: len(prefix)] == prefix:
        return
    pairs = enumerate(itertools.zip_longest(prefix, whole))
    first = next(index for index, (left, right) in pairs if left != right)
    shown = slice(max(0, first - _SHOWN_TOKENS), first + _SHOWN_TOKENS)
    raise TemplateError(
        f"{what} is not how the whole conversation begins: from token {first} on it reads "
        f"{tokenizer.decode(prefix[shown])!r} instead of {tokenizer.decode(whole[shown])!r}; expected a chat "
        "template that never changes earlier turns, or one with generation markers around what the "
        "assistant writes"
    )
