"""Writes docs/spot-the-bug.md from the exercises of this folder: ``python tests/spot_the_bug/page.py``."""

from pathlib import Path

import yaml

HERE = Path(__file__).parent
PAGE = HERE.parents[1] / "docs" / "spot-the-bug.md"

HEAD = """\
# Spot the bug

Twenty short training snippets. Twelve have one packing bug each, eight have none. A loss that falls tells none of
them: the bug is in what the model learns. Read each, decide, and compare with the [solutions](#solutions).

`hermetic audit` finds eleven of the twelve in the text alone, and says nothing of the eight. The twelfth is found by
`hermetic doctor`, which runs the snippet up to its first batch. The files are in `tests/spot_the_bug/`, and a test
holds audit and doctor to what the solutions say.
"""

TAIL = """\
The same in Python, of a file of your own:

```python
from pathlib import Path

from hermetic.audit import audit_script

Path("train.py").write_text(
    "from trl import SFTConfig\\nSFTConfig(packing=True, packing_strategy='wrapped', max_length=512)\\n"
)
report = audit_script("train.py")

assert [finding.code for finding in report.findings] == ["HM120"]
assert str(report.findings[0].place) == "train.py:2:25 SFTConfig(packing_strategy)"
```

A script is read by its syntax tree and nothing of it runs, so what arguments, the environment or a function's result
decide is told as a note and not guessed. The text shows less than a run does: have the doctor look at the first batch.
"""


def exercises() -> list[Path]:
    """The snippets in their order."""
    return sorted(HERE.glob("[0-9]*.py"))


def solutions() -> dict[str, dict[str, object]]:
    """What each is about, by the name of its file."""
    return yaml.safe_load((HERE / "solutions.yaml").read_text(encoding="utf-8"))


def page() -> str:
    """The whole page: exercises, then solutions."""
    parts = [HEAD]
    known = solutions()
    for path in exercises():
        number, name = path.stem.split("_", 1)
        text = path.read_text(encoding="utf-8").rstrip()
        parts.append(f"## {int(number)}. {name.replace('_', ' ').capitalize()}\n\n```py\n{text}\n```\n")
    rows = ["| | finding | found by | |", "| ---: | --- | --- | --- |"]
    for name, one in known.items():
        code, by = one["code"], one["by"]
        link = f"[{code}](rules/{code}.md)" if code else "none"
        rows.append(f"| {int(name[:2])} | {link} | {by or ''} | {one['solution']} |")
    parts.append("## Solutions\n\n" + "\n".join(rows) + "\n")
    parts.append(TAIL)
    return "\n".join(parts)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
