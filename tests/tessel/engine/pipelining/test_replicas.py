"""Two stages in two replicas, four processes over gloo: gradients are the mean over all replicas' rows."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from shared_modules import PYTHONPATH, ROOT

pytest.importorskip("torch")

pytestmark = [pytest.mark.torch, pytest.mark.slow]  # four processes

SCRIPT = ROOT / "tests" / "oracles" / "replicated_pipeline.py"


def test_replicas_agree_with_the_whole_model_under_any_backward() -> None:
    """A split backward runs none of the hooks that average replicas: each kept gradients of its own."""
    ran = subprocess.run(
        [sys.executable, str(SCRIPT)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": PYTHONPATH},
        timeout=300,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    by_rank = json.loads(ran.stdout.splitlines()[-1])
    assert len(by_rank) == 4
    for rank, found in enumerate(by_rank):
        assert "communication hook, which a split backward never calls" in found.pop("hook")
        assert sorted(found) == ["chain 1f1b", "chain zb-h1", "words 1f1b", "words zb-h1"]
        assert all(error < 1e-5 for error in found.values()), (rank, found)
