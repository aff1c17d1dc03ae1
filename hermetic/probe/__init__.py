"""Floor 5: the instruments that prove isolation and equivalence, and the report they write."""

from hermetic.probe.calls import probe_call
from hermetic.probe.guard import Guard, guard
from hermetic.probe.probe import INSTRUMENTS, layers, probe
from hermetic.probe.reach import token_reach, with_details
from hermetic.probe.report import Finding, LayerReading, LeakReport, TargetReading

__all__ = [
    "INSTRUMENTS",
    "Finding",
    "Guard",
    "LayerReading",
    "LeakReport",
    "TargetReading",
    "guard",
    "layers",
    "probe",
    "probe_call",
    "token_reach",
    "with_details",
]
