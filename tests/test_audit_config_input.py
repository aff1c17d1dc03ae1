"""Whatever a file holds, it is read, or refused with an error that names the place; nothing in it is made or run."""

import json
import os
from pathlib import Path

import pytest
import yaml
from audit_config_helpers import FOLDER, audited, said, told
from hypothesis import example, given, settings
from hypothesis import strategies as st

from hermetic.audit import audit_config
from hermetic.audit.setup import UNKNOWN
from hermetic.audit.stacks.files import LARGEST, settings_of_json, settings_of_yaml
from hermetic.errors import AuditError

TRL = "model_name_or_path: Qwen/Qwen3-0.6B\ndataset_name: x\nmax_length: 4096\npacking: true\n"

REFUSED = {
    "an empty file": ("", "is empty"),
    "white space": (" \n\t\n", "is empty"),
    "comments only": ("# nothing\n", "is not a mapping of settings"),
    "a list": ("- a\n- b\n", "is not a mapping of settings"),
    "a text": ("just words\n", "is not a mapping of settings"),
    "several documents": ("a: 1\n---\nb: 2\n", r"is no YAML: line \d, but found another document"),
    "no YAML": ("a: [1, 2\nb: }\n", r"is no YAML: line 2"),
    "a tab": ("a:\n\tb: 1\n", "is no YAML: line 2"),
    "a key twice": (TRL + "packing: false\n", r"train\.yaml:5 sets packing a second time, after line 4"),
    "a key twice inside": ("a:\n  b: 1\n  b: 2\n", r"train\.yaml:3 sets a\.b a second time"),
    "a key that is a list": ("? [a, b]\n: 1\n", "has a key that is no text"),
    "a template without quotes": (
        TRL.replace("true", "{{ packing }}"),
        "has a key that is no text; expected a name. Fill",
    ),
    "an object": (TRL + "x: !!python/object/apply:os.system ['true']\n", "which makes an object"),
    "a tagged mapping": ("x: !mine\n  a: 1\n", "which makes an object"),
    "a set": ("x: !!set {a, b}\n", "which makes an object"),
    "bytes": ("x: !!binary aGVsbG8=\n", "which makes an object"),
    "an alias without anchor": ("a: *nowhere\n", "is no YAML: line 1, found undefined alias"),
    "an alias of itself": ("a: &a [*a]\n", "has more than 64 levels"),
    "a merge of no mapping": ("<<: 3\n", "merges what is no mapping"),
    "a merge of itself": ("a: &a\n  <<: *a\n", "has more than 64 levels"),
    "deep nesting": ("a: " + "[" * 100 + "]" * 100 + "\n", "has more than 64 levels"),
    "nesting deeper than Python goes": ("a: " + "[" * 2000 + "]" * 2000 + "\n", "is nested too deeply"),
    "many settings": ("\n".join(f"a{index}: 1" for index in range(5_001)), "has more than 5000 settings"),
    "packing as a list": (TRL.replace("true", "[1, 2]"), r"4:1 packing is \[1, 2\]; TRL expects true or false there"),
    "packing as a mapping": (TRL.replace("true", "{a: 1}"), "packing is {'a': 1}; TRL expects true or false there"),
    "packing as a word": (TRL.replace("true", "perhaps"), "packing is 'perhaps'; TRL expects true or false there"),
    "a length as a word": (TRL.replace("4096", "long"), "max_length is 'long'; TRL expects a number there"),
    "a length as a truth": (TRL.replace("4096", "yes"), "max_length is True; TRL expects a number there"),
    "a length without end": (TRL.replace("4096", ".inf"), "max_length is inf; TRL expects a number there"),
    "a length that is no number": (TRL.replace("4096", "'nan'"), "max_length is 'nan'; TRL expects a number there"),
    "of no stack": ("colour: red\n", "is of no known stack: none has settings such as colour"),
    "of several stacks": ("packing: true\n", "may be of trl or of llamafactory or of swift"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_a_file_that_cannot_be_read_is_refused_with_its_place(what, tmp_path):
    text, message = REFUSED[what]

    with pytest.raises(AuditError, match=message) as caught:
        audited(text, tmp_path)

    assert "train.yaml" in str(caught.value)


def test_laughing_aliases_are_refused_before_they_grow(tmp_path):
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 12)]

    with pytest.raises(AuditError, match="has more than 5000 settings, aliases followed"):
        audited("\n".join(lines), tmp_path)


def test_a_tag_that_would_run_a_program_runs_none(tmp_path):
    mark = tmp_path / "ran"
    text = f"x: !!python/object/apply:os.system ['touch {mark}']\n"

    with pytest.raises(AuditError, match="Nothing was made"):
        audited(text, tmp_path)

    assert not mark.exists()
    os.system(f"touch {mark}")  # noqa: S605 - shows that the file would have been there
    assert mark.exists()


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("train.yaml", "packing: tru\xe9\n".encode("latin-1"), "is not UTF-8 at byte 12"),
        ("train.yaml", b"a: 1\n" * (LARGEST // 5 + 1), "expected a configuration, of at most 262144"),
        ("train.json", b"", "is empty"),
        ("train.toml", b"packing = true\n", "has the ending .toml; expected .yaml"),
        ("train.sh", b"\xff\xfe", "is not UTF-8 at byte 0"),
    ],
)
def test_a_file_of_bytes_that_are_no_configuration_is_refused(tmp_path, name, data, message):
    (tmp_path / name).write_bytes(data)

    with pytest.raises(AuditError, match=message):
        audit_config(tmp_path / name)


def test_a_device_a_pipe_and_a_folder_are_refused_and_not_read(tmp_path):
    os.mkfifo(tmp_path / "pipe.yaml")
    (tmp_path / "folder.yaml").mkdir()

    for path in (tmp_path / "pipe.yaml", tmp_path / "folder.yaml", Path("/dev/zero")):
        with pytest.raises(AuditError, match="is no file that can be read whole"):
            audit_config(path)


def test_a_file_that_is_not_there_is_refused(tmp_path):
    for name in ("missing.yaml", "a\0b.yaml"):
        with pytest.raises(AuditError, match="cannot be read"):
            audit_config(tmp_path / name)


def test_a_byte_order_mark_and_windows_line_ends_change_nothing(tmp_path):
    (tmp_path / "bom.yaml").write_bytes(b"\xef\xbb\xbf" + TRL.replace("\n", "\r\n").encode())

    assert told(audit_config(tmp_path / "bom.yaml")) == told(audited(TRL, tmp_path))


@pytest.mark.parametrize(
    ("written", "on"),
    [
        *[(text, True) for text in ("yes", "on", '"yes"', "'True'", "1")],
        *[(text, False) for text in ('"no"', "off", "0", "~")],
    ],
)
def test_trl_and_axolotl_take_texts_for_the_truths_that_they_name(tmp_path, written, on):
    trl = audited(TRL.replace("true", written), tmp_path)
    axolotl = audited(f"base_model: x\nsequence_len: 4096\nsample_packing: {written}\n", tmp_path)

    assert [dict(report.facts)["packing"].startswith("whole") for report in (trl, axolotl)] == [on, on]


@pytest.mark.parametrize(("written", "codes"), [('"false"', ["HM621"]), ('"true"', []), ("false", []), ("true", [])])
def test_llamafactory_takes_any_text_for_true_and_only_one_that_means_false_is_told(tmp_path, written, codes):
    report = audited(
        f"stage: sft\nfinetuning_type: lora\ncutoff_len: 4096\ntemplate: qwen\nneat_packing: {written}\n", tmp_path
    )

    assert [finding.code for finding in report.findings] == codes
    assert dict(report.facts)["packing"].startswith("whole") is (written != "false")


def test_anchors_and_merges_are_followed_and_what_stands_there_itself_wins(tmp_path):
    text = (
        "base: &base\n  packing_strategy: bfd\n  max_length: 4096\nmore: &more\n  max_length: 8192\n"
        "<<: [*base, *more]\nmodel_name_or_path: x\ndataset_name: y\npacking: true\npacking_strategy: wrapped\n"
    )
    facts = dict(audited(text, tmp_path).facts)

    assert facts["packing"].startswith("documents are cut")
    assert facts["capacity"] == "4096"  # the first of several


def test_a_value_that_is_put_in_when_it_runs_is_not_known(tmp_path):
    text = TRL.replace("true", "${oc.env:PACKING}")

    assert dict(audited(text, tmp_path).facts)["packing"] == "not known before it runs"


@pytest.mark.parametrize("value", ["'{{ strategy }}'", "$STRATEGY", "${STRATEGY}", "'{% if x %}wrapped{% endif %}'"])
def test_what_a_template_puts_in_is_not_known_either(tmp_path, value):
    report = audited(TRL + f"packing_strategy: {value}\n", tmp_path)

    assert (dict(report.facts)["packing"], report.findings) == ("not known before it runs", ())


def test_dates_and_strange_numbers_are_texts():
    found = settings_of_yaml("a: 2024-13-45\nb: 0o9\nc: 1e400\nd: 2024-01-02\ne: .inf\n", "f.yaml")

    assert [found[name].value for name in "abd"] == ["2024-13-45", "0o9", "2024-01-02"]
    assert isinstance(found["c"].value, str)
    assert found["e"].value == float("inf")


def test_places_are_those_of_the_keys():
    found = settings_of_yaml("a:\n  - b: 1\n    c: {d: 2}\n", "f.yaml")

    assert (found["a.0.c.d"].place.line, found["a.0.c.d"].place.column, str(found["a.0.b"].place)) == (
        3,
        9,
        "f.yaml:2:5 a.0.b",
    )
    assert found["a"].value == [{"b": 1, "c": {"d": 2}}]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[1, 2]", "is no JSON object"),
        ('{"a": 1,}', r"f\.json:1:9 is no JSON: a comma before the end"),
        ('{"a": 1 "b": 2}', "1:9 is no JSON: a comma or } is missing"),
        ('{"a" 1}', "a colon is missing"),
        ("{a: 1}", "1:2 is no JSON"),
        ("{1: 1}", "a name has to be a text"),
        ('{"a": 1}\n{"b": 2}', "2:1 is no JSON: something follows the object"),
        ('{"a": 1, "a": 2}', "1:10 is no JSON: 'a' stands there twice"),
        ('{"a": [1, 2', "1:12 is no JSON: a comma or ] is missing"),
        ('{"a": {"b": tru}}', "1:13 is no JSON"),
        ('{"a": ' + "[" * 100 + "]" * 100 + "}", "has more than 64 levels"),
        ("// a comment\n{}", "1:1 is no JSON"),
    ],
)
def test_json_that_is_none_is_refused_with_line_and_column(text, message):
    with pytest.raises(AuditError, match=message):
        settings_of_json(text, "f.json")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=12,
)


@settings(deadline=None, max_examples=60)
@given(value=st.dictionaries(st.text(min_size=1), JSON, max_size=4), indent=st.sampled_from([None, 1, 4, "\t"]))
@example(value={"a.b": 1, "a": {"b": 2}}, indent=None)
def test_json_is_read_as_python_reads_it_and_every_place_is_that_of_its_key(value, indent):
    text = json.dumps(value, indent=indent, ensure_ascii=False)
    found = settings_of_json(text, "f.json")
    lines = text.split("\n")

    for name, one in value.items():
        if not any("." in other for other in value) or found[name].value == one:
            assert found[name].value == one
            line, column = found[name].place.line, found[name].place.column
            assert json.JSONDecoder().raw_decode(lines[line - 1][column - 1 :])[0] == name


@settings(deadline=None, max_examples=150)
@given(text=st.text(max_size=60) | st.text(alphabet="abc:-[]{}&*!<>'\"# \n?|%,", max_size=60))
@example(text="? ")
@example(text="%YAML 9.9\n---\na: 1\n")
@example(text="a: !<tag:yaml.org,2002:int> x\n")
def test_any_text_is_settings_or_an_error_of_ours(text):
    for read in (settings_of_yaml, settings_of_json):
        try:
            found = read(text, "f")
        except AuditError:
            continue
        assert all(one.place.line >= 1 and one.place.column >= 1 for one in found.values())


def test_what_cannot_be_known_is_one_value_that_survives_copies():
    import copy
    import pickle

    assert repr(UNKNOWN) == "UNKNOWN"
    assert copy.deepcopy(UNKNOWN) is UNKNOWN
    assert pickle.loads(pickle.dumps(UNKNOWN)) is UNKNOWN  # noqa: S301 - of our own making


def test_a_small_change_of_a_configuration_moves_only_its_own_finding(tmp_path):
    text = Path(FOLDER / "axolotl_texts.yaml").read_text(encoding="utf-8")
    settled = yaml.safe_load(text) | {"neftune_noise_alpha": 0}

    assert {code for code, *_ in said(audited(yaml.safe_dump(settled), tmp_path))} == {"HM420"}
