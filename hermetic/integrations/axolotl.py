"""Axolotl: a plugin that seals the model.

In the configuration, beside ``sample_packing: true``::

    plugins:
      - hermetic.integrations.axolotl.HermeticPlugin

Algorithm: the model is sealed once it is loaded, a guard is added to the trainer, and labels are taken off first tokens
before the trainer counts labels: Axolotl's packing leaves them there, and what nothing predicts has no loss to divide.
Guarantee: the model that trains is sealed, with its adapters, or the run stops before its first step; the loss of a
step is that of the same documents padded. Price: that of ``hermetic.seal`` and of ``hermetic.guard``.
"""

from collections.abc import Callable
from typing import Any

from hermetic.constants import IGNORE_INDEX
from hermetic.errors import MissingDependencyError
from hermetic.integrations.transformers import LeakGuard
from hermetic.seal import seal

try:
    from axolotl.integrations.base import BasePlugin
except ImportError as error:
    raise MissingDependencyError(
        "hermetic.integrations.axolotl needs the package 'axolotl', which is not installed; expected to be loaded by "
        "Axolotl itself, as a plugin in its configuration"
    ) from error


class HermeticPlugin(BasePlugin):  # type: ignore[misc]  # Axolotl is not installed where this is checked
    """Seals the model that Axolotl loaded, and probes the first batch that it collated."""

    def post_model_load(self, cfg: Any, model: Any) -> None:  # noqa: ARG002 - Axolotl's names
        """Seal the model; adapters are in it by now.

        Raises:
            SealError: it cannot be sealed.
        """
        seal(model)

    def post_trainer_create(self, cfg: Any, trainer: Any) -> None:  # noqa: ARG002 - Axolotl's names
        """Let the trainer's batches have no labels on first tokens."""
        for name in ("data_collator", "eval_data_collator"):
            collator = getattr(trainer, name, None)
            if collator is not None:
                setattr(trainer, name, WithoutFirstLabels(collator))

    def add_callbacks_post_trainer(self, cfg: Any, trainer: Any) -> list[Any]:  # noqa: ARG002 - Axolotl's names
        """A guard, which refuses the first step where documents reach each other."""
        return [LeakGuard()]


class WithoutFirstLabels:
    """A collator's batches without labels where positions start over."""

    def __init__(self, collator: Callable[..., Any]) -> None:
        """Wrap a collator.

        Args:
            collator: of ``labels`` and ``position_ids``, ``[B, S]`` each; other batches pass as they are.
        """
        self.collator = collator

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The batch, in what the collator gave."""
        batch = self.collator(*args, **kwargs)
        labels, positions = batch.get("labels"), batch.get("position_ids")
        if labels is not None and positions is not None and labels.shape == positions.shape:
            batch["labels"] = labels.masked_fill(positions == 0, IGNORE_INDEX)
        return batch
