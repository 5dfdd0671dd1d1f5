"""Record what the frameworks' own profilers and timers write, for tests that read it.

    python -m benchmarks.frameworks.record --venv out/frameworks --out tests/samples/traces

torchtitan's profiler traces its debug model on two ranks and on one, Megatron-Core's timers log two ranks of
its schedules, and DeepSpeed prints the wall-clock breakdown of its engine; stopwatches beside each say what a
block took. What is kept has no names of machines, paths or processes; of a pipeline's trace it is the
outermost operations, of which the same is read as of all. nsys needs a GPU and is not recorded.
"""

from __future__ import annotations

import argparse
import gzip
import json
import re
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from benchmarks.frameworks.__main__ import install
from benchmarks.frameworks.plans import one_rank, plans
from benchmarks.frameworks.ranks import outputs_of
from tessel.jobs.exporting import export_recipe
from tessel.profiles.traces import load_trace

KEPT_ARGUMENTS = ("Sequence number", "Fwd thread id")
KEPT_KEYS = ("ph", "cat", "name", "tid", "ts", "dur")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--venv", type=Path, default=Path("out/frameworks"), help="folder of the releases")
    parser.add_argument("--out", type=Path, required=True, help="folder of the records")
    given = parser.parse_args()
    python = install(given.venv)
    with tempfile.TemporaryDirectory() as folder:
        for kind in ("stages", "layers"):
            path = str((given.venv / "torchtitan-0.3.0").absolute())
            _record_titan(kind, Path(folder), given.out, python, path)
        _record_log("megatron", Path(folder), given.out, python, ranks=2)
        _record_log("deepspeed", Path(folder), given.out, python, ranks=1)


def _record_titan(kind: str, folder: Path, out: Path, python: str, path: str) -> None:
    """Record a pipeline, or the whole model in one rank, of which the trace has every layer."""
    file = folder / kind / "titan.py"
    file.parent.mkdir()
    recipe = plans()["interleaved"] if kind == "stages" else one_rank()
    export_recipe(recipe, "torchtitan", file, version="0.3.0")
    sizes = {"LENGTH": "256"}
    outputs = outputs_of("record_titan", [file], recipe.devices, python=python, path=path, sizes=sizes)
    (traces,) = (file.parent / "profiling" / "traces").iterdir()
    kept = out / f"torchtitan_{kind}"
    kept.mkdir(parents=True, exist_ok=True)
    for trace in traces.iterdir():
        document = _kept(json.loads(gzip.decompress(trace.read_bytes())), is_outermost=kind == "stages")
        # Without a time of compression, so that the same trace is the same file.
        (kept / trace.name).write_bytes(gzip.compress(json.dumps(document).encode(), mtime=0))
    whole, part = load_trace(traces), load_trace(kept)
    assert whole.ranges == part.ranges, "what is left out is read"
    _write_stopwatches(kept.with_suffix(".json"), outputs)


def _kept(document: dict[str, Any], *, is_outermost: bool) -> dict[str, Any]:
    """Return a trace without what its reader needs not, and without names of where it was made."""
    own = document.get("distributedInfo", {})
    events = [each for each in document["traceEvents"] if each.get("cat") in ("cpu_op", "user_annotation")]
    return {
        "schemaVersion": document["schemaVersion"],
        "distributedInfo": {name: own[name] for name in ("backend", "rank", "world_size") if name in own},
        "baseTimeNanoseconds": document["baseTimeNanoseconds"],
        "traceEvents": [_kept_event(event) for event in (_outermost(events) if is_outermost else events)],
    }


def _outermost(events: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return ranges, and those operations of a thread that are within no other."""
    ends: dict[Any, float] = {}
    found = []
    for event in sorted(events, key=lambda event: (event["ts"], -event["dur"])):
        if event["cat"] == "cpu_op":
            if event["ts"] < ends.get(event["tid"], 0.0):
                continue
            ends[event["tid"]] = event["ts"] + event["dur"]
        found.append(event)
    return found


def _kept_event(event: dict[str, Any]) -> dict[str, Any]:
    own = {name: value for name, value in event.get("args", {}).items() if name in KEPT_ARGUMENTS}
    return {name: event[name] for name in KEPT_KEYS} | ({"args": own} if own else {})


def _record_log(framework: str, folder: Path, out: Path, python: str, *, ranks: int) -> None:
    file = folder / "arguments.txt"
    export_recipe(plans()["1F1B"], "megatron", file)
    outputs = outputs_of(
        f"record_{framework}", [file], ranks, python=python, path="", sizes={"WIDTH": "1024", "LENGTH": "256"}
    )
    lines = [_sanitised(line) for line in outputs[-1].splitlines() if _is_told(line)]
    (out / f"{framework}.log").write_text("\n".join(lines) + "\n")
    _write_stopwatches(out / f"{framework}.json", outputs)


_TOLD = re.compile(r"time \(ms\)|across ranks|rank +\d+:|^  [a-z-]+:$|\.{3} |arguments ---")


def _is_told(line: str) -> bool:
    return _TOLD.search(line) is not None


def _sanitised(line: str) -> str:
    """Return a line without what names a machine, a path or a process."""
    return re.sub(r"[\w.-]+:\d+:(?=\[)|/[\w./-]+/", "", line)


def _write_stopwatches(path: Path, outputs: Iterable[str]) -> None:
    told = [line for output in outputs for line in output.splitlines() if line.startswith("RESULT ")]
    path.write_text(json.dumps([json.loads(line[7:])["taken_ms"] for line in told]) + "\n")


if __name__ == "__main__":
    main()
