"""Compiled programs as a user calls them: compiled, saved, loaded in a fresh process, and raced there.

    python -m benchmarks.compiled_programs published [--tune 30] [--threads 1 --threads 2] --out out/programs
    python -m benchmarks.compiled_programs MODULE:FUNCTION net.onnx@x=1,3,320,320@rate:=16000 …

Models are names of `benchmarks.compiled_programs.models`, functions that return a torch module and its
inputs, or files with the shapes of their inputs and the values of those that become constants behind them.
`--tune` is how many seconds a model's programs may be measured; with 0 nothing is, and rules choose. A fresh
process that cannot import the tuner compares outputs with the original's on 20 inputs, and another races the
public call against onnxruntime and torch in turn. What was found stands in a file a model, number of
threads and stage in `--out`; what has one is not done again, so that a run may be stopped. A model that
cannot be compiled, or gives other values, is a row that says so. With `--torch-compile`, `--stages inductor`
compiles modules by torch ahead, minutes for all, so that `--stages race` takes seconds a model.
"""

from __future__ import annotations

import argparse
import json
import logging
import multiprocessing
import os
import re
import resource
import statistics
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.compiled_programs.loaded import NUM_INPUTS, ROUNDS
from benchmarks.compiled_programs.models import PUBLISHED, NamedModel
from benchmarks.simulator.provenance import commit, processor

Found = dict[str, Any]

_STAGES = ("compile", "check", "race")

_WARM = "inductor"
"""A stage before races against torch.compile: it compiles, which needs no idle machine, and fills a cache."""

_MARK = "<!-- figures -->\n"

_TOGETHER = 8
"""Models that are compiled before they race, so that time that is up leaves whole rows."""

_RACES = 3
"""Processes in which a model is raced: two sessions of one file differ, which rounds in turn do not show."""

_LIMIT_S = 300
"""Seconds that a model may take to be compiled."""


def compile_one(name: str, path: Path, *, tune_s: float, threads: int, records: str) -> Found:
    """Compile and save a model, and write what onnxruntime runs of it."""
    from tessel.compiling.partitioning import compile_within  # noqa: PLC0415 - not in the fresh process
    from tessel.compiling.racing import exported  # noqa: PLC0415 - likewise

    model = NamedModel.of(name)
    began_s = time.perf_counter()
    options: dict[str, Any] = {"seconds": tune_s, "threads": threads, "records": records}
    if model.is_file:
        program = compile_within(model.location, None, shape=model.shapes, value=model.values, **options)
    else:
        module, inputs = model.built()
        program = compile_within(module, inputs, **options)
    program.save(path)
    found: Found = {"compile_s": time.perf_counter() - began_s, "processor_s": _processor_s()}
    onnx = _onnx(path, model)
    if not onnx.exists():
        try:
            onnx.write_bytes(exported(module, inputs, {}))
        except Exception as error:  # a foreign exporter
            found["not_exported"] = str(error)[:200]
    return found


def _processor_s() -> float:
    """Return the processor time of this process and of those that it has started and awaited."""
    mine, theirs = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return mine.ru_utime + mine.ru_stime + theirs.ru_utime + theirs.ru_stime


def main() -> None:
    """Do what is not done yet, and print the report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("models", nargs="+", metavar="MODEL")
    parser.add_argument("--tune", type=float, default=0.0, metavar="SECONDS")
    parser.add_argument("--threads", type=int, action="append")
    parser.add_argument("--out", type=Path, default=Path("out/compiled_programs"))
    parser.add_argument("--stages", nargs="+", choices=(*_STAGES, _WARM))
    parser.add_argument("--torch-compile", action="store_true", help="race torch.compile, too")
    parser.add_argument("--jobs", type=int, default=1, help="how many compile, or are checked, at once")
    parser.add_argument("--minutes", type=float, default=1e9, help="begin nothing after so many")
    parser.add_argument("--report", type=Path, help=f"what stands in it before {_MARK.strip()} is kept")
    given = parser.parse_args()
    given.stages = given.stages or [*_STAGES[:-1], *([_WARM] if given.torch_compile else []), _STAGES[-1]]
    threads = given.threads or [1]
    given.out.mkdir(parents=True, exist_ok=True)
    names = [each for name in given.models for each in (PUBLISHED if name == "published" else [name])]
    ends_s = time.monotonic() + 60 * given.minutes
    for number in threads:
        for first in range(0, len(names), _TOGETHER):
            for stage in given.stages:
                tasks = [(name, number) for name in names[first : first + _TOGETHER]]
                _do_all(stage, tasks, given, ends_s)
    lines = _report(names, threads, given)
    print("\n".join(lines))
    if given.report is not None:
        kept, mark, _ = (given.report.read_text() if given.report.exists() else "").rpartition(_MARK)
        given.report.write_text(kept + mark + "\n".join(lines[1:] if mark else lines) + "\n")


def _do_all(stage: str, tasks: list[tuple[str, int]], given: argparse.Namespace, ends_s: float) -> None:
    """Do one stage of all models, until time is up; several at once, but for races."""
    from tessel.compiling import partitioning  # noqa: F401, PLC0415 - seconds, once for all models

    jobs = 1 if stage == "race" else given.jobs

    def work(own: list[tuple[str, int]]) -> None:
        for name, threads in own:
            if time.monotonic() < ends_s:
                _do(stage, name, threads, given)

    context = multiprocessing.get_context("fork")
    workers = [context.Process(target=work, args=(tasks[first::jobs],)) for first in range(jobs)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()


def _do(stage: str, name: str, threads: int, given: argparse.Namespace) -> None:
    """Do one stage of a model in a process of its own, unless it is done or the one before failed."""
    path = _program(name, threads, given.out)
    result = _result(path, stage)
    model = NamedModel.of(name)
    before = _STAGES[: _STAGES.index("race" if stage == _WARM else stage)]
    if _is_done(stage, path, model, given) or any("failed" in _read(path, each) for each in before):
        return
    began_s = time.perf_counter()
    if stage == "compile":
        found = _compiled_apart(name, path, threads, given)
    else:
        how = "race-compiled" if stage == "race" and given.torch_compile else stage
        code = [how, name, str(path), str(_onnx(path, model))]
        times = _RACES if stage == "race" else 1
        found = _of_all([_in_fresh_process(code, threads, given.out) for _ in range(times)])
    written = result.with_suffix(".part")
    written.write_text(json.dumps({**found, "wall_s": time.perf_counter() - began_s}, indent=1) + "\n")
    written.rename(result)
    print(f"{stage} {path.stem}: {found}", file=sys.stderr, flush=True)


def _is_done(stage: str, path: Path, model: NamedModel, given: argparse.Namespace) -> bool:
    """Say whether there is a result; a race that has to be against torch.compile, too, may lack it."""
    if stage == _WARM and model.is_file:
        return True
    if not _result(path, stage).exists() or stage != "race" or not given.torch_compile or model.is_file:
        return _result(path, stage).exists()
    return any(who == "torch.compile" for who, *_ in _read(path, stage).get("rows", []))


def _in_fresh_process(arguments: list[str], threads: int, folder: Path) -> Found:
    """Return what a process that cannot import the tuner finds, or why it failed."""
    settings = {"OMP_NUM_THREADS": str(threads), "TORCHINDUCTOR_CACHE_DIR": str(folder.resolve() / _WARM)}
    try:
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks.compiled_programs.loaded", *arguments],
            capture_output=True,
            text=True,
            check=False,
            timeout=_LIMIT_S,
            env={**os.environ, **settings},
        )
    except subprocess.TimeoutExpired:
        return {"failed": f"it does not end within {_LIMIT_S} s"}
    failed = (done.stderr.strip() or f"exit {done.returncode}").splitlines()[-1][:200]
    return {"failed": failed} if done.returncode else json.loads(done.stdout.splitlines()[-1])


def _of_all(races: list[Found]) -> Found:
    """Return the race of median ratios, with intervals that span those of all, or the one that failed."""
    failed = [each for each in races if "failed" in each]
    if failed or len(races) == 1:
        return (failed or races)[0]
    rows = []
    for name, *_ in races[0]["rows"]:
        of_name = [next(row for row in each["rows"] if row[0] == name) for each in races]
        us, ratios, low, high = list(zip(*of_name, strict=True))[1:]
        rows.append([name, statistics.median(us), statistics.median(ratios), min(low), max(high)])
    return {"rows": rows, "load": max(each["load"] for each in races)}


def _compiled_apart(name: str, path: Path, threads: int, given: argparse.Namespace) -> Found:
    """Compile a model in a fork of this process, which has imported the compiler; it may crash."""
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)

    def work() -> None:
        try:
            records = f"sqlite:///{given.out}/records.db"
            sender.send(compile_one(name, path, tune_s=given.tune, threads=threads, records=records))
        except Exception as error:  # whatever a foreign model runs into is the finding
            logging.getLogger(__name__).debug("%s", name, exc_info=True)
            sender.send({"failed": (str(error).strip().splitlines() or [type(error).__name__])[0][:200]})

    process = context.Process(target=work)
    process.start()
    sender.close()
    if not receiver.poll(_LIMIT_S):
        process.kill()
        return {"failed": f"it is not compiled within {_LIMIT_S} s"}
    try:
        return receiver.recv()
    except EOFError:
        process.join()
        return {"failed": f"the compiling process ended with {process.exitcode}"}


def _program(name: str, threads: int, folder: Path) -> Path:
    return folder / f"{re.sub(r'[^A-Za-z0-9_]', '_', NamedModel.of(name).title)}-{threads}.tessel"


def _result(path: Path, stage: str) -> Path:
    return path.with_suffix(f".{stage}.json")


def _read(path: Path, stage: str) -> Found:
    result = _result(path, stage)
    return json.loads(result.read_text()) if result.exists() else {}


def _onnx(path: Path, model: NamedModel) -> Path:
    return Path(model.location) if model.is_file else path.with_name(path.stem.rpartition("-")[0] + ".onnx")


def _report(names: list[str], threads: list[int], given: argparse.Namespace) -> list[str]:
    models = " ".join(re.sub(r"\S*/", "", each) for each in given.models)
    numbers = " ".join(f"--threads {number}" for number in threads)
    lines = [
        "# Compiled programs as they are called",
        "",
        f"{datetime.now(UTC).date()}, commit {commit()}, {processor()}.",
        "",
        "```",
        f"python -m benchmarks.compiled_programs {models} --tune {given.tune:g} {numbers}",
        "```",
        "",
        f"Outputs are compared on {NUM_INPUTS} inputs in a process without the tuner. Raced in {_RACES}",
        f"others, {ROUNDS} rounds in turn in each: the median ratio to the program, with what their 95 %",
        "intervals span; above 1 the program is faster. Loading, and what a call takes besides the machine,",
        "are processor time.",
    ]
    quantised = [name for name in names if NamedModel.of(name).title.endswith("_int8")]
    for number in threads:
        plain = [name for name in names if name not in quantised]
        lines += ["", f"## Threads: {number}", "", *_table(plain, number, given.out)]
        if quantised:
            lines += ["", f"## Quantised, threads: {number}", "", *_table(quantised, number, given.out)]
    return lines


def _table(names: list[str], threads: int, folder: Path) -> list[str]:
    rows = [
        "| model | us | onnxruntime | torch eager | torch.compile | error | compiled | loaded | call "
        "| parts |",
        "|---|--:|---|---|---|--:|--:|--:|--:|---|",
    ]
    ratios: dict[str, dict[str, float]] = {}
    errors: list[float] = []
    for name in names:
        path = _program(name, threads, folder)
        title = path.stem.rpartition("-")[0]
        compiled, checked, raced = (_read(path, stage) for stage in _STAGES)
        failed = next((each["failed"] for each in (compiled, checked, raced) if "failed" in each), None)
        if failed is not None or not checked:
            rows.append(f"| {title} | | | | | | | | | {failed or 'not done'} |")
            continue
        errors.append(checked["error"])
        found = {who: rest for who, *rest in raced.get("rows", [])}
        for who, (_, ratio, _, _) in found.items():
            ratios.setdefault(who, {})[title] = ratio
        others = [_cell(found.get(who)) for who in ("onnxruntime", "torch eager", "torch.compile")]
        parts: dict[str, int] = {}
        for backend, occurrences in checked["parts"]:
            parts[backend] = parts.get(backend, 0) + occurrences
        latency = f"{found['tessel'][0]:.0f}" if found else ""
        figures = [f"{checked['error']:.1e}", f"{compiled['compile_s']:.0f} s", f"{checked['load_s']:.2f} s"]
        figures += [f"{checked['overhead_us']:.1f} us", ", ".join(f"{k} {n}" for k, n in parts.items())]
        rows.append(f"| {title} | {latency} | {' | '.join([*others, *figures])} |")
    equal = f"{len(errors)} of {len(names)} run in a process without the tuner; the largest error is "
    equal += f"{max(errors, default=0.0):.1e} of the largest output."
    return [
        *rows,
        "",
        equal,
        *(_summary(who, ratios.get(who, {})) for who in ("onnxruntime", "torch.compile")),
    ]


def _cell(found: list[float] | None) -> str:
    return "" if found is None else f"{found[1]:.2f} ({found[2]:.2f} to {found[3]:.2f})"


def _summary(who: str, ratios: dict[str, float]) -> str:
    if not ratios:
        return f"Against {who}: nothing was raced."
    mean, least = statistics.geometric_mean(ratios.values()), min(ratios, key=ratios.__getitem__)
    return (
        f"Against {who}: geometric mean {mean:.2f} over {len(ratios)} models, least {ratios[least]:.2f} "
        f"({least}); {sum(each < 0.95 for each in ratios.values())} below 0.95."
    )


if __name__ == "__main__":
    main()
