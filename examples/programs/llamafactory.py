"""LLaMA-Factory with a sealed model, in place of ``llamafactory-cli train config.yaml``.

    python examples/programs/llamafactory.py config.yaml

It takes callbacks only from a script. In the configuration set ``packing: true``, and leave ``neat_packing`` off: its
ready-made mask hides the documents.
"""

from llamafactory.train.tuner import run_exp

from hermetic.integrations.transformers import LeakGuard, SealModel


def main() -> None:
    """Seal the model when training starts, and probe the first batch before the first step."""
    run_exp(callbacks=[SealModel(), LeakGuard()])


if __name__ == "__main__":
    main()
