"""Run the steps one by one, each in a process of its own, within a budget; what is done is not done again.

A step's process is ended after a third of the budget, or when that is spent, and all that it has started
with it, so that nothing disturbs the next one; a step that crashes, hangs or fails, fails alone: what it said
stands in the report. Results are files that appear whole or not at all. Checked in
tests/benchmarks/test_gpu_report.py.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from records.cores import num_usable_cores

LEAST_S = 5.0
"""With less than this left, no step is begun."""


_LIFELINE = "TESSEL_STEP_LIFELINE"
"""The variable that names a step's end of a pipe to who started it."""

MAX_SHARE = 1 / 3
"""Of the budget, what one step may take: one that hangs leaves time for the others."""


def run_steps(
    names: Sequence[str],
    folder: Path,
    *,
    command: Callable[[str], Sequence[str]],
    budget_s: float,
    max_share: float = MAX_SHARE,
    say: Callable[[str], None] = print,
    clock: Callable[[], float] = time.monotonic,
) -> dict[str, dict[str, Any]]:
    """Run the steps that have no result yet, and return what is known of each.

    Args:
        names: the steps, in order.
        folder: keeps a file for each finished step under `steps/`.
        command: what runs a step; it prints the result as JSON on its last line.
        budget_s: seconds for all of them together.
        max_share: of that, what one step may take.
        say: told of each step.
        clock: in seconds.
    """
    (folder / "steps").mkdir(parents=True, exist_ok=True)
    deadline = clock() + budget_s
    found: dict[str, dict[str, Any]] = {}
    for name in names:
        path = folder / "steps" / f"{name}.json"
        if path.exists():
            found[name] = json.loads(path.read_text())
            say(f"{name}: done before")
            continue
        left_s = deadline - clock()
        if left_s < LEAST_S:
            found[name] = {"failure": f"not begun: {max(left_s, 0):.0f} s of the budget were left"}
            say(f"{name}: {found[name]['failure']}")
            continue
        started = clock()
        outcome = _run(command(name), min(left_s, budget_s * max_share)) | {
            "seconds": round(clock() - started, 1)
        }
        found[name] = outcome
        say(f"{name}: {outcome.get('failure', 'done')} ({outcome['seconds']} s)")
        if "result" in outcome:
            partial = path.with_suffix(".partial")
            partial.write_text(json.dumps(outcome, indent=1, sort_keys=True))
            partial.replace(path)
    return found


def _run(command: Sequence[str], timeout_s: float) -> dict[str, Any]:
    # A session of its own: the tuner's commands and measuring processes end with the step.
    lifeline, held = os.pipe()  # closed when this process ends, however it ends
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        pass_fds=(lifeline,),
        env={**os.environ, _LIFELINE: str(lifeline)},
    ) as process:
        os.close(lifeline)
        try:
            stdout, stderr = process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired as expired:
            said = bytes(expired.stderr or b"").decode(errors="replace").strip().splitlines()
            last = f"; it last said: {said[-1][:200]}" if said else ""
            return {
                "failure": f"ended after {timeout_s:.0f} s, the share of the budget that one step has{last}"
            }
        finally:  # also after Ctrl-C, which a session of its own does not hear of
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            os.close(held)
    lines = stdout.strip().splitlines()
    if process.returncode:
        said = stderr.strip().splitlines() or [f"exit status {process.returncode}"]
        return {"failure": said[-1][:400]}
    try:
        return {"result": json.loads(lines[-1])}
    except (IndexError, ValueError):
        return {"failure": "printed no result"}


def end_with_starter() -> None:
    """Let this step, and all that it starts, end when who started it ends, in whatever way."""
    if (lifeline := os.environ.pop(_LIFELINE, None)) is None:
        return
    ending = int(lifeline)

    def wait() -> None:
        os.read(ending, 1)
        os.killpg(0, signal.SIGKILL)

    threading.Thread(target=wait, daemon=True).start()


def num_jobs() -> int:
    """Return how many programs a step builds at a time."""
    return max(1, num_usable_cores() // 2)


def step_command(step: str, *, target: str, sizes: str, folder: Path) -> list[str]:
    """Return the command that runs one step of the report."""
    module = "benchmarks.gpu_report"
    where = ["--target", target, "--sizes", sizes, "--out", str(folder)]
    return [sys.executable, "-m", module, "--step", step, *where]
