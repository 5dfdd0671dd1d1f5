"""The compiled searches run as plain Python too, with the same answers."""

from __future__ import annotations

import json
import os
import subprocess
import sys

CASES = """
import json
from tessel.search import find_repetend
from tessel.shapes import make_shape
found = [
    find_repetend(make_shape("vshape", 4), memory=3, max_copies=3),
    find_repetend(make_shape("mshape", 3), memory=2, max_copies=1),
    find_repetend(make_shape("nnshape", 4), memory=4, max_copies=1),
    find_repetend(make_shape("xshape", 2, lag=1), memory=2, max_copies=1),
]
print(json.dumps([[one.period, one.copies, one.lower_bound, one.starts] for one in found]))
"""


def run(*, is_compiled: bool) -> object:
    done = subprocess.run(
        [sys.executable, "-c", CASES],
        env={**os.environ, "NUMBA_DISABLE_JIT": "0" if is_compiled else "1"},
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    return json.loads(done.stdout)


def test_plain_python_gives_the_answers_of_compiled_code() -> None:
    assert run(is_compiled=False) == run(is_compiled=True)
