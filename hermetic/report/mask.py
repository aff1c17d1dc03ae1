"""The documents and the mask of a row, as :mod:`hermetic.show` draws them."""

from collections.abc import Sequence


def mask_of(lengths: Sequence[int]) -> str:
    """The picture of a row of documents of these lengths, beside that of a plain causal mask.

    Args:
        lengths: ``[D]`` tokens of each document.
    """
    from hermetic.show import figure, show

    return figure(show(list(lengths), backends=["causal"]))
