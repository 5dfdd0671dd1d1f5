"""Compiled programs as a user calls them: compiled, saved, loaded in a fresh process, and raced there.

    python -m benchmarks.compiled_programs MODULE:FUNCTION … [--tune 0] [--threads 1] [--report FILE.md]
    python -m benchmarks.compiled_programs net.onnx@x=1,3,320,320@rate:=16000 …

Each function returns a torch module and its inputs; a file has the shapes of its inputs behind it, and the
values of those that become constants. `--tune` is how many seconds a model's programs may be
measured; with 0 nothing is, and rules choose. The fresh process checks outputs against the module on 20
inputs, races the public call against torch eager, torch.compile and onnxruntime in turn, and states the
processor time of loading, and what a call takes besides TVM's machine: the same call with a machine that
returns at once. A file is compared with onnxruntime and raced against it alone. A model that cannot be
compiled, or gives other values, is a row that says so.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.simulator.provenance import commit, processor

_ROUNDS = 20


@dataclass(frozen=True)
class _Model:
    """A model as it was named: a function's, or a file's with shapes and values."""

    location: str
    shapes: dict[str, tuple[int, ...]]
    values: dict[str, int]

    @classmethod
    def named(cls, text: str) -> _Model:
        location, *settings = text.split("@")
        values = [each.partition(":=") for each in settings if ":=" in each]
        shapes = [each.partition("=") for each in settings if ":=" not in each]
        return cls(
            location,
            {name: tuple(map(int, filter(None, shape.split(",")))) for name, _, shape in shapes},
            {name: int(value) for name, _, value in values},
        )

    @property
    def is_file(self) -> bool:
        return self.location.endswith(".onnx")

    @property
    def title(self) -> str:
        return Path(self.location).name if self.is_file else self.location.rpartition(":")[2]


def compile_one(model: _Model, path: Path, *, tune_s: float, threads: int, records: str) -> float:
    """Compile and save a model; return seconds."""
    from tessel.compiling.partitioning import compile_within  # noqa: PLC0415 - not in the fresh process

    began_s = time.perf_counter()
    options: dict[str, Any] = {"seconds": tune_s, "threads": threads, "records": records}
    if model.is_file:
        program = compile_within(model.location, None, shape=model.shapes, value=model.values, **options)
    else:
        module, inputs = _built(model.location)
        program = compile_within(module, inputs, **options)
    program.save(path)
    return time.perf_counter() - began_s


def run_one(model: _Model, path: Path) -> dict[str, object]:
    """Load a program in this process, and return what was found of it."""
    began_s = time.process_time()
    import tessel  # noqa: PLC0415 - its import is part of loading

    program = tessel.load(path)
    load_s = time.process_time() - began_s
    inputs, raced, left_out, error = (_file if model.is_file else _torch)(model, program)
    stub = _without_machine(program, inputs)
    return {
        "load_s": load_s,
        "error": error,
        "overhead_us": _processor_us(lambda: stub(*inputs)),
        "bytes": path.stat().st_size,
        "rows": [[each.name, each.latency_us, each.ratio, each.low, each.high] for each in raced],
        "left_out": left_out,
    }


def _torch(model: _Model, program):
    """Return inputs, the race, who is left out, and the largest error of a torch module's program."""
    module, inputs = _built(model.location)
    raced = program.benchmark(*inputs, module=module, rounds=_ROUNDS)
    return inputs, raced.contenders, dict(raced.left_out), _largest_error(program, module, inputs)


def _file(model: _Model, program):
    """Return the same of a file's program, beside onnxruntime."""
    import numpy as np  # noqa: PLC0415 - not before what is timed
    import onnxruntime  # noqa: PLC0415 - likewise

    from tessel.compiling.racing import race  # noqa: PLC0415 - likewise

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = program.manifest.num_threads, 1
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(model.location, options, providers=["CPUExecutionProvider"])
    fixed = {
        each.name: np.array(model.values[each.name], np.int64)
        for each in session.get_inputs()
        if each.name in model.values
    }
    rng, specs, errors = np.random.default_rng(0), program.manifest.inputs, [0.0]
    for _ in range(20):
        feeds = {
            spec.name: rng.standard_normal(spec.shape).astype(spec.dtype)
            if "float" in spec.dtype
            else rng.integers(0, 2 if spec.dtype == "bool" else 256, spec.shape).astype(spec.dtype)
            for spec in specs
        }
        found = program(**feeds)
        found = found if isinstance(found, tuple | list) else [found]
        for one, other in zip(found, session.run(None, {**feeds, **fixed}), strict=True):
            errors.append(float(np.abs(one - other).max() / max(float(np.abs(other).max()), 1e-30)))
    runs = {"tessel": lambda: program(**feeds), "onnxruntime": lambda: session.run(None, {**feeds, **fixed})}
    return tuple(feeds.values()), race(runs, rounds=_ROUNDS), {}, max(errors)


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
    parser.add_argument("models", nargs="+", metavar="MODEL")
    parser.add_argument("--tune", type=float, default=0.0)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--records", default="", help="those of this run alone, unless given")
    parser.add_argument("--report", type=Path)
    parser.add_argument("--loaded", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.loaded is not None:
        print(json.dumps(run_one(_Model.named(given.models[0]), given.loaded)))
        return
    lines = _heading(given)
    ratios: dict[str, float] = {}
    for name in given.models:
        model = _Model.named(name)
        rows, ratio = _measured(name, model, given)
        lines += rows
        ratios |= {} if ratio is None else {model.title: ratio}
        print("\n".join(rows), flush=True)
    lines += ["", _summary(ratios)]
    print(lines[-1])
    if given.report is not None:
        given.report.write_text("\n".join(lines) + "\n")


def _measured(name: str, model: _Model, given: argparse.Namespace) -> tuple[list[str], float | None]:
    """Return the rows of a model, and its ratio to onnxruntime."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "program.tessel"
        records = given.records or f"sqlite:///{folder}/records.db"
        try:
            compile_s = compile_one(model, path, tune_s=given.tune, threads=given.threads, records=records)
        except Exception as error:  # whatever a foreign model runs into is the finding
            return [f"| {model.title} | tessel | | | | {_sentence(error)} |"], None
        code = [sys.executable, "-m", "benchmarks.compiled_programs", name, "--loaded", str(path)]
        done = subprocess.run(code, capture_output=True, text=True, check=False)
        if done.returncode:
            return [f"| {model.title} | tessel | | | | {done.stderr.strip().splitlines()[-1][:200]} |"], None
    found = json.loads(done.stdout.splitlines()[-1])
    ratios = {who: ratio for who, _, ratio, _, _ in found["rows"]}
    return _rows(model.title, compile_s, found), ratios.get("onnxruntime")


def _sentence(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]


def _summary(ratios: dict[str, float]) -> str:
    if not ratios:
        return "onnxruntime ran none of them."
    mean = statistics.geometric_mean(ratios.values())
    least = min(ratios, key=ratios.__getitem__)
    return (
        f"Against onnxruntime: geometric mean {mean:.2f} over {len(ratios)} models, least "
        f"{ratios[least]:.2f} ({least}); {sum(each < 0.95 for each in ratios.values())} below 0.95."
    )


def _heading(given: argparse.Namespace) -> list[str]:
    today = datetime.now(UTC).date()
    models = [re.sub(r"\S*/", "", name) for name in given.models]
    command = f"python -m benchmarks.compiled_programs {' '.join(models)}"
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
