"""Real length files, which do not come with the code: HERMETIC_LENGTHS_DIR names the folder that holds them."""

import json
import os
from pathlib import Path

import pytest


def length_file(name):
    folder = os.environ.get("HERMETIC_LENGTHS_DIR")
    if folder is None:
        pytest.fail(f"{name} is needed: set HERMETIC_LENGTHS_DIR to the folder that holds it", pytrace=False)
    return json.loads((Path(folder) / name).read_text(encoding="utf-8"))
