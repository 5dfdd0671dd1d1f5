"""Measure what one GPU allows, step by step within a budget, and write one report and the records.

    python -m benchmarks.gpu_report --target cuda --sizes full --out out/gpu-report
    python -m benchmarks.gpu_report --target cpu --sizes small --out out/try

Run the same command again to go on where a run stopped: steps that are done are not repeated, and what the
tuner measured stands in the records. Nothing is fetched from a network, and the device's clocks are not
changed. `OUT/report.md` is the report, `OUT/records.jsonl` holds the records, and `OUT/steps/` all figures.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
from pathlib import Path
from types import FrameType

from benchmarks.gpu_report.device import device_named
from benchmarks.gpu_report.markdown import report
from benchmarks.gpu_report.networks import SIZES
from benchmarks.gpu_report.runner import MAX_SHARE, end_with_starter, run_steps, step_command
from benchmarks.gpu_report.steps import Context, steps_for
from benchmarks.simulator.provenance import commit
from records import open_store
from records.files.exchange import save_records


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="benchmarks.gpu_report", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--target", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--sizes", choices=tuple(SIZES), default="full")
    parser.add_argument("--out", type=Path, default=Path("out/gpu-report"))
    parser.add_argument("--minutes", type=float, default=25.0, help="for all steps together")
    parser.add_argument("--only", default=None, help="names of steps, by commas")
    parser.add_argument("--step", default=None, help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    steps = steps_for(given.sizes)
    wanted = [given.step] if given.step else given.only.split(",") if given.only else list(steps)
    unknown = [name for name in wanted if name not in steps]
    if unknown:
        parser.error(f"there is no step {unknown[0]}; choose among {', '.join(steps)}")
    device = device_named(given.target)
    if given.step:
        end_with_starter()
        if given.target == "cpu":
            os.environ["TVM_NUM_THREADS"] = "1"  # as torch's there; read when TVM first runs something
        context = Context(device=device, sizes_name=given.sizes, folder=given.out)
        print(json.dumps(steps[given.step](context)))
        return 0
    given.out.mkdir(parents=True, exist_ok=True)
    configuration = {"target": given.target, "sizes": given.sizes, "commit": commit(), **device.describe()}
    _check_same(given.out / "configuration.json", configuration, parser)
    found = run_steps(
        wanted,
        given.out,
        command=lambda name: step_command(name, target=given.target, sizes=given.sizes, folder=given.out),
        budget_s=given.minutes * 60,
        max_share=max(MAX_SHARE, 1 / len(wanted)),
        say=lambda line: print(line, file=sys.stderr, flush=True),
    )
    steps_before = sorted((given.out / "steps").glob("*.json"))
    known = {path.stem: json.loads(path.read_text()) for path in steps_before} | found
    (given.out / "report.md").write_text(report(configuration, known))
    if (given.out / "records.db").exists():
        with open_store(f"sqlite:///{given.out / 'records.db'}") as store:
            save_records(store, given.out / "records.jsonl")
    print(given.out / "report.md")
    return 0 if all("result" in each for each in found.values()) else 1


def _check_same(path: Path, configuration: dict[str, str], parser: argparse.ArgumentParser) -> None:
    """Note what is measured, and refuse to mix it with another device's results or other code's."""
    if path.exists() and json.loads(path.read_text()) != configuration:
        parser.error(f"{path.parent} holds results of {path.read_text().strip()}; give another --out")
    path.write_text(json.dumps(configuration, sort_keys=True))


def end_on_sigterm(number: int, frame: FrameType | None) -> None:
    """Leave by an exception, so that the step that runs is ended too."""
    raise SystemExit(128 + number)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, end_on_sigterm)
    sys.exit(main())
