"""The latency of an all-reduce among the devices of a pipeline, measured among processes of this machine.

As many processes as there are devices reduce a tensor over torch.distributed's gloo, as the ranks of a run on
this machine do; a sample is the time of the slowest. Ranks that share a core are measured sharing it. An
all-reduce is a workload of its own, so its measurements are kept and reused like any other. Checked in
tests/tuner/measuring/communication/test_all_reduce.py.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from records import Environment, Measurement, Status, Tensor, Workload
from records.workload import describe
from tuner.errors import TunerError
from tuner.targets.target import Target

BACKEND = "gloo"

_TIMEOUT_S = 120.0
"""How long the ranks have for all sizes together."""

_BYTES_OF_FLOAT = 4


def all_reduce_workload(num_bytes: int, num_ranks: int) -> Workload:
    """Return the workload of reducing a tensor of that many bytes among so many ranks."""
    return describe(
        "transfer", [Tensor((num_bytes,), "uint8")], [], [0], [("all_reduce", f"{num_ranks} ranks")]
    )


def measure_all_reduces(
    sizes_bytes: Sequence[int], num_ranks: int, *, target: Target, environment: Environment
) -> tuple[Measurement, ...]:
    """Measure an all-reduce of each size, in order.

    Args:
        sizes_bytes: bytes of the tensor on each rank; each at least 1, and rounded up to whole numbers.
        num_ranks: processes, at least 2.
        target: the target the records are kept under.
        environment: where it is measured.

    Raises:
        TunerError: torch is missing, or a rank did not start or went away.
    """
    counts = [-(-size // _BYTES_OF_FLOAT) for size in sizes_bytes]
    samples = _run_ranks(counts, num_ranks)
    return tuple(
        Measurement(
            workload_fingerprint=all_reduce_workload(size, num_ranks).fingerprint,
            backend=BACKEND,
            target=target.text,
            environment=environment,
            status=Status.OK,
            samples_us=tuple(found),
            measured_at=time.time(),
        )
        for size, found in zip(sizes_bytes, samples, strict=True)
    )


def _run_ranks(counts: Sequence[int], num_ranks: int) -> list[list[float]]:
    """Return the samples of each size, from as many processes as there are ranks."""
    with tempfile.TemporaryDirectory(prefix="tessel-collectives-") as name:
        folder = Path(name)
        rank_module = "tuner.measuring.communication.all_reduce_rank"
        command = [sys.executable, "-m", rank_module, name, str(num_ranks)]
        log = folder / "log"
        with log.open("wb") as output:
            ranks = [
                subprocess.Popen(
                    [*command, str(rank), *map(str, counts)],
                    stdout=output,
                    stderr=output,
                    env={**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"},
                )
                for rank in range(num_ranks)
            ]
            try:
                statuses = _wait(ranks)
            finally:
                for rank in ranks:
                    rank.kill()
                    rank.wait()
        if any(statuses):
            last = log.read_text(errors="replace").strip().rpartition("\n")[2]
            raise TunerError(
                f"measuring all-reduces among {num_ranks} ranks failed ({last or 'a rank hung'}); give what "
                "the link between devices does with --link and --hop-us"
            )
        return msgspec.json.decode((folder / "samples.json").read_bytes(), type=list[list[float]])


def _wait(ranks: Sequence[subprocess.Popen[bytes]]) -> list[int]:
    """Return the exit status of every rank; 1 for all as soon as one fails, or when time is out."""
    deadline = time.monotonic() + _TIMEOUT_S
    while True:
        statuses = [rank.poll() for rank in ranks]
        if any(statuses) or time.monotonic() > deadline:
            return [1] * len(ranks)
        if None not in statuses:
            return [0] * len(ranks)
        time.sleep(0.02)
