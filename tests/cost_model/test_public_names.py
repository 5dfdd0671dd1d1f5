"""The package's modules load what they need, and nothing before."""

import subprocess
import sys

HEAVY = {"xgboost", "scipy"}


def test_the_register_tile_needs_no_xgboost() -> None:
    code = (
        "import sys; import cost_model.register_tile, cost_model.product_tile; "
        f"print(sorted({HEAVY!r} & set(sys.modules)))"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "[]"
