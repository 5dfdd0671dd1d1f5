"""A plan's compiled stages train as the user's module does, through clipping, AdamW and a checkpoint."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

pytest.importorskip("torch")

from planned_models import LANGUAGE_MODEL, m_shape_on_tvm, plan_on_tvm
from shared_modules import PYTHONPATH, ROOT

from tessel.pipeline import build_plan
from tessel.search import SearchBudget
from tessel.tuned_model.recomputation import recomputing
from tessel.tuned_plan import save_plan
from tuner.plan import ModelPlan

pytestmark = [pytest.mark.tvm, pytest.mark.torch]

STEPS = 100


def trained(tuned: ModelPlan, folder: Path, *, steps: int = STEPS) -> subprocess.CompletedProcess[str]:
    """Train a plan as its example says, with a process a device; return what that printed."""
    plan = build_plan(tuned, micro_batches=3, memory_limit_bytes=None, budget=SearchBudget(0.3))
    save_plan(plan, folder / "plan.json")
    return subprocess.run(
        [
            *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
            *("--nproc-per-node", str(plan.placement.devices)),
            *(str(ROOT / "examples" / "train_plan.py"), str(folder / "plan.json"), plan.model, str(steps)),
        ],
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": PYTHONPATH},
        timeout=500,
        check=False,
    )


def check(ran: subprocess.CompletedProcess[str]) -> None:
    assert ran.returncode == 0, ran.stderr
    (first, last) = map(float, re.findall(r"loss (\S+) at first, (\S+) after", ran.stdout)[0])
    assert last < first / 2
    errors = re.findall(r"losses differ by at most (\S+), norms of gradients by (\S+)", ran.stdout)[0]
    assert max(map(float, errors)) < 1e-3


@pytest.mark.slow
def test_a_chain_with_a_tied_head_trains_as_its_module(tmp_path: Path) -> None:
    """Both stages hold the table; one of them recomputes."""
    check(trained(recomputing(plan_on_tvm(LANGUAGE_MODEL, ["layers.1"]), {0}), tmp_path))


@pytest.mark.slow
def test_divided_ends_train_as_the_module(tmp_path: Path) -> None:
    check(trained(m_shape_on_tvm(LANGUAGE_MODEL, 2), tmp_path))


@pytest.mark.slow  # four processes compile at once
def test_four_ranks_with_divided_ends_train_as_the_module(tmp_path: Path) -> None:
    check(trained(m_shape_on_tvm(LANGUAGE_MODEL, 4), tmp_path))


@pytest.mark.slow
def test_copies_that_are_no_longer_tied_are_seen(tmp_path: Path) -> None:
    """The fault: each stage trains its own copy of the table on its own part of the gradient."""
    tuned = msgspec.structs.replace(plan_on_tvm(LANGUAGE_MODEL, ["layers.1"]), tied=())
    ran = trained(tuned, tmp_path, steps=20)
    assert ran.returncode != 0
    assert "the pipeline does not train as the module does" in ran.stderr
