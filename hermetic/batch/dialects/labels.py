"""Targets for losses that want the next token beside the current one.

Algorithm: the label of every first token is hidden, then all move up by one. Guarantee: no target is another
document's token. Price: O(tokens), one copy.
"""

import torch

from hermetic.batch import views
from hermetic.batch.boundaries import Boundaries
from hermetic.batch.dialects.common import all_lengths
from hermetic.constants import IGNORE_INDEX
from hermetic.errors import BatchError


def shift_labels(labels: torch.Tensor, boundaries: Boundaries) -> torch.Tensor:
    """Targets for losses that expect the next token beside the current one.

    Args:
        labels: [T] unshifted, a padded tail allowed.
        boundaries: The documents.

    Returns:
        [T]: at each token the label of the next one, and -100 where the next one is another document's, or
        none.

    Raises:
        BatchError: If labels are not one dimension or fewer than the documents' tokens.

    Example:
        >>> shift_labels(torch.tensor([10, 11, 12, 20, 21]), Boundaries.from_lengths([3, 2]))
        tensor([  11,   12, -100,   21, -100])
    """
    if labels.ndim != 1:
        raise BatchError(f"labels have shape {list(labels.shape)}, expected [T]; flatten the rows to one stream")
    starts = views.first_tokens_from_lengths(all_lengths(boundaries, labels.shape[0])).to(labels.device)
    unreachable = labels.index_fill(0, starts, IGNORE_INDEX)
    return torch.nn.functional.pad(unreachable[1:], (0, min(1, labels.shape[0])), value=IGNORE_INDEX)
