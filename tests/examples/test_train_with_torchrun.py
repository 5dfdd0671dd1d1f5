"""The training loop of one's own trains, and its gradients are the whole model's."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

pytestmark = pytest.mark.torch

ROOT = Path(__file__).parents[2]
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone")


@pytest.mark.slow  # ranks of torchrun; mypy reads the example
def test_its_gradients_are_exact_and_its_loss_falls() -> None:
    ran = subprocess.run(
        [*TORCHRUN, "--nproc-per-node", "2", str(ROOT / "examples" / "train_with_torchrun.py")],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        timeout=300,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    (difference,) = re.findall(r"gradients differ from the whole model's by at most (\S+)", ran.stdout)
    assert float(difference) < 1e-6
    losses = [float(loss) for loss in re.findall(r"loss (\S+)", ran.stdout)]
    assert losses[-1] < losses[0] / 2
