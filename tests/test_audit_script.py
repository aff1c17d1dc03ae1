"""A script is read as Python would read it, and nothing of it runs: names, values, settings, notes and bad input."""

import ast
import json
import os
import string
import textwrap
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hermetic.audit import AuditReport, audit_script
from hermetic.audit.rules import RULES
from hermetic.audit.script.names import names_of
from hermetic.audit.script.report import audit_source
from hermetic.audit.script.source import LARGEST, source_of_text
from hermetic.audit.script.values import value_of
from hermetic.audit.setup import UNKNOWN
from hermetic.errors import AuditError

LIBRARY = Path(ast.__file__).parent
STANDARD = sorted(path for path in LIBRARY.glob("*.py") if path.stat().st_size < 120_000)
FOLDER = Path(__file__).parent / "spot_the_bug"

WRAPPED = """
from trl import SFTConfig
config = SFTConfig(packing=True, packing_strategy="wrapped", max_length=1024)
"""


def read(text: str, **options) -> AuditReport:
    return audit_source(source_of_text(textwrap.dedent(text)), **options)


def codes(text: str) -> list[str]:
    return [finding.code for finding in read(text).findings]


def value(text: str):
    """What the last expression of a text is worth."""
    tree = ast.parse(textwrap.dedent(text))
    return value_of(tree.body[-1].value, names_of(tree))


@pytest.mark.parametrize(
    "how",
    [
        "from trl import SFTConfig\nSFTConfig({})",
        "from trl import SFTConfig as C\nC({})",
        "import trl\ntrl.SFTConfig({})",
        "import trl as t\nt.SFTConfig({})",
        "from trl import *\nSFTConfig({})",
        "from trl.trainer.sft_config import SFTConfig\nSFTConfig({})",
        "import trl.trainer.sft_config\ntrl.trainer.sft_config.SFTConfig({})",
        "import trl\nMake = trl.SFTConfig\nMake({})",
        "try:\n    from trl import SFTConfig\nexcept ImportError:\n    SFTConfig = None\nSFTConfig({})",
        "def main():\n    from trl import SFTConfig\n    return SFTConfig({})",
    ],
)
def test_a_configuration_is_found_by_whatever_name_it_was_imported(how):
    assert codes(how.format('packing=True, packing_strategy="wrapped", max_length=8')) == ["HM120"]


@pytest.mark.parametrize(
    "how",
    [
        "from mine import SFTConfig\nSFTConfig({})",
        "class SFTConfig: ...\nSFTConfig({})",
        "from trl import SFTConfig\ndef SFTConfig(**options): ...\nSFTConfig({})",
    ],
)
def test_what_is_not_from_trl_is_no_configuration_of_trl(how):
    assert codes(how.format('packing=True, packing_strategy="wrapped", max_length=8')) == []


@pytest.mark.parametrize(
    "how",
    [
        "options = dict(packing=True, packing_strategy='wrapped', max_length=8)\nSFTConfig(**options)",
        "options = {'packing': True, **{'packing_strategy': 'wrapped'}, 'max_length': 2 * 4}\nSFTConfig(**options)",
        "PACK = STRATEGY = 'wrapped'\nSFTConfig(packing=not False, packing_strategy=STRATEGY, max_length=8)",
        "base = dict(packing=True, max_length=8)\nSFTConfig(**base | {'packing_strategy': 'wrapped'})",
        "rows = {'sft': {'packing': True, 'packing_strategy': 'wrapped', 'max_length': 8}}\nSFTConfig(**rows['sft'])",
        "config = SFTConfig(packing=True, max_length=8)\nconfig.packing_strategy = 'wrapped'",
        "config = SFTConfig(packing=False, packing_strategy='wrapped', max_length=8)\nconfig.packing = True",
    ],
)
def test_settings_are_read_through_names_and_dictionaries(how):
    report = read(f"from trl import SFTConfig\n{how}")

    assert [finding.code for finding in report.findings] == ["HM120"]
    assert report.notes == ()


@pytest.mark.parametrize(
    "how",
    [
        "SFTConfig(packing=options.packing, packing_strategy='wrapped', max_length=8)",
        "SFTConfig(packing_strategy='wrapped', max_length=8, **vars(options))",
        "import os\nSFTConfig(packing=bool(os.environ.get('PACK')), packing_strategy='wrapped', max_length=8)",
        "packing = False\nif options.pack:\n    packing = True\nSFTConfig(packing=packing, packing_strategy='wrapped')",
        "rows = dict(packing=True, packing_strategy='wrapped')\nrows['packing'] = f()\nSFTConfig(**rows)",
        "rows = dict(packing=True, packing_strategy='wrapped')\ntweak(rows)\nSFTConfig(**rows)",
    ],
)
def test_what_only_running_would_tell_is_a_note_with_its_place_and_no_finding(how):
    report = read(f"from trl import SFTConfig\n{how}")

    assert report.findings == ()
    assert len(report.notes) == 1
    assert report.notes[0].startswith("script.py:")
    assert report.notes[0].endswith("cannot be read without running the script.")


def test_a_setting_that_is_changed_in_a_branch_is_not_known():
    text = "from trl import SFTConfig\nc = SFTConfig(packing=True, packing_strategy='wrapped', max_length=8)\n"

    assert codes(text) == ["HM120"]
    assert codes(f"{text}c.packing = False\n") == []
    assert codes(f"{text}if quick:\n    c.packing = False\n") == []


def test_versions_decide_what_depends_on_them_and_are_named_otherwise():
    text = "from trl import SFTConfig\nSFTConfig(packing=True, max_length=8)"

    def said(**versions: str) -> set[tuple[str, str, str | None]]:
        found = read(text, versions=versions).findings
        return {(one.code, one.certainty, one.versions) for one in found if one.code.startswith("HM1")}

    assert said() == set()
    assert [note.partition(",")[0] for note in read(text).notes if "trl <" in note] == [
        "With trl < 0.19",
        "With trl < 0.23",
    ]
    assert said(trl="1.16.0") == set()
    assert said(trl="0.18.2") == {("HM120", "certain", None)}


def test_a_setting_of_a_wrong_type_is_a_note_and_a_version_that_is_none_an_error():
    text = "from trl import SFTConfig\nSFTConfig(packing=True, max_length='long')"
    said = read(text)

    assert said.findings == ()
    assert said.notes == ("script.py:2:25 SFTConfig(max_length) is 'long'; TRL expects a number there. Correct it",)
    with pytest.raises(AuditError, match="version 'newest' is no version"):
        read(text, versions={"trl": "newest"})


def test_a_sealed_model_takes_the_isolation_findings_away_and_leaves_the_others():
    text = """
    from trl import DPOConfig, SFTConfig
    from transformers import AutoModelForCausalLM
    {}
    model = AutoModelForCausalLM.from_pretrained("facebook/opt-125m", attn_implementation="sdpa")
    {}
    SFTConfig(packing=True, packing_strategy="bfd_split", max_length=8, neftune_noise_alpha=5.0)
    """
    bare = codes(text.format("", ""))
    sealed = codes(
        text.format("import hermetic", "hermetic.seal(model)").replace("openai-community/opt", "facebook/opt")
    )

    assert "HM123" in bare
    assert sealed == [code for code in bare if not code.startswith("HM1")] != []


def test_what_is_right_and_could_be_better_or_says_less_than_it_seems_is_a_note():
    varlen = """
    from flash_attn import flash_attn_varlen_func
    from trl import DPOConfig

    def attend(q, k, v, cu_seqlens):
        return flash_attn_varlen_func(q, k, v, cu_seqlens, cu_seqlens, q.shape[0], q.shape[0], causal=True)

    DPOConfig(padding_free={})
    """
    said = read(varlen.format(True))

    assert said.findings == ()
    assert [note.split()[1] for note in said.notes] == ["DPOConfig(padding_free)", "max_seqlen_q", "max_seqlen_k"]
    assert len(read(varlen.format(False)).notes) == 2


def test_a_hybrid_is_known_by_its_name_and_by_its_class():
    text = (
        "from transformers import {0}, DataCollatorWithFlattening, Trainer\n"
        "{1}\nTrainer(data_collator=DataCollatorWithFlattening())"
    )
    named = text.format("AutoModelForCausalLM", 'AutoModelForCausalLM.from_pretrained("ibm-ai-platform/Bamba-9B-v2")')
    by_class = text.format("BambaForCausalLM, BambaConfig", "BambaForCausalLM(BambaConfig())")

    assert codes(named) == codes(by_class) == ["HM320"]
    assert codes(by_class.replace("Bamba", "Llama")) == []


def test_soft_prompts_over_packed_rows_are_found_and_lora_is_not():
    text = (
        "from trl import SFTConfig\nfrom peft import {0}\n{0}()\n"
        "SFTConfig(packing=True, packing_strategy='bfd_split', max_length=8)"
    )

    assert codes(text.format("PrefixTuningConfig")) == ["HM124"]
    assert codes(text.format("LoraConfig")) == []


def test_a_finding_has_the_line_and_the_column_of_what_it_is_about():
    (finding,) = read(
        "# caffè ☕\nfrom trl import SFTConfig\nété = SFTConfig(packing=True, packing_strategy='wrapped', max_length=8)"
    ).findings

    assert (finding.place.line, finding.place.column) == (3, 31)
    assert finding.place.key == "SFTConfig(packing_strategy)"
    assert str(finding.place) == "script.py:3:31 SFTConfig(packing_strategy)"


def test_a_report_goes_through_json_and_back():
    report = audit_script(FOLDER / "04_lesson_plans.py")

    assert AuditReport.from_dict(json.loads(report.to_json())) == report
    assert (report.kind, report.stack, report.sound) == ("script", "transformers", False)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2 * 1024 - 1", 2047),
        ("-7 // 2", -4),
        ("not 0", True),
        ("'a' + 'b'", "ab"),
        ("x = 3\ny = x\ny", 3),
        ("x = 3\nx = 4\nx", UNKNOWN),
        ("x = 3\nx += 1\nx", UNKNOWN),
        ("for x in [1]: ...\nx", UNKNOWN),
        ("def f(x=1): return x\nx", UNKNOWN),
        ("a, (b, c) = 1, (2, 3)\nc", 3),
        ("a, b = pair()\na", UNKNOWN),
        ("import torch\ntorch.bfloat16", "torch.bfloat16"),
        ("d = {'a': 1}\nd['a']", 1),
        ("d = {'a': 1}\nd.update(b=2)\nd", UNKNOWN),
        ("d = {'a': f()}\nd['a']", UNKNOWN),
        ("x = y\ny = x\nx", UNKNOWN),
        ("10 ** 10 ** 10", UNKNOWN),
        ("(1 if f() else 2)", UNKNOWN),
        ("1 // 0", UNKNOWN),
        ("f'{x}'", UNKNOWN),
    ],
)
def test_a_value_is_what_python_would_compute_or_is_not_known(text, expected):
    assert value(text) == expected


@given(
    st.recursive(
        st.integers(-999, 999) | st.booleans() | st.text(string.ascii_letters, max_size=4) | st.none(),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("abc", max_size=2), inner, max_size=3),
        max_leaves=8,
    )
)
def test_a_literal_is_worth_itself_whichever_way_it_is_named(plain):
    assert value(f"x = {plain!r}\ny = x\ny") == plain
    assert value(f"{{'key': {plain!r}}}['key']") == plain


NOTEBOOK_CELLS = [
    {"cell_type": "markdown", "source": ["from trl import SFTConfig\n", "SFTConfig(packing=True)"]},
    {"cell_type": "code", "source": ["%pip install trl\n", "!ls\n", "a = !ls\n", "from trl import SFTConfig"]},
    {"cell_type": "code", "source": "%%bash\nSFTConfig(packing=True, packing_strategy='wrapped')"},
    {
        "cell_type": "code",
        "source": "if True:\n    !ls\n\nSFTConfig(max_length=8, packing=True,\n packing_strategy='wrapped')",
    },
]


def test_a_notebook_is_read_by_its_code_cells_and_places_name_the_cell(tmp_path):
    path = tmp_path / "train.ipynb"
    path.write_text(json.dumps({"cells": NOTEBOOK_CELLS, "nbformat": 4}), encoding="utf-8")
    (finding,) = audit_script(path).findings

    assert finding.code == "HM120"
    assert (finding.place.key, finding.place.line) == ("cell 4: SFTConfig(packing_strategy)", 5)


def test_a_line_for_the_shell_goes_on_where_it_ends_with_a_backslash_and_other_lines_keep_their_numbers(tmp_path):
    path = tmp_path / "train.ipynb"
    source = ["!pip install trl \\\n", "    peft \\\n", "    torch\n", WRAPPED.strip()]
    path.write_text(json.dumps({"cells": [{"cell_type": "code", "source": source}]}), encoding="utf-8")
    (finding,) = audit_script(path).findings

    assert (finding.code, finding.place.line) == ("HM120", 5)


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("a.py", b"print 'hello'\n", r"line 1: .*expected what Python 3\.\d+ can parse. This is Python 2"),
        ("a.py", b"try:\n    pass\nexcept OSError, error:\n    pass\n", r"line 3: .*This is Python 2"),
        ("a.py", b"def f(:\n", r"line 1: .*Repair it, or, if it needs a Python newer than 3\.\d+, run the audit"),
        ("a.py", "x = 'é'\n".encode("latin-1"), "cannot be decoded: .*expected UTF-8, or a line such as"),
        ("a.py", b"# -*- coding: klingon -*-\n", "cannot be decoded: .*klingon"),
        ("a.py", b"x = 1\x00\n", r"a\.py: .*null bytes"),
        ("a.py", b"# coding: punycode\nx = '\xe9'\n", "cannot be decoded"),
        ("a.py", b"x = " + b"(" * 500 + b"1" + b")" * 500, "too many nested parentheses"),
        ("a.py", b"x = " + b"-" * 200_000 + b"1", "nested too deeply"),
        ("a.py", b"x = 1\n" * (LARGEST // 6 + 1), "expected a training script of at most"),
        ("a.ipynb", b"not json", "is no JSON"),
        ("a.ipynb", b"[]", "has no list of cells; expected version 4"),
        ("a.ipynb", b'{"worksheets": []}', "has no list of cells"),
        ("a.ipynb", b'{"cells": [{"cell_type": "code", "source": "print 1"}]}', "This is Python 2"),
        ("a.ipynb", b'{"cells": [{}, {"cell_type": "code", "source": "a = 1\\ndef f(:"}]}', "cell 2, line 2: "),
        ("a.ipynb", b'{"cells": [], "metadata": {"kernelspec": {"language": "R"}}}', "written in r; expected one in"),
    ],
)
def test_a_file_that_is_no_script_is_an_error_that_says_why_and_what_was_expected(tmp_path, name, data, message):
    path = tmp_path / name
    path.write_bytes(data)

    with pytest.raises(AuditError, match=message) as error:
        audit_script(path)
    assert str(path) in str(error.value)


def test_a_file_that_is_not_there_or_is_no_regular_file_is_an_error(tmp_path):
    pipe, loop = tmp_path / "pipe.py", tmp_path / "loop.py"
    os.mkfifo(pipe)
    loop.symlink_to(loop)
    for path in (tmp_path / "none.py", tmp_path, pipe, loop):
        with pytest.raises(AuditError, match="cannot be read"):
            audit_script(path)


def test_encodings_line_ends_and_marks_are_those_of_python(tmp_path):
    path = tmp_path / "train.py"
    for data in (
        b"\xef\xbb\xbf" + WRAPPED.encode(),
        b"# -*- coding: latin-1 -*-\n# caf\xe9" + WRAPPED.encode(),
        WRAPPED.replace("\n", "\r\n").encode(),
        WRAPPED.replace("\n", "\x0c\n").encode(),
    ):
        path.write_bytes(data)
        assert [finding.code for finding in audit_script(path).findings] == ["HM120"]


def test_the_text_at_a_node_is_what_python_says_stands_there_and_each_node_is_inside_of_one_function():
    text = (LIBRARY / "bisect.py").read_text(encoding="utf-8") + "größe = f(\n    'é', lambda ß: ß + 1)\n"
    source = source_of_text(text)
    names = names_of(source.tree)
    placed = [node for node in names.nodes if hasattr(node, "lineno")]
    functions = {names.function_of(node) for node in names.nodes}

    assert len(placed) > 200
    assert [source.text(node) for node in placed] == [ast.get_source_segment(text, node) for node in placed]
    assert sum(len(names.inside(function)) for function in functions) == len(names.nodes)
    assert all(names.function_of(node) is function for function in functions for node in names.inside(function))


def test_odd_escapes_are_read_without_a_warning():
    assert codes("x = '\\d'\n" + WRAPPED) == ["HM120"]


@pytest.mark.parametrize(
    "text",
    [
        "x = " + " + ".join(["1"] * 700),
        "x = a" + ".b" * 900,
        "x = a" + "[0]" * 900,
        "x = a" + "()" * 900,
        "if a: pass\n" + "elif b: pass\n" * 800,
        "".join(f"x{i + 1} = x{i} + x{i}\n" for i in range(200)) + "f(x200)",
        "".join(f"d{i + 1} = {{'a': d{i}, 'b': d{i}}}\n" for i in range(60)) + "f(**d60)",
        "".join(f"x{i} = x{(i + 1) % 50}\n" for i in range(50)) + "f(input_ids=x0, position_ids=x1)",
    ],
    ids=["sum", "attributes", "entries", "calls", "branches", "doubling", "nested dictionaries", "circle"],
)
def test_deep_and_circular_code_is_read_in_a_moment(text):
    assert codes(
        f"from trl import SFTConfig\n{text}\nSFTConfig(packing=True, packing_strategy='wrapped', max_length=8)"
    ) == ["HM120"]


def test_no_module_of_the_standard_library_has_a_finding():
    sample = STANDARD[::6]

    assert {path.name: audit_script(path).findings for path in sample if audit_script(path).findings} == {}


@settings(max_examples=15, suppress_health_check=[HealthCheck.too_slow])
@given(st.sampled_from(STANDARD))
def test_any_module_that_python_can_parse_is_read_and_has_no_finding(path):
    report = audit_script(path)

    assert report.findings == ()
    assert report.sound


def _statements() -> list[ast.stmt]:
    """Statements of all exercises and examples, from which programs are made."""
    texts = [path.read_text(encoding="utf-8") for path in sorted(FOLDER.glob("[0-9]*.py"))]
    texts += [example.text for rule in RULES.values() for example in (rule.bad, rule.good) if example.door == "script"]
    return [statement for text in texts for statement in ast.parse(text).body]


STATEMENTS = _statements()


@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.sampled_from(STATEMENTS), max_size=25))
def test_any_program_of_training_code_is_read_and_findings_stand_where_text_is(statements):
    text = "\n".join(ast.unparse(statement) for statement in statements)
    lines = text.splitlines() or [""]

    for finding in read(text).findings:
        assert finding.code in RULES
        assert 1 <= finding.place.line <= len(lines)
        assert 1 <= finding.place.column <= len(lines[finding.place.line - 1]) + 1


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_are_a_typed_error(tmp_path_factory, data):
    path = tmp_path_factory.getbasetemp() / f"bytes-{os.getpid()}.py"
    path.write_bytes(data)
    try:
        report = audit_script(path)
    except AuditError as error:
        assert str(path) in str(error)  # noqa: PT017 - either is right
    else:
        assert report.findings == ()


def test_the_audit_of_a_script_is_deterministic_and_sorted_by_place():
    text = "".join(path.read_text(encoding="utf-8") for path in sorted(FOLDER.glob("[0-9]*.py")))
    first, second = read(text), read(text)
    places = [(finding.place.line, finding.place.column) for finding in first.findings]

    assert first == second
    assert places == sorted(places)
    assert len(places) == len(set(zip(places, [f.code for f in first.findings], strict=True)))


def test_the_reader_runs_nothing_of_a_script(tmp_path):
    path = tmp_path / "train.py"
    path.write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\nraise SystemExit(3)\n", encoding="utf-8")

    assert audit_script(path).sound
    assert not (tmp_path / "ran").exists()
