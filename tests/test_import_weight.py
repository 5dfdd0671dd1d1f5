"""Plain data imports plain data: no database, search or compiler comes with a plan or its options."""

from __future__ import annotations

import subprocess
import sys

import pytest

import records
from tessel import profiles

HEAVY = ("sqlalchemy", "numpy", "networkx", "numba", "scipy", "matplotlib", "torch", "tvm", "xgboost")
CODE = (
    "import importlib, sys; importlib.import_module(sys.argv[1]);"
    "print(*(name for name in sys.argv[2:] if name in sys.modules))"
)


@pytest.mark.parametrize(
    "module",
    [
        "records",
        "tuner.plan",
        "tessel.profiles",
        "tessel.planning.options",
        "tessel.planning.layout",
        "tessel.jobs.plan",
        "scripts.app",
    ],
)
def test_plain_data_imports_nothing_heavy(module: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", CODE, module, *HEAVY], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == []


@pytest.mark.parametrize(
    "module",
    [
        "tessel.documents",
        "tessel.loading",
        "tessel.planning.saved_plan",
        "tessel.exports.recipe",
        "tessel.picture",
    ],
)
def test_documents_are_read_with_numpy_alone(module: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", CODE, module, *HEAVY], capture_output=True, text=True, check=True
    )
    assert set(done.stdout.split()) <= {"numpy"}


@pytest.mark.parametrize("package", [records, profiles])
def test_every_public_name_is_found_and_no_other(package: object) -> None:
    for name in package.__all__:  # type: ignore[attr-defined]
        assert getattr(package, name) is not None
    with pytest.raises(AttributeError, match="'open_stoer'"):
        _ = package.open_stoer  # type: ignore[attr-defined]
