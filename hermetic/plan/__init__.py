"""Floor 1: lengths to rows, as plain data without tensors. NumPy and Numba only; torch is never imported.

``plan_rows`` decides which documents share a row; the ``Plan`` it returns is checked for conservation when it
is made and when it is loaded.
"""

from hermetic.plan.plan import Plan
from hermetic.plan.rows import plan_rows

__all__ = ["Plan", "plan_rows"]
