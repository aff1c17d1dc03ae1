"""Write docs/errors.md: the table of error codes, read from hermetic/errors.py.

Run it after a change to the errors; a test fails while the page and the code disagree.
"""

import inspect
from pathlib import Path

from hermetic import errors

PAGE = Path(__file__).parents[1] / "docs" / "errors.md"

HEAD = """# Errors

Every error of this package is a `hermetic.HermeticError` and carries a `code`. The code keeps its meaning
across releases, so scripts may match on it; messages may be reworded. A message names the offender, its
value, what was expected, and the way out. Errors are also the builtin that a caller would expect:
`except ValueError` works.

```python
import hermetic

try:
    hermetic.Boundaries.from_cu_seqlens([1, 3])
except hermetic.HermeticError as error:
    assert error.code == "HE200"
    assert isinstance(error, ValueError)
```

This table is written by `scripts/errors_page.py`.

| code | error | is also | meaning |
| --- | --- | --- | --- |
"""


def row(error: type[errors.HermeticError]) -> str:
    """One line of the table."""
    parents = ", ".join(f"`{base.__name__}`" for base in error.__bases__ if base is not Exception)
    meaning = inspect.getdoc(error) or ""
    return f"| {error.code} | `{error.__name__}` | {parents} | {meaning.replace('``', '`')} |\n"


def page() -> str:
    """The whole page, in the order of the codes."""
    classes = [member for _, member in inspect.getmembers(errors, inspect.isclass)]
    own = sorted((c for c in classes if issubclass(c, errors.HermeticError)), key=lambda c: c.code)
    return HEAD + "".join(map(row, own))


def main() -> None:
    """Replace the page in one step."""
    draft = PAGE.with_suffix(".md.tmp")
    draft.write_text(page(), encoding="utf-8")
    draft.replace(PAGE)
    print(f"wrote {PAGE.name}")


if __name__ == "__main__":
    main()
