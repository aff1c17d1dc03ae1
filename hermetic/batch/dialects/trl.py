"""TRL's ``seq_lengths`` column: the lengths of each row's documents, made and read.

Algorithm: the lengths, row by row. TRL is not imported. Guarantee: no length is 0, from which TRL's collator
would compute wrong positions and join the documents around it; empty documents are therefore dropped. The
column has no tail: rows are as long as their documents. Price: O(documents).
"""

from collections.abc import Sequence

from hermetic.batch.boundaries import Boundaries
from hermetic.batch.dialects.common import check_rows
from hermetic.errors import BatchError, BoundariesError


def trl_seq_lengths(rows: Sequence[Boundaries]) -> list[list[int]]:
    """The ``seq_lengths`` column of a packed data set.

    Args:
        rows: The documents of each of B rows.

    Returns:
        For each row the lengths of its documents that have tokens.

    Raises:
        BatchError: If one ``Boundaries`` stands for the rows.

    Example:
        >>> trl_seq_lengths([Boundaries.from_lengths([3, 0, 3]), Boundaries.from_lengths([2, 2, 2])])
        [[3, 3], [2, 2, 2]]
    """
    check_rows(rows)
    return [[length for length in row.document_lengths if length] for row in rows]


def rows_from_trl_seq_lengths(seq_lengths: Sequence[Sequence[int]]) -> list[Boundaries]:
    """Read the documents of each row from the ``seq_lengths`` column.

    Args:
        seq_lengths: For each row the lengths of its documents, 1 or more.

    Returns:
        One boundaries for each row.

    Raises:
        BatchError: If a row is not a list of whole numbers, or a length is below 1.

    Example:
        >>> rows_from_trl_seq_lengths([[3, 3], [2, 2, 2]])
        [Boundaries(document_lengths=(3, 3)), Boundaries(document_lengths=(2, 2, 2))]
    """
    return [_row(lengths, index) for index, lengths in enumerate(seq_lengths)]


def _row(lengths: Sequence[int], index: int) -> Boundaries:
    try:
        row = Boundaries.from_lengths(lengths)
    except BoundariesError as problem:
        raise BatchError(f"seq_lengths[{index}] does not hold the lengths of a row: {problem}") from problem
    if 0 in row.document_lengths:
        raise BatchError(
            f"seq_lengths[{index}][{row.document_lengths.index(0)}] is 0, expected 1 or more, for TRL's collator joins "
            f"the documents around an empty one; leave it out"
        )
    return row
