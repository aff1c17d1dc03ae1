"""Floor 6: the same documents trained padded, packed naively in several ways, and sealed."""

from hermetic.compare.arms import ARMS, Arm, MaskCollator, NaiveCollator, all_arms, arms_by_name
from hermetic.compare.compare import PAGE_NAME, RESULT_NAME, compare, quiet_transformers, settings_with
from hermetic.compare.page import page
from hermetic.compare.records import ArmResult, ArmRun, Comparison, Refusal, Spread
from hermetic.compare.render import render
from hermetic.compare.rows import ComparedRows, rows_of
from hermetic.compare.run import Subject, probe_arm, run_arm, run_comparison, start_of, utilization

__all__ = [
    "ARMS",
    "PAGE_NAME",
    "RESULT_NAME",
    "Arm",
    "ArmResult",
    "ArmRun",
    "ComparedRows",
    "Comparison",
    "MaskCollator",
    "NaiveCollator",
    "Refusal",
    "Spread",
    "Subject",
    "all_arms",
    "arms_by_name",
    "compare",
    "page",
    "probe_arm",
    "quiet_transformers",
    "render",
    "rows_of",
    "run_arm",
    "run_comparison",
    "settings_with",
    "start_of",
    "utilization",
]
