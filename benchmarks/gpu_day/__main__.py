"""Fifteen minutes on a GPU: whole jobs in pieces of four minutes, most useful first, reported as they go.

    python -m benchmarks.gpu_day --out out/gpu-day               # the next pieces, four minutes of them
    python -m benchmarks.gpu_day --out out/try --sizes small --target cpu       # small ones, on a processor

Run the same command again to go on: what a piece measured before it was ended stands in the records, and a
piece that is done is not run again. Nothing is fetched. `OUT/report.md` says after each piece what is known.
Where torch has no CUDA, as on the software GPU of the tests, the pieces that need it fail with that reason,
and the others run by TVM alone.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.gpu_report.runner import end_with_starter, num_jobs, run_steps
from tuner.errors import TunerError
from tuner.targets.resolution import resolve_target

SIZES: dict[str, dict[str, Sequence[Sequence[str]]]] = {
    "full": {
        "ranks": [["report", "ranks"]],
        "block": [["report", "ceilings"], ["report", "network-block-1b-bfloat16"]],
        "tune": [["tune", "gpt2:medium", "--devices", "4", "--micro-batches", "16", "--hop-us", "8"]],
        "resnet50": [["report", "network-resnet50-float32"], ["report", "network-resnet50-bfloat16"]],
        "calibration": [["report", "calibration"]],
        "metaschedule": [["partition", "mlp:large", "--trials", "64"]],
        "training": [["report", "training"], ["report", "hops"], ["report", "schedules"]],
        "kernels": [
            ["partition", "gpt2:small"],
            ["partition", "mobilenet:v2"],
            ["partition", "resnet:50"],
        ],
    },
    "small": {
        "ranks": [["report", "ranks"]],
        "tune": [["tune", "mlp:tiny", "--devices", "2", "--micro-batches", "4", "--hop-us", "8"]],
        "calibration": [["report", "calibration"]],
        "metaschedule": [["partition", "mlp:tiny", "--trials", "4"]],
        "kernels": [["partition", "mlp:tiny"]],
    },
}
"""Of each piece its commands: `tessel`'s, or a step of `benchmarks.gpu_report`.

First what is sure to end within four minutes and says most: a whole `tune` and `run` of a small model, and
the mix beside torch. GPT-2 medium may take two calls.
"""

_MOST_TRIES = 2
"""Calls that begin a piece in its turn; one that is not done then waits for all others."""

_REPORTS_SHARE = 0.9
"""Of a piece's time, what steps of the report have, so that it is written before the piece is ended."""

_RESULTS = (
    "step_us",
    "max_relative_error",
    "max_gradient_error",
    "latency_us",
    "new_measurements",
    "comparison",
)
"""What a document of `tessel` says that the report repeats."""


def main(arguments: list[str] | None = None) -> int:
    """Run the pieces that the time allows; 0 where all are done."""
    parser = argparse.ArgumentParser(
        prog="benchmarks.gpu_day", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--out", type=Path, default=Path("out/gpu-day"))
    parser.add_argument("--target", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--sizes", choices=tuple(SIZES), default="full")
    parser.add_argument("--minutes", type=float, default=4.0, help="for this call")
    parser.add_argument("--only", default=None, help="names of pieces, by commas")
    parser.add_argument("--piece", default=None, help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    pieces = SIZES[given.sizes]
    wanted = [given.piece] if given.piece else given.only.split(",") if given.only else list(pieces)
    unknown = [name for name in wanted if name not in pieces]
    if unknown:
        parser.error(f"there is no piece {unknown[0]}; choose among {', '.join(pieces)}")
    if given.piece:
        end_with_starter()
        deadline = time.monotonic() + given.minutes * 60 * _REPORTS_SHARE
        commands = pieces[given.piece]
        print(json.dumps([run_command(each, given, deadline - time.monotonic()) for each in commands]))
        return 0
    try:
        resolve_target(given.target)
    except TunerError as error:
        say(str(error))
        return 1
    same = ["--out", str(given.out), "--sizes", given.sizes, "--target", given.target]
    deadline = time.monotonic() + given.minutes * 60
    tries = Tries(given.out / "tries.json")

    def command(piece: str) -> list[str]:
        left_s = deadline - time.monotonic()
        tries.note(piece)
        say(f"{piece}: begun, at most {left_s:.0f} s; it says what it does in {_log(given.out, piece)}")
        here = [sys.executable, "-m", "benchmarks.gpu_day", *same]
        return [*here, "--piece", piece, "--minutes", f"{left_s / 60:.3f}"]

    known = {path.stem: json.loads(path.read_text()) for path in (given.out / "steps").glob("*.json")}
    for name in sorted(wanted, key=lambda name: tries.of(name) >= _MOST_TRIES):
        # One by one, so that the report is there whenever the time is over.
        left_s = deadline - time.monotonic()
        known |= run_steps([name], given.out, command=command, budget_s=left_s, max_share=1.0, say=say)
        (given.out / "report.md").write_text(report({name: known[name] for name in pieces if name in known}))
    print(given.out / "report.md")
    left = [name for name in wanted if "result" not in known[name]]
    if left:
        say(f"not done: {', '.join(left)}; the same command goes on")
    return 1 if left else 0


def say(line: str) -> None:
    """Tell whoever waits."""
    print(line, file=sys.stderr, flush=True)


class Tries:
    """How often each piece was begun, kept in a file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._numbers: dict[str, int] = json.loads(path.read_text()) if path.exists() else {}

    def of(self, piece: str) -> int:
        """Return how often a piece was begun."""
        return self._numbers.get(piece, 0)

    def note(self, piece: str) -> None:
        """Note that a piece begins."""
        self._numbers[piece] = self.of(piece) + 1
        partial = self._path.with_suffix(".partial")
        partial.write_text(json.dumps(self._numbers))
        partial.replace(self._path)


def _log(out: Path, piece: str) -> Path:
    return out / "logs" / f"{piece}.log"


def run_command(command: Sequence[str], given: argparse.Namespace, left_s: float) -> dict[str, Any]:
    """Return what a command's document says, or where the report of all steps so far is.

    Args:
        command: of a piece.
        given: this module's options.
        left_s: seconds for a step of the report.

    Raises:
        SystemExit: it failed; says what it said last.
    """
    out, target = given.out, ["--target", given.target]
    if command[0] == "report":
        folder = out / "gpu-report"
        minutes = ["--minutes", f"{left_s / 60:.3f}"]
        where = [*target, "--sizes", given.sizes, "--out", str(folder), "--only", command[1]]
        argv = ["-m", "benchmarks.gpu_report", *where, *minutes]
    else:
        argv = ["-m", "scripts", *command, *target, "--backends", backends(command, given.target), "--json"]
        argv += ["--records", f"sqlite:///{out / 'records.db'}", "--jobs", str(num_jobs())]
        argv += ["--out", str(out / given.piece)] if command[0] == "tune" else []
    path = _log(out, given.piece)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as log:
        done = subprocess.run(
            [sys.executable, *argv],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            check=False,
        )
    if done.returncode:
        lines = path.read_text().strip().splitlines() or [f"exit status {done.returncode}"]
        # Of a report's steps each says how it ended; elsewhere the last line says what failed.
        said = [line for line in lines if ": done" not in line][-1:] or lines[-1:]
        raise SystemExit(f"{' '.join(command)}: {said[0][:300]}")
    if command[0] == "report":
        return {"command": " ".join(command), "report": str(folder / "report.md")}
    document = json.loads(done.stdout)
    return {"command": " ".join(command)} | {name: document[name] for name in _RESULTS if name in document}


def backends(command: Sequence[str], target: str) -> str:
    """Return who takes part: torch where it reaches the device, and MetaSchedule where it has trials."""
    import torch  # noqa: PLC0415 - takes seconds, and the pieces' own process needs it alone

    names = ["tvm", *(["torch"] if target == "cpu" or torch.cuda.is_available() else [])]
    return ",".join([*names, *(["metaschedule"] if "--trials" in command else [])])


def report(known: dict[str, dict[str, Any]]) -> str:
    """Return what is known of each piece, as Markdown."""
    lines = ["# A day on a GPU", "", "| piece | seconds | outcome |", "|---|---|---|"]
    for name, each in known.items():
        outcome = each.get("failure", "done")
        lines.append(f"| {name} | {each.get('seconds', '')} | {outcome} |")
    for name, each in known.items():
        if "result" in each:
            lines += ["", f"## {name}", "", "```json", json.dumps(each["result"], indent=1), "```"]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    os.environ.setdefault("PYTHONPATH", str(Path(__file__).parents[2]))
    sys.exit(main())
