"""What this machine can run: each backend asked, for each dtype, with and without a backward pass.

Algorithm: a plain causal call is described to every backend, which objects or does not; nothing is run, no
kernel is compiled and no memory taken. Guarantee: the answer is the very one that ``packed_attention`` acts on.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from hermetic.attention.api import BACKENDS, objection_of
from hermetic.attention.backend import AttentionCall
from hermetic.attention.options import AttentionOptions
from hermetic.errors import AttentionError

_DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


@dataclass(frozen=True, kw_only=True, slots=True)
class BackendStatus:
    """What one backend can do on one kind of device, for plain causal attention."""

    name: str
    device: str
    """``"cpu"``, ``"cuda"``, ..."""
    forward: tuple[torch.dtype, ...]
    """Dtypes that it attends in; empty when it cannot run here."""
    backward: tuple[torch.dtype, ...]
    """Dtypes in which it has gradients too."""
    why_not: str | None
    """What keeps it from one of the above, in its own words; ``None`` when nothing does."""

    def __str__(self) -> str:
        """One line for people."""
        able = f"forward in {_names(self.forward)}; backward in {_names(self.backward)}"
        return f"{self.name} on {self.device}: {able}" + ("" if self.why_not is None else f" ({self.why_not})")


def available_backends(device: str | torch.device | None = None) -> Mapping[str, BackendStatus]:
    """Ask every attention backend what it can run here.

    Args:
        device: where tensors would be; by default the accelerator if PyTorch sees one, else the CPU.

    Returns:
        By backend name, in the order of ``BACKENDS``.

    Raises:
        AttentionError: ``device`` is none that PyTorch knows.

    Example:
        >>> available_backends("cpu")["sdpa"].forward[0]
        torch.float32
    """
    kind = _device_type(device)
    return {name: _status(name, kind) for name in BACKENDS}


def _device_type(device: str | torch.device | None) -> str:
    if device is None:
        found = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
        return "cpu" if found is None else found.type
    try:
        return torch.device(device).type
    except RuntimeError as error:
        raise AttentionError(f"device is {device!r}; expected one that PyTorch knows, as 'cpu' or 'cuda'") from error


def _status(name: str, device_type: str) -> BackendStatus:
    objections: list[str] = []
    able: dict[bool, tuple[torch.dtype, ...]] = {}
    for with_gradient in (False, True):
        said = {dtype: objection_of(name, _plain_call(device_type, dtype, with_gradient)) for dtype in _DTYPES}
        objections += [text for text in said.values() if text is not None]
        able[with_gradient] = tuple(dtype for dtype, text in said.items() if text is None)
    reasons = tuple(dict.fromkeys(objections))
    return BackendStatus(
        name=name,
        device=device_type,
        forward=able[False],
        backward=able[True],
        why_not="; ".join(reasons) or None,
    )


def _plain_call(device_type: str, dtype: torch.dtype, with_gradient: bool) -> AttentionCall:  # noqa: FBT001 - private
    options = AttentionOptions(causal=True, window=None, chunk=None, scale=0.125, softcap=None, sinks=None, dropout=0.0)
    return AttentionCall(
        device_type=device_type,
        dtype=dtype,
        heads=8,
        key_heads=2,
        key_width=64,
        value_width=64,
        num_slots=1024,
        with_gradient=with_gradient,
        options=options,
    )


def _names(dtypes: tuple[torch.dtype, ...]) -> str:
    return ", ".join(str(dtype).removeprefix("torch.") for dtype in dtypes) or "nothing"
