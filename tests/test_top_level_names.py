"""The packages have common names: whoever else ships one of them is found here, and named."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.mark.parametrize("name", ["records", "cost_model", "tuner", "tessel", "scripts"])
def test_name_resolves_to_this_repository(name: str) -> None:
    found = Path(str(importlib.import_module(name).__file__)).resolve()
    assert found.is_relative_to(ROOT), (
        f"`import {name}` finds {found}; uninstall the distribution that ships it (pip show -f …)"
    )
