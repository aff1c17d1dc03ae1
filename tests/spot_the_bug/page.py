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
The same in Python:

```python
from hermetic.audit import audit_script

report = audit_script("tests/spot_the_bug/04_lesson_plans.py")

assert [finding.code for finding in report.findings] == ["HM102"]
assert str(report.findings[0].place).endswith("04_lesson_plans.py:18:13 LlamaForCausalLM(use_cache)")
assert audit_script("tests/spot_the_bug/12_letters.py").sound
```
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
