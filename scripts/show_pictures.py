"""Draw the pictures of ``docs/show.md``.

python scripts/show_pictures.py
"""

from pathlib import Path
from typing import Final

import numpy as np

import hermetic
from hermetic.show import RowPicture

DOCS: Final = Path(__file__).parents[1] / "docs"


def pictures() -> dict[str, RowPicture]:
    """The pictures by the names of their files."""
    inputs = {
        "input_ids": [[11, 12, 13, 21, 22, 23, 24, 31, 32]],
        "position_ids": [[1, 2, 3, 0, 1, 2, 3, 0, 1]],
        "labels": [[-100, 12, 13, 21, 22, 23, 24, -100, 32]],
        "attention_mask": [[1, 1, 1, 1, 1, 1, 1, 1, 1]],
    }
    drawn = np.random.default_rng(0).lognormal(5.5, 1.3, 200).astype(int) + 1
    lengths = np.diff(np.minimum(np.cumsum([0, *drawn]), 32_768))
    lengths = lengths[lengths > 0]  # the documents that fill a row of 32,768 tokens, the last one cut
    readers = ["transformers_mask", "transformers_flash"]
    return {
        "show_five.svg": hermetic.show([2, 3], backends=["causal"]),
        "show_window.svg": hermetic.show([3, 9, 4, 1, 1, 12], window=4, backends=["causal"]),
        "show_flex.svg": hermetic.show([6, 14, 4], backends=["flex"]),
        "show_inputs.svg": hermetic.show(inputs, backends=readers),
        "show_long.svg": hermetic.show(lengths, backends=["causal"]),
    }


def main() -> None:
    """Write them."""
    for name, picture in pictures().items():
        picture.to_svg(DOCS / name)
        print(DOCS / name)


if __name__ == "__main__":
    main()
