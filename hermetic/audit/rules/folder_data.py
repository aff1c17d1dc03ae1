"""Topics 4, 6 and 7, over a packed folder: what it lost, what in it teaches nothing, and whether it is whole."""

from collections.abc import Callable, Iterator
from typing import Any, Final

from hermetic.audit.rule import Example, Rule

_START: Final = """\
import json
from pathlib import Path
from tempfile import TemporaryDirectory

import hermetic.demo
from hermetic.audit import audit_folder
from hermetic.data import pack_sources

tokenizer = Path(hermetic.demo.__file__).parent / "tokenizer"


def audited(records, before=lambda folder: None, duplicates=False, **options):
    options = {"tokenizer": tokenizer, "capacity": 32, **options}
    with TemporaryDirectory() as folder:
        source, out = Path(folder, "source.jsonl"), Path(folder, "packed")
        source.write_text("".join(json.dumps(one) + "\\n" for one in records))
        pack_sources(source, out, **options)
        before(out)
        return audit_folder(out, duplicates=duplicates)


"""


def _example(text: str) -> Example:
    """Python that packs something, audits it and leaves the report."""
    return Example(door="run", text=_START + text)


def _check_of(code: str) -> Callable[[Any], Iterator[Any]]:
    """The check of a rule, imported when it is first called, for it needs NumPy and Arrow."""

    def check(facts: Any) -> Iterator[Any]:
        from hermetic.audit.folder import CHECKS

        return CHECKS[code](facts)

    return check


_SOUND: Final = _example("""\
documents = [{"input_ids": list(range(5, 25))}, {"input_ids": [8, 9, 10]}]
report = audited(documents, duplicates=True)
""")

RULES: Final = (
    Rule(
        code="HM480",
        name="documents-without-supervision",
        what="Documents of a packed folder have no supervised token.",
        why="They fill slots, cost the compute of every layer and teach nothing. Truncation behind a long prompt makes "
        "them, and one micro-batch of nothing else has a loss of 0 divided by 0.",
        bad=_example("""\
talk = [
    {"role": "user", "content": "Two and three?"},
    {"role": "assistant", "content": "Five."},
]
report = audited([{"messages": talk}], capacity=8, on_overflow="truncate")
"""),
        good=_SOUND,
        fix="Leave them out of the source, supervise more of them, or raise the capacity so that answers are not cut.",
        sources=("huggingface/trl#6668", "NVIDIA/Megatron-LM#1764"),
        check=_check_of("HM480"),
    ),
    Rule(
        code="HM680",
        name="folder-breaks-a-law",
        what="A packed folder breaks one of its laws: a checksum, a count, a document that is not there or twice.",
        why="What is trained is not what was packed: a file was cut, exchanged or written over, or documents are lost. "
        "Nothing in training would notice.",
        bad=_example("""\
def damage(folder):
    path = next(folder.glob("*.arrow"))
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


report = audited([{"input_ids": [5, 6, 7]}], before=damage)
"""),
        good=_SOUND,
        fix="Copy the folder again, or pack the source again.",
        sources=("hermetic/data/check.py", "huggingface/trl#467"),
        check=_check_of("HM680"),
    ),
    Rule(
        code="HM780",
        name="tokens-lost",
        what="Tokens were cut off or documents dropped, for being beyond the capacity.",
        why="A policy that was meant for a few long documents can take most of a data set: one user lost 99.8% of the "
        "tokens, another 95% of the samples, with no report.",
        bad=_example("""\
documents = [{"input_ids": list(range(5, 55))}, {"input_ids": [8, 9, 10]}]
report = audited(documents, on_overflow="truncate")
"""),
        good=_SOUND,
        fix="Raise the capacity to the longest document, or split long ones, which loses no token.",
        sources=("huggingface/trl#4554", "huggingface/trl#467"),
        check=_check_of("HM780"),
    ),
    Rule(
        code="HM781",
        name="records-skipped",
        what="Records of the source could not be read and were skipped.",
        why="A source whose format changed in the middle loses its rest, and training goes on with what is left.",
        bad=_example("""\
documents = [{"input_ids": [5, 6, 7]}, {"text": ""}]
report = audited(documents, on_bad_record="skip")
"""),
        good=_SOUND,
        fix="Repair the records; on_bad_record='error' ends the run at the first one and names its line.",
        sources=("huggingface/trl#467", "pytorch/torchtitan#3008"),
        check=_check_of("HM781"),
    ),
    Rule(
        code="HM782",
        name="documents-of-one-token",
        what="Documents of a packed folder have one token.",
        why="Nothing of its own document predicts the token, and it predicts nothing, so it has no loss. Code that "
        "looks for falling positions joins two of them into one document.",
        bad=_example("""\
report = audited([{"input_ids": [5, 6, 7]}, {"input_ids": [8]}])
"""),
        good=_SOUND,
        fix="Look for empty texts in the source, and for fragments that are left over at the edge of the capacity.",
        sources=("modelscope/ms-swift#9903",),
        check=_check_of("HM782"),
    ),
    Rule(
        code="HM783",
        name="near-duplicates-in-a-row",
        what="Documents that are nearly the same share a row.",
        why="With a leak the second copy reads the first, and its loss falls while nothing is learned; so the leak "
        "flatters itself, and no loss curve shows it. Sealed, a copy is merely trained on twice.",
        bad=_example("""\
copy = list(range(5, 17))
documents = [{"input_ids": copy}, {"input_ids": copy}]
report = audited(documents, duplicates=True)
"""),
        good=_SOUND,
        fix="Remove duplicates from the source before packing.",
        sources=("hermetic/data/duplicates/find.py", "docs/compare.md"),
        check=_check_of("HM783"),
    ),
)
