"""Write docs/rules/: a table of all rules and a page for each, read from hermetic/audit/rules.

Run it after a change to the rules; a test fails while the pages and the code disagree.
"""

import re
from collections.abc import Iterator
from pathlib import Path

from hermetic.audit import Example, Rule
from hermetic.audit.explain import found_by, link_of, read_as, topic_of
from hermetic.audit.rules import RULES, TOPICS

FOLDER = Path(__file__).parents[1] / "docs" / "rules"

HEAD = """# Rules

What can be found has a code that keeps its meaning, and a rule that says what it is, why it is bad, how it looks, how
to mend it, and who has reported it. The same is told in the terminal:

```bash
hermetic explain HM101
hermetic explain --list
```

The hundreds are topics. Codes below x20 are measured by running, by the [probe](../probe.md) and the
[doctor](../doctor.md); some of them are seen without, and so is all the rest, by an [audit](../audit.md): x20 to x39
in settings, wherever they stand, x40 to x59 in scripts, x60 to x79 in [batches](../audit-batch.md), x80 to x99 in
packed folders.

Each rule has an example in which it is found and one that is sound. The tests run both through the door that a user's
file takes, so the pages show them as text. The pages are written by `scripts/rules_pages.py`.
"""


def plain(text: str) -> str:
    """Text in which Markdown finds nothing to format."""
    return re.sub(r"([\\`*<>\[\]|]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9]))", r"\\\1", text)


def section(topic: str) -> Iterator[str]:
    """The rules of one hundred as a table."""
    rules = [rule for rule in RULES.values() if rule.code.startswith(topic)]
    if rules:
        yield f"\n## {TOPICS[topic][0].upper()}{TOPICS[topic][1:]}\n\n| code | rule | what | found by |\n"
        yield "| --- | --- | --- | --- |\n"
    for rule in rules:
        yield f"| [{rule.code}]({rule.code}.md) | {rule.name} | {plain(rule.what)} | {found_by(rule)} |\n"


def fence(example: Example) -> str:
    """An example as text in a fence that it does not hold itself."""
    head = plain(read_as(example))
    ticks = "`" * max(3, 1 + max(map(len, re.findall("`+", example.text)), default=0))
    return f"{head[0].upper()}{head[1:]}:\n\n{ticks}text\n{example.text.rstrip()}\n{ticks}\n"


def source(name: str) -> str:
    """A source as a link where it is an address or another page of the documentation."""
    address = f"../{name.removeprefix('docs/')}" if name.startswith("docs/") else link_of(name)
    return f"- [{name}]({address})\n" if address else f"- {plain(name)}\n"


def page(rule: Rule) -> str:
    """The page of one rule."""
    return "\n".join(
        [
            f"# {rule.code} {rule.name}\n\n{plain(rule.what)}\n",
            f"Of [{topic_of(rule)}](index.md); found by {found_by(rule)}.\n",
            f"## Why it is bad\n\n{plain(rule.why)}\n",
            f"## Found\n\n{fence(rule.bad)}",
            f"## Sound\n\n{fence(rule.good)}",
            f"## Fix\n\n{plain(rule.fix)}\n",
            "## Sources\n\n" + "".join(map(source, rule.sources)),
        ]
    )


def pages() -> dict[str, str]:
    """All pages by the name of their file."""
    index = HEAD + "".join(line for topic in TOPICS for line in section(topic))
    return {"index.md": index, **{f"{code}.md": page(rule) for code, rule in RULES.items()}}


def main() -> None:
    """Replace each page in one step, and take away those of rules that are gone."""
    FOLDER.mkdir(exist_ok=True)
    written = pages()
    for name, text in written.items():
        draft = FOLDER / f"{name}.tmp"
        draft.write_text(text, encoding="utf-8")
        draft.replace(FOLDER / name)
    for old in FOLDER.glob("*.md"):
        if old.name not in written:
            old.unlink()
    print(f"wrote {len(written)} pages")


if __name__ == "__main__":
    main()
