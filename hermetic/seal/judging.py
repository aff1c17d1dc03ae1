"""In which precision the seal judges a model.

A learned position that counts on through the row may move bfloat16 logits by less than their own roundings do. So a
model of low precision is judged in float32, on its own weights (``precision``), and afterwards measured as it is.
Where the model or the backend cannot run in float32 it is judged in its own dtype, and the seal's report says so.
Price: every run of the trial casts each weight as it is used; no copy of the model.
"""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace

import torch
from torch import nn

from hermetic.attention import available_backends
from hermetic.errors import SealError
from hermetic.seal.precision import LOW, in_float32
from hermetic.seal.trial import Trial


@dataclass(frozen=True, kw_only=True, slots=True)
class Precision:
    """In which a model is judged."""

    model: nn.Module
    own: torch.dtype
    device: torch.device | None = None
    """Where it runs in float32 instead of its own dtype."""

    @property
    def is_raised(self) -> bool:
        """Whether that is another one than its own."""
        return self.device is not None

    @property
    def dtype(self) -> torch.dtype:
        """The dtype that it computes in."""
        return torch.float32 if self.is_raised else self.own

    def entered(self) -> AbstractContextManager[object]:
        """Run the model in it for the duration."""
        return nullcontext() if self.device is None else in_float32([self.model], self.device)


def dtype_in_use(model: nn.Module) -> tuple[str, torch.dtype] | None:
    """The kind of device that a model runs on, and the dtype of its attention; ``None`` without weights."""
    weight = next((p for p in model.parameters() if p.is_floating_point() and not p.is_meta), None)
    if weight is None:
        return None
    device = weight.device.type
    return device, torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else weight.dtype


def precision_of_trial(trial: Trial, backend: str) -> Precision:
    """Float32 for a model of low precision, whose roundings hide what is wrong, if it and the backend can run in it."""
    found = dtype_in_use(trial.model)
    own = Precision(model=trial.model, own=torch.get_default_dtype() if found is None else found[1])
    if found is None or found[1] not in LOW or torch.float32 not in available_backends(found[0])[backend].backward:
        return own
    raised = replace(own, device=torch.device(found[0]))
    try:
        with raised.entered(), torch.no_grad():
            trial.as_one_document()
    except SealError:
        return own
    return raised
