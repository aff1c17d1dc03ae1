"""Writes hermetic/audit/stacks/families.json, what the audit knows of types of models, from docs/atlas.md.

python scripts/families_table.py
"""

import json
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "atlas.md"
TABLE = ROOT / "hermetic" / "audit" / "stacks" / "families.json"

_ROW = re.compile(
    r"^\| `(?P<type>[^`]+)` \| (?P<attention>\w+) \| (?P<called>[^|]+) \|(?:[^|]*\|){4} (?P<first>[^|]*) \| [^|]* \|$"
)
_VERDICTS = {"ok": "ok", "leak": "leak", "distortion": "distortion", "row length": "row length"}


def table(page: str) -> dict[str, Any]:
    """What the page's table says of models as they are shipped and called correctly.

    Returns:
        ``transformers``, the version that was measured; ``types``, for each type and attention implementation the
        verdict, the size of it and, of a leak, the module that it is first in.
    """
    version = re.search(r"transformers (\d[\w.]*)", page)
    if version is None:
        raise ValueError("docs/atlas.md names no version of transformers")
    types: dict[str, dict[str, Any]] = {}
    for row in filter(None, map(_ROW.match, page.splitlines())):
        verdict = next((known for known in _VERDICTS if row["called"].strip().startswith(known)), None)
        if verdict is not None:
            types.setdefault(row["type"], {})[row["attention"]] = _entry(verdict, row)
    return {"transformers": version[1], "types": dict(sorted(types.items()))}


def _entry(verdict: str, row: re.Match[str]) -> dict[str, Any]:
    entry: dict[str, Any] = {"verdict": verdict}
    if verdict == "leak":
        entry["size"] = float(row["called"].strip().removeprefix("leak"))
        module = re.search(r"\((\w+)\)", row["first"])
        entry["module"] = module[1] if module else None
    return entry


def text(page: str) -> str:
    """The file that belongs to a page."""
    return json.dumps(table(page), indent=1) + "\n"


if __name__ == "__main__":
    TABLE.write_text(text(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
