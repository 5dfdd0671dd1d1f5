"""What `import tessel` gives: every public name, and nothing heavy before it is asked for."""

from __future__ import annotations

import doctest
import subprocess
import sys

import pytest

import tessel

HEAVY = ("numpy", "scipy", "numba", "networkx", "msgspec", "matplotlib", "tvm", "tvm_ffi", "torch", "xgboost")


def modules_after(code: str) -> list[str]:
    """Run code in a process of its own; return which heavy modules it imported."""
    code += "\nimport sys; print(*(name for name in sys.argv[1:] if name in sys.modules))"
    done = subprocess.run([sys.executable, "-c", code, *HEAVY], capture_output=True, text=True, check=True)
    return done.stdout.split()


def test_import_alone_loads_nothing_heavy() -> None:
    assert modules_after("import tessel; dir(tessel)") == []


def test_data_loads_no_search_and_no_picture() -> None:
    names = "tessel.Placement, tessel.Schedule, tessel.shapes, tessel.load_plan, tessel.compare_schedules"
    assert set(modules_after(f"import tessel; {names}")) <= {"networkx", "msgspec", "numpy"}


def test_the_search_loads_no_picture_and_no_compiler_of_models() -> None:
    loaded = set(
        modules_after("import tessel; tessel.find_schedule, tessel.find_repetend, tessel.find_frontier")
    )
    assert loaded & {"matplotlib", "tvm", "tvm_ffi", "torch", "xgboost"} == set()


@pytest.mark.parametrize("name", tessel.__all__)
def test_every_public_name_is_found_and_documented(name: str) -> None:
    assert getattr(tessel, name).__doc__


def test_dir_lists_the_public_names_alone() -> None:
    assert dir(tessel) == sorted(tessel.__all__)


def test_an_unknown_name_is_refused_by_name() -> None:
    with pytest.raises(AttributeError, match="'find_scheduel'"):
        _ = tessel.find_scheduel  # type: ignore[attr-defined]


def test_the_example_of_the_package_holds() -> None:
    assert doctest.testmod(tessel).failed == 0
