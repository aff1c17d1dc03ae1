"""Every worked example in the docstrings of the batch floor and of the loss is true."""

import doctest
import inspect
from importlib import import_module
from pkgutil import iter_modules

import pytest

from hermetic import loss
from hermetic.batch import dialects, views

# By name, because hermetic.batch.collate as an attribute is the function.
PARTS = ("boundaries", "collate", "columns", "inference", "integers", "packed_batch", "views")
DIALECTS = [import_module(f"{dialects.__name__}.{found.name}") for found in iter_modules(dialects.__path__)]
LOSSES = [import_module(f"{loss.__name__}.{found.name}") for found in iter_modules(loss.__path__)]
MODULES = [*LOSSES, *(import_module(f"hermetic.batch.{part}") for part in PARTS), *DIALECTS]


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__)
def test_every_worked_example_gives_what_it_says(module):
    results = doctest.testmod(module)

    assert results.attempted > 0
    assert results.failed == 0


@pytest.mark.parametrize("module", [views, *LOSSES, *DIALECTS], ids=lambda module: module.__name__)
def test_every_public_function_has_a_worked_example(module):
    functions = [
        function
        for name, function in inspect.getmembers(module, inspect.isfunction)
        if function.__module__ == module.__name__ and not name.startswith("_")
    ]

    assert functions
    assert [function.__name__ for function in functions if ">>>" not in function.__doc__] == []


def test_a_wrong_worked_example_would_be_found(monkeypatch, capsys):
    true = views.lengths_with_tail.__doc__
    monkeypatch.setattr(views.lengths_with_tail, "__doc__", true.replace("(3, 5, 4)", "(3, 5, 5)"))

    assert doctest.testmod(views).failed == 1
    assert "(3, 5, 5)" in capsys.readouterr().out
