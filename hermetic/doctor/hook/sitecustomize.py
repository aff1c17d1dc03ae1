"""Loaded by every Python that a command under ``hermetic doctor`` starts: waits for torch, and does nothing else.

Python imports a module of this name at start-up, from the first folder of ``PYTHONPATH`` that has one. The one that
it would have found otherwise is loaded after this. Standard library only, and no syntax newer than Python 3.6: the
interpreter is the user's, and may know neither hermetic nor what hermetic needs.
Guarantee: where torch is imported it is watched, or the process ends before it can train.
Price: a few milliseconds at each start.
"""

# A folder on PYTHONPATH is no package, and pathlib would be loaded at each start of a Python.
# ruff: noqa: INP001, PTH100, PTH105, PTH118, PTH120, PTH123

import importlib.machinery
import importlib.util
import json
import os
import sys
from typing import Any

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(HERE)))


class HermeticFinder:
    """Finds hermetic, and nothing else that lies beside it, where the command's own environment has none."""

    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> Any:  # noqa: ARG004 - Python's protocol
        """Where hermetic is, if that is what is asked for."""
        return importlib.machinery.PathFinder.find_spec(name, [ROOT]) if name == "hermetic" else None


class TorchFinder:
    """Finds torch where the other finders do, and arms the watch as soon as it has been imported."""

    @classmethod
    def find_spec(cls, name: str, path: Any = None, target: Any = None) -> Any:
        """Where torch is, with a loader that arms the watch."""
        if name != "torch":
            return None
        others = [finder for finder in sys.meta_path if finder is not cls and hasattr(finder, "find_spec")]
        found = (finder.find_spec(name, path, target) for finder in others)
        spec = next((one for one in found if one is not None), None)
        if spec is not None and spec.loader is not None:
            arm_after(spec.loader)
        return spec


def arm_after(loader: Any) -> None:
    """Have this loader arm the watch when it has run its module; asking where torch is does not run it."""
    run = loader.exec_module

    def exec_module(module: Any) -> None:
        del loader.exec_module
        run(module)
        sys.meta_path.remove(TorchFinder)
        arm()

    loader.exec_module = exec_module


def arm() -> None:
    """Start to watch, or end this process: what is not watched would train and write."""
    try:
        from hermetic.doctor.watch import arm as watch

        watch()
    except Exception as error:  # noqa: BLE001 - whatever it is, it is told and nothing is trained
        version = ".".join(str(part) for part in sys.version_info[:3])
        refuse(
            f"{sys.executable} (Python {version}) cannot run hermetic: {type(error).__name__}: {error}. Install "
            "hermetic and what it needs into the environment that the command runs in"
        )


def refuse(why: str) -> None:
    """Leave the reason for the waiting parent, and end without running anything else."""
    folder = os.environ["HERMETIC_DOCTOR"]
    draft = os.path.join(folder, f"refusal-{os.getpid()}.tmp")
    with open(draft, "w", encoding="utf-8") as file:
        json.dump({"error": why}, file)
    os.replace(draft, os.path.join(folder, "record.json"))
    os._exit(2)


def load_the_one_behind() -> None:
    """Load the sitecustomize that Python would have found if this one were not in front of it."""
    others = [entry for entry in sys.path if os.path.abspath(entry or os.curdir) != HERE]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", others)
    if spec is None or spec.loader is None:
        return
    module = importlib.util.module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


if "HERMETIC_DOCTOR" in os.environ:
    sys.meta_path.append(HermeticFinder)
    sys.meta_path.insert(0, TorchFinder)
load_the_one_behind()
