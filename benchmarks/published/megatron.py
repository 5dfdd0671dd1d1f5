"""Peak memory of Megatron-LM's own tests of Mixtral, beside what is predicted of the same rank.

The tests' golden values hold the memory of the last rank, which writes the logs, so that the last stage is
compared. Layout and devices of a test come from its name, its configuration (experts not split by tensor
parallelism in one) and the size of its job; the loss is not fused.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path

from benchmarks.published.layouts import PublishedRun, Simulated, simulate
from tessel.architectures.gpu_sheets import find_sheet
from tessel.architectures.shape import Recipe

UNFUSED = Recipe(tokens=4096, has_fused_loss=False)

TESTS = {
    "mixtral_8x22b_tp2pp8ep8vpp1": PublishedRun(
        model="mixtral-8x22b",
        devices=128,
        recipe=UNFUSED,
        tensor_parallel=2,
        pipeline=8,
        expert_parallel=8,
        global_batch=256,
    ),
    "mixtral_8x7b_alltoall_tp2pp4ep4": PublishedRun(
        model="mixtral-8x7b",
        devices=64,
        recipe=UNFUSED,
        tensor_parallel=2,
        pipeline=4,
        expert_parallel=4,
        global_batch=1024,
    ),
    # Experts whole on 8 devices: of the same bytes are 4 groups of two.
    "mixtral_8x7b_tp1pp4ep8vpp8": PublishedRun(
        model="mixtral-8x7b",
        devices=64,
        recipe=UNFUSED,
        tensor_parallel=2,
        pipeline=4,
        expert_parallel=4,
        chunks=8,
        global_batch=256,
    ),
}


@dataclass(frozen=True, slots=True)
class Row:
    """A test, its device, its memory, and what is predicted."""

    test: str
    device: str
    real_bytes: float
    ours: Simulated

    @property
    def ours_bytes(self) -> int:
        """Predicted memory of the last stage."""
        return self.ours.memory_bytes[-1]


def load_rows(folder: Path) -> list[Row]:
    """Read the tests whose layout is known, and simulate each."""
    rows = []
    with (folder / "megatron_golden.csv").open() as file:
        for each in csv.DictReader(file):
            name = each["test"].rpartition("/")[2]
            run = next((run for test, run in TESTS.items() if name.startswith(test)), None)
            if run is not None and each["max_mem"]:
                gpu = "a100" if each["device"].endswith("a100") else "h100"
                rows.append(Row(name, each["device"], float(each["max_mem"]), simulate(run, find_sheet(gpu))))
    return rows
