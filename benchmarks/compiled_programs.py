"""Compiled programs as a user calls them: compiled, saved, loaded in a fresh process, and raced there.

    python -m benchmarks.compiled_programs MODULE:FUNCTION … [--tune 0] [--threads 1] [--report FILE.md]

Each function returns a torch module and its inputs. `--tune` is how many seconds a model's programs may be
measured; with 0 nothing is, and rules choose. The fresh process checks outputs against the module on 20
inputs, races the public call against torch eager, torch.compile and onnxruntime in turn, and states the
processor time of loading, and what a call takes besides TVM's machine: the same call with a machine that
returns at once.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path

from benchmarks.simulator.provenance import commit, processor

_ROUNDS = 20


def compile_one(name: str, path: Path, *, tune_s: float, threads: int) -> float:
    """Compile and save a module; return seconds."""
    from tessel.compiling.partitioning import compile_within  # noqa: PLC0415 - not in the fresh process

    module, inputs = _built(name)
    began_s = time.perf_counter()
    compile_within(module, inputs, seconds=tune_s, threads=threads).save(path)
    return time.perf_counter() - began_s


def run_one(name: str, path: Path) -> dict[str, object]:
    """Load a program in this process, and return what was found of it."""
    began_s = time.process_time()
    import tessel  # noqa: PLC0415 - its import is part of loading

    program = tessel.load(path)
    load_s = time.process_time() - began_s
    module, inputs = _built(name)
    raced = program.benchmark(*inputs, module=module, rounds=_ROUNDS)
    stub = _without_machine(program, inputs)
    overhead_us = _processor_us(lambda: stub(*inputs))
    return {
        "load_s": load_s,
        "error": _largest_error(program, module, inputs),
        "overhead_us": overhead_us,
        "bytes": path.stat().st_size,
        "rows": [[each.name, each.latency_us, each.ratio, each.low, each.high] for each in raced.contenders],
        "left_out": dict(raced.left_out),
    }


class _Returned:
    """Stands for the machines of a program: returns what they returned once."""

    def __init__(self, result: object) -> None:
        self._result = result

    def run(self, inputs: object) -> object:
        return self._result


def _without_machine(program, inputs):
    """Return a program that does all but compute."""
    from dataclasses import replace  # noqa: PLC0415 - as the rest of what the fresh process needs

    from tessel import Program  # noqa: PLC0415 - likewise

    given = [spec.tensor(value) for spec, value in zip(program._inputs, inputs, strict=True)]
    returned = _Returned(program.compiled.machines.run(given))
    return Program(replace(program.compiled, machines=returned), write_library=bytes)


def perceptron():
    """Return two small layers: nearly all of their time is the call's."""
    import torch  # noqa: PLC0415 - not before what is timed

    torch.manual_seed(0)
    layers = (torch.nn.Linear(32, 32), torch.nn.ReLU(), torch.nn.Linear(32, 8))
    return torch.nn.Sequential(*layers), (torch.randn(1, 32),)


def _built(name: str):
    location, _, function = name.rpartition(":")
    module, inputs = getattr(importlib.import_module(location), function)()
    return module.eval(), tuple(inputs)


def _largest_error(program, module, inputs) -> float:
    """Return the largest error on 20 inputs, relative to the largest output."""
    import torch  # noqa: PLC0415 - not before what is timed

    rng = torch.Generator().manual_seed(0)
    errors = []
    with torch.inference_mode():
        for _ in range(20):
            drawn = [_like(value, rng, torch) for value in inputs]
            found, expected = (_tensors(each, torch) for each in (program(*drawn), module(*drawn)))
            for one, other in zip(found, expected, strict=True):
                errors.append(float((one - other).abs().max() / other.abs().max()))
    return max(errors)


def _like(value, rng, torch):
    if value.is_floating_point():
        return torch.randn(value.shape, generator=rng)
    return torch.randint(0, int(value.max()) + 1, value.shape, generator=rng, dtype=value.dtype)


def _tensors(results, torch) -> list:
    if isinstance(results, torch.Tensor):
        return [results]
    items = results.values() if isinstance(results, dict) else results
    return [tensor for item in items for tensor in _tensors(item, torch)]


def _processor_us(run) -> float:
    """Return the processor time of a call in this thread, the median of samples."""
    samples = []
    for _ in range(15):
        began_s = time.thread_time()
        for _ in range(20):
            run()
        samples.append((time.thread_time() - began_s) / 20 * 1e6)
    return statistics.median(samples)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("models", nargs="+", metavar="MODULE:FUNCTION")
    parser.add_argument("--tune", type=float, default=0.0)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--report", type=Path)
    parser.add_argument("--loaded", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.loaded is not None:
        print(json.dumps(run_one(given.models[0], given.loaded)))
        return
    lines = _heading(given)
    for name in given.models:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "program.tessel"
            compile_s = compile_one(name, path, tune_s=given.tune, threads=given.threads)
            code = [sys.executable, "-m", "benchmarks.compiled_programs", name, "--loaded", str(path)]
            done = subprocess.run(code, capture_output=True, text=True, check=True)
        lines += _rows(name.rpartition(":")[2], compile_s, json.loads(done.stdout.splitlines()[-1]))
        print("\n".join(lines[-6:]), flush=True)
    if given.report is not None:
        given.report.write_text("\n".join(lines) + "\n")


def _heading(given: argparse.Namespace) -> list[str]:
    today = datetime.now(UTC).date()
    command = f"python -m benchmarks.compiled_programs {' '.join(given.models)}"
    return [
        "# Compiled programs as they are called",
        "",
        f"{today}, commit {commit()}, {processor()}, load average {os.getloadavg()[0]:.1f} at the start.",
        "",
        "```",
        f"{command} --tune {given.tune:g} --threads {given.threads}",
        "```",
        "",
        f"{_ROUNDS} rounds in turn in the process that loaded the program; medians, ratio to the program "
        "with its 95 % interval. Loading, and what a call takes besides the machine, are processor time.",
        "",
        "| model | who | us | ratio | interval | notes |",
        "|---|---|--:|--:|---|---|",
    ]


def _rows(name: str, compile_s: float, found: dict) -> list[str]:
    notes = (
        f"compiled in {compile_s:.0f} s, {found['bytes'] / 2**20:.1f} MiB, "
        f"loaded in {found['load_s']:.2f} s, error {found['error']:.1e}, "
        f"a call takes {found['overhead_us']:.1f} us besides the machine"
    )
    rows = [
        f"| {name} | {who} | {latency_us:.0f} | {ratio:.2f} | {low:.2f} to {high:.2f} | "
        f"{notes if who == 'tessel' else ''} |"
        for who, latency_us, ratio, low, high in found["rows"]
    ]
    return [*rows, *(f"| {name} | {who} | | | | left out: {why} |" for who, why in found["left_out"].items())]


if __name__ == "__main__":
    main()
