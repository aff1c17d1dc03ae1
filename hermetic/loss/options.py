"""The numbers that a loss may be asked to take, checked in one place."""

import math
from dataclasses import dataclass
from numbers import Real

from hermetic.errors import LossError


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenCost:
    """What predicting one supervised token costs.

    With logits z over V entries, the target y, log-probabilities ``log p = z - logsumexp(z)``, a label
    smoothing e and a z-loss c::

        -(1 - e) * log p[y]  -  (e / V) * sum(log p)  +  c * logsumexp(z) ** 2

    Attributes:
        label_smoothing: e, from 0 to 1.
        z_loss: c, 0 or more.

    Raises:
        LossError: If one of them is not such a number.

    Example:
        >>> TokenCost(label_smoothing=0.1)
        TokenCost(label_smoothing=0.1, z_loss=0.0)
    """

    label_smoothing: float = 0.0
    z_loss: float = 0.0

    def __post_init__(self) -> None:
        check_number("label_smoothing", self.label_smoothing, least=0.0, most=1.0)
        check_number("z_loss", self.z_loss, least=0.0)


def check_number(name: str, value: object, *, least: float = 0.0, most: float = math.inf, above: bool = False) -> None:
    """Refuse what is no finite number in a range.

    Args:
        name: What an error calls it.
        value: What was given.
        least: The smallest that is allowed.
        most: The largest that is allowed.
        above: The smallest itself is not.

    Raises:
        LossError: If the value is none, a boolean, not finite or out of the range.

    Example:
        >>> check_number("beta", 0.1, above=True)
    """
    number = math.nan if isinstance(value, bool) or not isinstance(value, Real) else float(value)
    if not math.isfinite(number) or not least <= number <= most or (above and number == least):
        bounds = f"above {least:g}" if above else f"of {least:g} or more"
        limit = "" if math.isinf(most) else f" and at most {most:g}"
        raise LossError(f"{name} is {value!r}, expected a finite number {bounds}{limit}")


def check_chunk(chunk_tokens: object) -> None:
    """Refuse what is no number of tokens.

    Args:
        chunk_tokens: Tokens whose logits exist at a time, or None.

    Raises:
        LossError: If it is neither None nor a whole number of 1 or more.

    Example:
        >>> check_chunk(256)
    """
    if chunk_tokens is not None and (type(chunk_tokens) is not int or chunk_tokens < 1):
        raise LossError(f"chunk_tokens is {chunk_tokens!r}, expected a whole number of 1 or more, or None")
