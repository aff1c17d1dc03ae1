"""Liger's fused linear cross-entropy, where it is installed and asked for by name.

Algorithm: ``LigerFusedLinearCrossEntropyLoss`` over the supervised rows, summed, with its gradients added in
float32. Guarantee: nothing else runs instead; what the kernel cannot do is an error that says so. Its losses of
single tokens are not used, for earlier versions multiplied their gradients only after they had been summed; so it
gives token-level losses alone, and a loss that is not finite has no place. Price: a package of its own, and a GPU.
"""

from importlib import import_module
from typing import Any

import torch

from hermetic.errors import LossError, MissingDependencyError, NonFiniteError
from hermetic.loss.sweep import Operands, Recipe
from hermetic.loss.targets import Targets

WITHOUT_KERNEL = ("cpu",)
"""Devices that the kernel is not compiled for."""


def liger_total(operands: Operands, targets: Targets, recipe: Recipe, reduction: str) -> torch.Tensor:
    """The summed loss of the supervised tokens by Liger's kernel.

    Args:
        operands: Hidden states [S, K], weight and bias.
        targets: The S tokens.
        recipe: How the losses are made; the kernel chooses its chunks itself.
        reduction: That of the loss, which has to be ``"token"``.

    Returns:
        A differentiable scalar; 0.0 of nothing without a call of the kernel.

    Raises:
        LossError: If the kernel cannot do what was asked.
        MissingDependencyError: If Liger is not installed.
        NonFiniteError: If the sum is NaN or infinite.

    Example:
        >>> from hermetic.loss.targets import targets_from_labels
        >>> targets = targets_from_labels(torch.tensor([-100, 1]), 4, str)
        >>> liger_total((torch.ones(1, 2), torch.ones(4, 2), None), targets, Recipe(), "sqrt")
        Traceback (most recent call last):
            ...
        hermetic.errors.LossError: backend 'liger' cannot do reduction='sqrt'; use backend='torch'
    """
    hidden, weight, bias = operands
    for lacking, what in (
        (reduction != "token", f"reduction={reduction!r}"),
        (recipe.scale != 1.0, f"logit_scale={recipe.scale!r}"),
        (recipe.chunk_tokens is not None, f"chunk_tokens={recipe.chunk_tokens!r}"),
        (hidden.device.type in WITHOUT_KERNEL, f"tensors on the {hidden.device.type}"),
    ):
        if lacking:
            raise LossError(f"backend 'liger' cannot do {what}; use backend='torch'")
    fused = _kernel()(
        lse_square_scale=recipe.cost.z_loss,
        label_smoothing=recipe.cost.label_smoothing,
        reduction="sum",
        softcap=recipe.softcap,
        accum_dtype=torch.float32,
    )
    if len(targets) == 0:  # the kernel counts rows per launch, and there are none
        return hidden.sum() * weight.sum() * 0.0
    total: torch.Tensor = fused(weight, hidden, targets.values, bias)
    if not bool(total.detach().isfinite()):
        raise NonFiniteError(
            f"the summed loss is {float(total.detach())}, expected finite logits where they predict a supervised "
            f"token; backend='torch' names the token"
        )
    return total


def _kernel() -> Any:
    try:
        module = import_module("liger_kernel.transformers")
    except ImportError as error:
        raise MissingDependencyError(
            "backend 'liger' needs the package liger-kernel, which cannot be imported here: "
            f"{error}; install it with `pip install liger-kernel`, or use backend='torch'"
        ) from error
    return module.LigerFusedLinearCrossEntropyLoss
