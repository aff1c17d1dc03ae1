"""Floor 1: lengths to rows, as plain data without tensors. NumPy and Numba only; torch is never imported.

``plan_rows`` decides which documents share a row; the ``Plan`` it returns is checked for conservation when it
is made and when it is loaded. ``plan_histogram`` answers how many rows there would be from lengths alone.
``OnlinePacker`` packs streams; ``assign_rows`` gives rows to data-parallel ranks.
"""

from hermetic.plan.balance import Assignment, assign_rows, work_of_rows
from hermetic.plan.histogram_plan import HistogramPlan, plan_histogram
from hermetic.plan.online import OnlinePacker, Piece
from hermetic.plan.plan import Plan
from hermetic.plan.rows import plan_rows

__all__ = [
    "Assignment",
    "HistogramPlan",
    "OnlinePacker",
    "Piece",
    "Plan",
    "assign_rows",
    "plan_histogram",
    "plan_rows",
    "work_of_rows",
]
