"""The tokenizer of a pack: loading it, and knowing it again.

Guarantee: two tokenizers with the same fingerprint turn the same text and the same conversation into the same
tokens; padding and truncation, which a call may leave behind in a tokenizer, do not count. Price: the
fingerprint serializes the vocabulary once.
"""

import hashlib
import json
import os
from typing import Any

from hermetic.data.dependencies import import_optional
from hermetic.errors import DataError

__all__ = ["load_tokenizer", "tokenizer_fingerprint", "writes_the_date"]


def load_tokenizer(name: str | os.PathLike[str], *, trust_remote_code: bool = False) -> Any:
    """Load any Hugging Face tokenizer.

    Args:
        name: a folder that holds a tokenizer, or a model id.
        trust_remote_code: whether a tokenizer may bring code of its own and run it.

    Raises:
        DataError: If there is no tokenizer under this name.
        MissingDependencyError: If transformers is not installed.
    """
    transformers = import_optional("transformers")
    try:
        return transformers.AutoTokenizer.from_pretrained(os.fspath(name), trust_remote_code=trust_remote_code)
    except (OSError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise DataError(
            f"no tokenizer can be loaded from {os.fspath(name)!r}: {reason}; expected a folder with "
            "tokenizer.json and tokenizer_config.json, or a model id"
        ) from error


def tokenizer_fingerprint(tokenizer: Any) -> str:
    """SHA-256, in hexadecimal, over all that decides how this tokenizer renders and tokenizes."""
    identity = {
        "model": _serialized(tokenizer),
        "special_tokens": {name: str(token) for name, token in tokenizer.special_tokens_map.items()},
        "split_special_tokens": tokenizer.split_special_tokens,
        "chat_template": tokenizer.chat_template,
    }
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()


def writes_the_date(tokenizer: Any) -> bool:
    """Whether a chat template of this tokenizer asks for today's date, so that its texts depend on the day."""
    templates = tokenizer.chat_template
    texts = templates.values() if isinstance(templates, dict) else [templates or ""]
    return any("strftime_now" in text for text in texts)


def _serialized(tokenizer: Any) -> Any:
    """A JSON value that says how text becomes tokens."""
    if not tokenizer.is_fast:
        return {"class": type(tokenizer).__name__, "vocabulary": tokenizer.get_vocab()}
    model = json.loads(tokenizer.backend_tokenizer.to_str())
    return {key: value for key, value in model.items() if key not in {"padding", "truncation"}}
