"""Axolotl: a plugin that seals the model.

In the configuration, beside ``sample_packing: true``::

    plugins:
      - hermetic.integrations.axolotl.HermeticPlugin

Guarantee: the model that trains is sealed, with its adapters, or the run stops before its first step. Price: that of
``hermetic.seal`` and of ``hermetic.guard``.
"""

from typing import Any

from axolotl.integrations.base import BasePlugin

from hermetic.integrations.transformers import LeakGuard
from hermetic.seal import seal


class HermeticPlugin(BasePlugin):  # type: ignore[misc]  # Axolotl is not installed where this is checked
    """Seals the model that Axolotl loaded, and probes the first batch that it collated."""

    def post_model_load(self, cfg: Any, model: Any) -> None:  # noqa: ARG002 - Axolotl's names
        """Seal the model; adapters are in it by now.

        Raises:
            SealError: it cannot be sealed.
        """
        seal(model)

    def add_callbacks_post_trainer(self, cfg: Any, trainer: Any) -> list[Any]:  # noqa: ARG002 - Axolotl's names
        """A guard, which refuses the first step where documents reach each other."""
        return [LeakGuard()]
