"""The package's names load what they need when they are asked for, and nothing before."""

import subprocess
import sys

import pytest

import cost_model

HEAVY = {"xgboost", "scipy"}


def test_the_register_tile_needs_no_xgboost() -> None:
    code = (
        "import sys; import cost_model.register_tile, cost_model.product_tile; "
        f"print(sorted({HEAVY!r} & set(sys.modules)))"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "[]"


def test_every_public_name_is_there_and_no_other() -> None:
    for name in cost_model.__all__:
        assert getattr(cost_model, name).__name__ == name
    assert set(cost_model.__all__) <= set(dir(cost_model))
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        cost_model.nothing  # noqa: B018 - the look-up is what is tested
