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

from benchmarks.gpu_report.runner import run_steps

SIZES: dict[str, dict[str, Sequence[Sequence[str]]]] = {
    "full": {
        "tune": [["tune", "gpt2:medium", "--devices", "4", "--micro-batches", "16", "--hop-us", "8"]],
        "ranks": [["report", "ceilings,training,hops,ranks"]],
        "block": [["report", "network-block-1b-bfloat16"]],
        "resnet50": [["report", "network-resnet50-float32,network-resnet50-bfloat16"]],
        "metaschedule": [["partition", "mlp:large", "--trials", "64"]],
        "calibration": [["report", "calibration"]],
        "kernels": [
            ["partition", "gpt2:small"],
            ["partition", "mobilenet:v2"],
            ["partition", "resnet:50"],
        ],
    },
    "small": {
        "tune": [["tune", "mlp:tiny", "--devices", "2", "--micro-batches", "4", "--hop-us", "8"]],
        "ranks": [["report", "ceilings,ranks"]],
        "metaschedule": [["partition", "mlp:tiny", "--trials", "4"]],
        "calibration": [["report", "calibration"]],
        "kernels": [["partition", "mlp:tiny"]],
    },
}
"""Of each piece its commands: `tessel`'s, or steps of `benchmarks.gpu_report`."""

_REPORTS_SHARE = 0.9
"""Of a piece's time, what steps of the report have."""

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
        print(json.dumps([run_command(each, given) for each in pieces[given.piece]]))
        return 0
    same = ["--out", str(given.out), "--sizes", given.sizes, "--target", given.target]
    deadline = time.monotonic() + given.minutes * 60

    def command(piece: str) -> list[str]:
        minutes = (deadline - time.monotonic()) / 60
        here = [sys.executable, "-m", "benchmarks.gpu_day", *same]
        return [*here, "--piece", piece, "--minutes", f"{minutes:.3f}"]

    known: dict[str, dict[str, Any]] = {}
    for name in wanted:  # one by one, so that the report is there whenever the time is over
        known |= run_steps(
            [name],
            given.out,
            command=command,
            budget_s=deadline - time.monotonic(),
            max_share=1.0,
            say=lambda line: print(line, file=sys.stderr, flush=True),
        )
        (given.out / "report.md").write_text(report(known))
    print(given.out / "report.md")
    return 0 if all("result" in each for each in known.values()) else 1


def run_command(command: Sequence[str], given: argparse.Namespace) -> dict[str, Any]:
    """Return what a command's document says, or where the report of all steps so far is.

    Raises:
        SystemExit: it failed; says what it said last.
    """
    out, target = given.out, ["--target", given.target]
    if command[0] == "report":
        folder = out / "gpu-report"
        # Its steps are sessions of their own, which it ends itself before this piece is ended.
        minutes = ["--minutes", f"{given.minutes * _REPORTS_SHARE:.3f}"]
        where = [*target, "--sizes", given.sizes, "--out", str(folder), "--only", command[1]]
        argv = ["-m", "benchmarks.gpu_report", *where, *minutes]
    else:
        argv = ["-m", "scripts", *command, *target, "--backends", backends(command, given.target), "--json"]
        argv += ["--records", f"sqlite:///{out / 'records.db'}"]
        argv += ["--out", str(out / given.piece)] if command[0] == "tune" else []
    done = subprocess.run([sys.executable, *argv], capture_output=True, text=True, check=False)
    if done.returncode:
        lines = (done.stderr or done.stdout).strip().splitlines() or [f"exit status {done.returncode}"]
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
