"""Preference pairs: ``chosen`` and ``rejected``, with their ``prompt`` or with it in both.

    prompt, chosen, rejected   three texts, or three lists of messages
    chosen, rejected           two texts, or two lists of messages, that begin alike

What both begin with is the prompt and is never supervised: of messages, those that are equal; of texts, the
tokens that are equal. Guarantee: the two documents differ, and from an assistant's turn on.
"""

from collections.abc import Mapping
from itertools import takewhile
from typing import Any

from hermetic.data.shapes.checks import check_not_empty, check_text, kind_of
from hermetic.data.shapes.conversations import parse_tools, read_messages
from hermetic.data.shapes.prompts import continue_prompt
from hermetic.data.shapes.types import ChatRecord, PreferenceRecord, TextRecord
from hermetic.errors import RecordError

__all__ = ["parse_preference"]


def parse_preference(where: str, values: Mapping[str, Any]) -> PreferenceRecord:
    """``chosen`` and ``rejected``, with or without ``prompt``."""
    chosen, rejected = values["chosen"], values["rejected"]
    if isinstance(chosen, list) != isinstance(rejected, list):
        raise RecordError(
            f"{where}: 'chosen' is {kind_of(chosen)} and 'rejected' {kind_of(rejected)}, expected two strings or "
            "two lists of messages; write both in the same way",
            reason="mixed_kinds",
        )
    if chosen == rejected:
        raise RecordError(
            f"{where}: 'chosen' and 'rejected' are equal, expected two that differ; remove the record",
            reason="no_preference",
        )
    if "prompt" in values:
        return PreferenceRecord(
            where=where,
            chosen=continue_prompt(where, values, "chosen"),
            rejected=continue_prompt(where, values, "rejected"),
        )
    return _of_messages(where, values) if isinstance(chosen, list) else _of_texts(where, values)


def _of_texts(where: str, values: Mapping[str, Any]) -> PreferenceRecord:
    for key in ("chosen", "rejected"):
        check_text(f"{where}: {key!r}", values[key])
        check_not_empty(f"{where}: {key!r}", values[key])
    return PreferenceRecord(
        where=where,
        chosen=TextRecord(where=where, text=values["chosen"]),
        rejected=TextRecord(where=where, text=values["rejected"]),
    )


def _of_messages(where: str, values: Mapping[str, Any]) -> PreferenceRecord:
    chosen = read_messages(f"{where}: 'chosen'", "chosen", values["chosen"])
    rejected = read_messages(f"{where}: 'rejected'", "rejected", values["rejected"])
    check_not_empty(f"{where}: 'chosen'", chosen)
    check_not_empty(f"{where}: 'rejected'", rejected)
    tools = parse_tools(where, values.get("tools"))
    shared = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(chosen, rejected, strict=False)))
    for key, messages in (("chosen", chosen), ("rejected", rejected)):
        _check_parts_at_an_answer(where, key, messages, shared)
    return PreferenceRecord(
        where=where,
        chosen=ChatRecord(where=where, messages=chosen, tools=tools, first=shared),
        rejected=ChatRecord(where=where, messages=rejected, tools=tools, first=shared),
    )


def _check_parts_at_an_answer(where: str, key: str, messages: list[dict[str, Any]], shared: int) -> None:
    if shared < len(messages) and messages[shared]["role"] == "assistant":
        return
    found = f"a message of the {messages[shared]['role']}" if shared < len(messages) else "nothing"
    raise RecordError(
        f"{where}: after the {shared} messages that 'chosen' and 'rejected' share, {key!r} has {found}, expected an "
        "answer of the assistant; let both begin with the same prompt",
        reason="prompts_differ",
    )
