"""Floor 6: the conformance suite, for attention kernels that are not ours."""

from hermetic.testing.attention import check_attention_backend
from hermetic.testing.report import ConformanceReport

__all__ = ["ConformanceReport", "check_attention_backend"]
