"""hermetic: sequence packing that provably does not leak.

Pack, seal, prove. The names below are the public surface; they are resolved on first use, so that
``import hermetic`` costs nothing and ``hermetic.plan`` never imports torch.
"""

import importlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hermetic.attention import available_backends as available_backends
    from hermetic.attention import packed_attention as packed_attention
    from hermetic.audit import audit as audit
    from hermetic.batch import Boundaries as Boundaries
    from hermetic.batch import PackedBatch as PackedBatch
    from hermetic.batch import collate as collate
    from hermetic.errors import HermeticError as HermeticError
    from hermetic.loss import document_log_probs as document_log_probs
    from hermetic.loss import packed_loss as packed_loss
    from hermetic.plan import OnlinePacker as OnlinePacker
    from hermetic.plan import Plan as Plan
    from hermetic.plan import plan_histogram as plan_histogram
    from hermetic.plan import plan_rows as plan_rows
    from hermetic.probe import LeakReport as LeakReport
    from hermetic.probe import guard as guard
    from hermetic.probe import probe as probe
    from hermetic.seal import seal as seal
    from hermetic.seal import seal_report as seal_report
    from hermetic.seal import unseal as unseal
    from hermetic.show import show as show

__version__ = "0.1.0"

_HOMES = {
    "Boundaries": "hermetic.batch",
    "HermeticError": "hermetic.errors",
    "LeakReport": "hermetic.probe",
    "OnlinePacker": "hermetic.plan",
    "PackedBatch": "hermetic.batch",
    "Plan": "hermetic.plan",
    "audit": "hermetic.audit",
    "available_backends": "hermetic.attention",
    "collate": "hermetic.batch",
    "document_log_probs": "hermetic.loss",
    "guard": "hermetic.probe",
    "packed_attention": "hermetic.attention",
    "packed_loss": "hermetic.loss",
    "plan_histogram": "hermetic.plan",
    "plan_rows": "hermetic.plan",
    "probe": "hermetic.probe",
    "seal": "hermetic.seal",
    "seal_report": "hermetic.seal",
    "show": "hermetic.show",
    "unseal": "hermetic.seal",
}

__all__ = sorted(_HOMES)  # noqa: PLE0605 - derived from the one table above, so that the two cannot disagree


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'hermetic' has no attribute {name!r}; public names: {', '.join(__all__)}")
    return getattr(importlib.import_module(home), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])


class _Package(ModuleType):
    """Keeps ``hermetic.seal`` and ``hermetic.probe`` the functions.

    The import system binds each imported subpackage as an attribute of its parent, which would put the
    packages of the same names in their place. ``from hermetic.seal import ...`` does not need that binding.
    """

    def __setattr__(self, name: str, value: Any) -> None:
        if not (name in _HOMES and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
