"""Plain data imports plain data: no database, search or compiler comes with a plan or its options."""

from __future__ import annotations

import subprocess
import sys

import pytest

import records
from tessel import profiles

HEAVY = ("sqlalchemy", "numpy", "networkx", "numba", "scipy", "matplotlib", "torch", "tvm", "xgboost")


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
    code = f"import {module}, sys; print(*(name for name in sys.argv[1:] if name in sys.modules))"
    done = subprocess.run([sys.executable, "-c", code, *HEAVY], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


@pytest.mark.parametrize("package", [records, profiles])
def test_every_public_name_is_found_and_no_other(package: object) -> None:
    for name in package.__all__:  # type: ignore[attr-defined]
        assert getattr(package, name) is not None
    with pytest.raises(AttributeError, match="'open_stoer'"):
        _ = package.open_stoer  # type: ignore[attr-defined]
