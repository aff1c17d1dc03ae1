"""Floor 4: model surgery through public seams only, and its exact undoing."""

from hermetic.seal.seal import SealedModule, SealReport, is_sealed, seal, seal_report, unseal

__all__ = ["SealReport", "SealedModule", "is_sealed", "seal", "seal_report", "unseal"]
