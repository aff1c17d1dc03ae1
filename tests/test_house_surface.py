"""The public names and the error codes are frozen: a change here is a change for every user."""

import importlib
import inspect
import re

import pytest

import hermetic
from hermetic import errors
from hermetic.errors import HermeticError

PUBLIC_NAMES = {
    "Boundaries",
    "HermeticError",
    "LeakReport",
    "OnlinePacker",
    "PackedBatch",
    "Plan",
    "audit",
    "available_backends",
    "collate",
    "document_log_probs",
    "guard",
    "packed_attention",
    "packed_loss",
    "plan_histogram",
    "plan_rows",
    "probe",
    "seal",
    "seal_report",
    "show",
    "unseal",
}

ENTRY = re.compile(r"^(?P<indent>[ │]*)[├└]── (?P<name>\w+)(?: \((?P<builtin>\w+)\))? +(?P<code>HE\d+) +(?P<rest>.+)$")


def test_the_public_names_are_exactly_these():
    assert set(hermetic.__all__) == PUBLIC_NAMES
    assert len(hermetic.__all__) == len(PUBLIC_NAMES)


@pytest.mark.parametrize("name", sorted(PUBLIC_NAMES))
def test_a_public_name_is_the_object_of_its_home_however_often_and_in_whatever_order_it_is_asked_for(name):
    home = importlib.import_module(hermetic._HOMES[name])
    first, second = getattr(hermetic, name), getattr(hermetic, name)

    assert first is second is getattr(home, name)
    assert not inspect.ismodule(first), f"hermetic.{name} is the subpackage, not the public object"


def test_an_unknown_name_is_an_attribute_error_that_lists_the_public_names():
    listed = re.escape(", ".join(sorted(PUBLIC_NAMES)))

    with pytest.raises(AttributeError, match=f"no attribute 'pack_rows'; public names: {listed}"):
        _ = hermetic.pack_rows


def test_completion_offers_every_public_name():
    assert set(dir(hermetic)) >= PUBLIC_NAMES


def error_classes() -> dict[str, type[HermeticError]]:
    members = inspect.getmembers(errors, inspect.isclass)
    return {name: member for name, member in members if issubclass(member, HermeticError)}


def documented_tree(text: str) -> dict[str, tuple[str, str | None, str]]:
    """The tree in the module docstring as name -> (parent, builtin, code)."""
    found: dict[str, tuple[str, str | None, str]] = {}
    trail = ["HermeticError"]
    for entry in filter(None, map(ENTRY.match, (line.removeprefix("    ") for line in text.splitlines()))):
        trail = [*trail[: len(entry["indent"]) // 4 + 1], entry["name"]]
        trailing = re.search(r"\((\w+)\)$", entry["rest"])
        builtin = entry["builtin"] or (trailing[1] if trailing else None)
        found[entry["name"]] = (trail[-2], builtin, entry["code"])
    return found


def test_error_codes_are_unique():
    codes = [member.code for member in error_classes().values()]

    assert len(codes) == len(set(codes))
    assert len(codes) > 1


def test_every_error_is_where_the_documented_tree_says_with_its_builtin_and_its_code():
    tree = documented_tree(errors.__doc__ or "")
    actual = {
        name: (
            member.__bases__[0].__name__,
            member.__bases__[1].__name__ if len(member.__bases__) > 1 else None,
            member.code,
        )
        for name, member in error_classes().items()
        if member is not HermeticError
    }

    assert actual == tree


def test_every_error_is_a_builtin_error_that_callers_expect():
    for member in error_classes().values():
        if member is not HermeticError:
            assert issubclass(member, (ValueError, RuntimeError, ImportError, AssertionError)), member


def test_the_tree_reader_sees_parent_builtin_and_code():
    lines = ["├── A (ValueError)   HE1  first", "│   └── B   HE2  second", "└── C   HE3  third (ImportError)"]
    expected = {
        "A": ("HermeticError", "ValueError", "HE1"),
        "B": ("A", None, "HE2"),
        "C": ("HermeticError", "ImportError", "HE3"),
    }
    assert documented_tree("\n".join(f"    {line}" for line in lines)) == expected
