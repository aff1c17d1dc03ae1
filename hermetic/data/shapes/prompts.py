"""Prompts and completions: texts, messages, and Alpaca's instructions.

    prompt, completion    two texts, or two lists of messages
    instruction, output   Alpaca: perhaps with ``input``, ``system`` and ``history``

Alpaca becomes a conversation where the tokenizer has a chat template. Where it has none, its fields stand under
the headings ``### Instruction:``, ``### Input:`` and ``### Response:``, and the output is the completion.
"""

from collections.abc import Mapping
from typing import Any

from hermetic.data.shapes.checks import check_list, check_not_empty, check_text, kind_of, shown
from hermetic.data.shapes.conversations import parse_tools, read_messages, with_system
from hermetic.data.shapes.types import ChatRecord, PairRecord
from hermetic.errors import RecordError

__all__ = ["continue_prompt", "parse_alpaca", "parse_prompt"]


def parse_prompt(where: str, values: Mapping[str, Any]) -> ChatRecord | PairRecord:
    """``prompt`` and ``completion``, texts or messages."""
    if isinstance(values.get("label"), bool):
        raise RecordError(
            f"{where}: 'label' is {values['label']}, which says whether the completion is wanted, expected only "
            "completions to learn from; keep those that are wanted, and remove the key",
            reason="unpaired_preference",
        )
    return continue_prompt(where, values, "completion")


def continue_prompt(where: str, values: Mapping[str, Any], key: str) -> ChatRecord | PairRecord:
    """The prompt with what stands under ``key`` after it; texts become a pair, messages a conversation."""
    prompt, completion = values["prompt"], values[key]
    if isinstance(prompt, list) and isinstance(completion, list):
        return _continue_messages(where, values, key)
    if isinstance(prompt, list) or isinstance(completion, list):
        raise RecordError(
            f"{where}: 'prompt' is {kind_of(prompt)} and {key!r} {kind_of(completion)}, expected two strings or "
            "two lists of messages; write both as messages, or remove 'prompt' where the messages begin with it",
            reason="mixed_kinds",
        )
    check_text(f"{where}: 'prompt'", prompt)
    check_text(f"{where}: {key!r}", completion)
    check_not_empty(f"{where}: {key!r}", completion)
    return PairRecord(where=where, prompt=prompt, completion=completion)


def _continue_messages(where: str, values: Mapping[str, Any], key: str) -> ChatRecord:
    prompt = read_messages(f"{where}: 'prompt'", "prompt", values["prompt"])
    completion = read_messages(f"{where}: {key!r}", key, values[key])
    check_not_empty(f"{where}: {key!r}", completion)
    if prompt and completion[: len(prompt)] == prompt:
        raise RecordError(
            f"{where}: {key!r} begins with the {len(prompt)} messages of 'prompt', expected only what follows "
            "them; remove 'prompt', or its messages from the other",
            reason="prompt_twice",
        )
    return ChatRecord(
        where=where,
        messages=prompt + completion,
        tools=parse_tools(where, values.get("tools")),
        first=len(prompt),
    )


def parse_alpaca(where: str, values: Mapping[str, Any], *, has_template: bool) -> ChatRecord | PairRecord:
    """``instruction`` and ``output``, perhaps with ``input``, ``system`` and ``history``."""
    given = {key: values.get(key, "") for key in ("instruction", "input", "output")}
    for key, value in given.items():
        check_text(f"{where}: {key!r}", value)
    check_not_empty(f"{where}: 'output'", given["output"])
    asked = [text for text in (given["instruction"], given["input"]) if text]
    check_not_empty(f"{where}: 'instruction'", asked)
    history = _read_history(where, values.get("history", []))
    if not has_template:
        return _under_headings(where, values, history)
    messages = [
        {"role": role, "content": text}
        for turns in (*history, ("\n".join(asked), given["output"]))
        for role, text in zip(("user", "assistant"), turns, strict=True)
    ]
    return ChatRecord(where=where, messages=with_system(where, values.get("system"), messages))


def _read_history(where: str, history: Any) -> list[list[str]]:
    check_list(f"{where}: 'history'", history, "pairs of an instruction and an answer")
    for index, turns in enumerate(history):
        if not isinstance(turns, list) or len(turns) != 2:
            raise RecordError(
                f"{where}: history[{index}] is {shown(turns)}, expected an instruction and its answer; repair it",
                reason="bad_history",
            )
        for text in turns:
            check_text(f"{where}: history[{index}]", text)
    checked: list[list[str]] = history
    return checked


def _under_headings(where: str, values: Mapping[str, Any], history: list[list[str]]) -> PairRecord:
    """The fields of Alpaca as one prompt, each under its heading, with an empty line between them."""
    system = values.get("system") or ""
    check_text(f"{where}: 'system'", system)
    blocks = [system] if system else []
    for instruction, answer in history:
        blocks += [f"### Instruction:\n{instruction}", f"### Response:\n{answer}"]
    for heading, key in (("Instruction", "instruction"), ("Input", "input")):
        blocks += [f"### {heading}:\n{values[key]}"] if values.get(key) else []
    return PairRecord(where=where, prompt="\n\n".join([*blocks, "### Response:\n"]), completion=values["output"])
