"""Conversations: ``messages``, ShareGPT's ``conversations``, and the tools beside them.

    messages        [{"role": "user", "content": ...}, ...]
    conversations   [{"from": "human", "value": ...}, ...], perhaps with ``system``

Both give the same messages. Every further key of a message (``tool_calls``, ``reasoning_content``, ``name``)
is kept for the tokenizer's own template; keys whose value is null are dropped, as transformers drops them.
ShareGPT's ``function_call`` is JSON text and becomes a ``tool_calls`` of the assistant.
"""

import json
from collections.abc import Mapping
from typing import Any, Final, TypeAlias

from hermetic.data.shapes.checks import check_list, check_not_empty, check_text, kind_of, shown
from hermetic.data.shapes.types import ChatRecord
from hermetic.errors import RecordError

__all__ = ["ROLES", "parse_conversations", "parse_messages", "parse_tools", "read_messages", "with_system"]

Message: TypeAlias = dict[str, Any]

ROLES: Final = ("system", "user", "assistant", "tool")
_SPEAKERS: Final = {
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "assistant": "assistant",
    "chatgpt": "assistant",
    "bing": "assistant",
    "bard": "assistant",
    "system": "system",
    "observation": "tool",
    "tool": "tool",
    "function_call": "assistant",
}


def parse_messages(where: str, values: Mapping[str, Any]) -> ChatRecord:
    """``messages``, perhaps with ``tools``."""
    messages = read_messages(where, "messages", values["messages"])
    check_not_empty(f"{where}: 'messages'", messages)
    return ChatRecord(where=where, messages=messages, tools=parse_tools(where, values.get("tools")))


def parse_conversations(where: str, values: Mapping[str, Any]) -> ChatRecord:
    """``conversations``, perhaps with ``system`` and ``tools``."""
    turns = values["conversations"]
    check_list(f"{where}: 'conversations'", turns, "turns with 'from' and 'value'")
    check_not_empty(f"{where}: 'conversations'", turns)
    messages = [_read_turn(f"{where}: turn {index}", turn) for index, turn in enumerate(turns)]
    messages = with_system(where, values.get("system"), messages)
    return ChatRecord(where=where, messages=messages, tools=parse_tools(where, values.get("tools")))


def with_system(where: str, system: Any, messages: list[Message]) -> list[Message]:
    """The messages with a record's ``system`` before them, unless it is empty or they begin with it already."""
    if not system:
        return messages
    check_text(f"{where}: 'system'", system)
    if messages and messages[0]["role"] == "system":
        if messages[0]["content"] == system:
            return messages
        raise RecordError(
            f"{where}: 'system' says {shown(system)} and the first turn, a system turn too, "
            f"{shown(messages[0]['content'])}, expected one of them; remove the other",
            reason="two_systems",
        )
    return [{"role": "system", "content": system}, *messages]


def read_messages(where: str, key: str, messages: Any) -> list[Message]:
    """Check a list of messages; the result is without null entries."""
    check_list(f"{where}: {key!r}", messages, "messages with 'role' and 'content'")
    return [_read_message(f"{where}: message {index}", message) for index, message in enumerate(messages)]


def _read_message(what: str, message: Any) -> Message:
    if not isinstance(message, dict):
        raise RecordError(
            f"{what} is {kind_of(message)}, expected an object with 'role' and 'content'", reason="not_a_message"
        )
    role = message.get("role")
    if role not in ROLES:
        raise RecordError(
            f"{what} has the unknown role {shown(role)}, expected one of {', '.join(ROLES)}; rename the role",
            reason="unknown_role",
        )
    content = message.get("content")
    if content is not None or not message.get("tool_calls"):
        check_text(f"{what} ({role}): 'content'", content)
    return {key: value for key, value in message.items() if value is not None}


def _read_turn(what: str, turn: Any) -> Message:
    """A turn of ShareGPT as a message; a turn that is a message already is taken as one."""
    if not isinstance(turn, dict) or "from" not in turn:
        return _read_message(what, turn)
    speaker, value = turn["from"], turn.get("value")
    if not isinstance(speaker, str) or speaker not in _SPEAKERS:
        raise RecordError(
            f"{what} is from {shown(speaker)}, expected one of {', '.join(_SPEAKERS)}; rename the speaker",
            reason="unknown_role",
        )
    check_text(f"{what} ({speaker}): 'value'", value)
    kept = {key: entry for key, entry in turn.items() if key not in ("from", "value") and entry is not None}
    if speaker == "function_call":
        return {"role": "assistant", "content": "", "tool_calls": _read_calls(what, value), **kept}
    return {"role": _SPEAKERS[speaker], "content": value, **kept}


def _read_calls(what: str, value: Any) -> list[Message]:
    """The calls of a ``function_call`` turn: a JSON object, or a list of them, with a name and arguments."""
    try:
        calls = json.loads(value)
    except ValueError as error:
        raise _bad_calls(what, value) from error
    calls = calls if isinstance(calls, list) else [calls]
    if not calls or not all(isinstance(call, dict) and {"name", "arguments"} <= call.keys() for call in calls):
        raise _bad_calls(what, value)
    return [{"type": "function", "function": call} for call in calls]


def _bad_calls(what: str, value: Any) -> RecordError:
    return RecordError(
        f"{what} (function_call): 'value' is {shown(value)}, expected JSON text of an object with 'name' and "
        "'arguments', or of a list of such objects; repair the call",
        reason="bad_tool_call",
    )


def parse_tools(where: str, tools: Any) -> list[Message] | None:
    """The tools of a conversation: a list of objects, or the JSON text of one; none if it is empty."""
    if isinstance(tools, str) and tools.strip():
        try:
            tools = json.loads(tools)
        except ValueError as error:
            raise _bad_tools(where, tools) from error
    if not tools or (isinstance(tools, str) and not tools.strip()):
        return None
    if not isinstance(tools, list) or not all(isinstance(tool, dict) for tool in tools):
        raise _bad_tools(where, tools)
    return tools


def _bad_tools(where: str, tools: Any) -> RecordError:
    return RecordError(
        f"{where}: 'tools' is {shown(tools)}, expected a list of objects, one JSON schema for each tool, or "
        "the JSON text of such a list; repair or remove it",
        reason="bad_tools",
    )
