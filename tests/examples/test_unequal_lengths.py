"""Sequences of unequal length over stages: exact beside one process, padded or not, and on real ranks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

import torch
from shared_modules import PYTHONPATH, ROOT

from tessel.engine.actions import actions_from_csv
from tessel.engine.import_function import find_function
from tessel.engine.ranks.executor import Executor
from tessel.engine.ranks.progress import Progress
from tessel.engine.ranks.transport import TaggedTransport

pytestmark = pytest.mark.torch

EXAMPLE = ROOT / "examples" / "unequal_lengths.py"
LENGTHS = (5, 12, 7)
SPEC = json.dumps({"ranks": [[0], [1]], "device": "cpu", "classes": list(map(str, LENGTHS))})


@pytest.mark.parametrize("stages", ["stages", "padded_stages"])
def test_results_are_those_of_one_process_in_any_order(stages: str, tmp_path: Path) -> None:
    """Both stages on one rank, out of order; then the shapes that a rank of the second alone waits for."""
    programs = find_function(f"{EXAMPLE}:{stages}")(SPEC, [0, 1])
    orders = actions_from_csv("0F2,0F0,1F0,1F2,1B2,0B2,0F1,1F1,1B0,1B1,0B1,0B0\n")
    executor = Executor(0, [(0,), (0,)], programs, Progress(tmp_path, 0), torch.device("cpu"))
    executor.run_step(executor.prepare(orders), len(LENGTHS), TaggedTransport(2, torch.device("cpu")))
    losses, gradients = find_function(f"{EXAMPLE}:reference")(SPEC, len(LENGTHS))
    assert programs[1].losses() == pytest.approx(losses, rel=1e-5)
    found = {**programs[0].gradients(), **programs[1].gradients()}
    assert found.keys() == gradients.keys()
    for name, gradient in gradients.items():
        assert (found[name] - torch.from_numpy(gradient)).abs().max() <= 1e-5 * abs(gradient).max() + 1e-9, (
            name
        )

    apart = actions_from_csv("0F2,0F0,0B2,0F1,0B0,0B1\n1F2,1F0,1B2,1F1,1B0,1B1\n")
    second = Executor(1, [(0,), (1,)], {1: programs[1]}, Progress(tmp_path, 1), torch.device("cpu"))
    arrivals = second.prepare(apart).arrivals[0]
    lengths = LENGTHS if stages == "stages" else (max(LENGTHS),) * len(LENGTHS)
    assert [each.micro_batch for each in arrivals] == [2, 0, 1]
    assert [each.tensors[0].shape[1] for each in arrivals] == [lengths[2], lengths[0], lengths[1]]


@pytest.mark.slow
@pytest.mark.parametrize(("ranks", "stages"), [(2, "stages"), (4, "stages"), (2, "padded_stages")])
def test_real_ranks_are_exact_in_the_order_found_and_as_given(
    ranks: int, stages: str, tmp_path: Path
) -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": PYTHONPATH}
    lengths, order = tmp_path / "lengths.json", tmp_path / "order.json"

    def ran(*words: object) -> str:
        done = subprocess.run(
            [sys.executable, *map(str, words)],
            capture_output=True,
            text=True,
            env=environment,
            cwd=ROOT,
            timeout=500,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    lengths.write_text(ran(EXAMPLE, "measure", ranks, "16,16,96,32,16,64"))
    ran(
        *("-m", "scripts", "schedule", "vshape", "--devices", ranks, "--batch", lengths),
        *("--save", order, "--work", "0.05", "--quiet"),
    )
    found = json.loads(
        ran("-m", "scripts", "run", order, "--stages", f"{EXAMPLE}:{stages}", "--step", "0.001ms", "--json")
    )
    assert found["is_right"]
    assert found["checked"]["losses"] == 2 * 6
    assert found["searched"]["simulated_ms"] <= found["1f1b"]["simulated_ms"]
