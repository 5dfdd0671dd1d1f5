"""A saved program in a fresh process: no tuner in it, outputs as the original's, and who is how fast.

python -m benchmarks.compiled_programs.loaded check|inductor|race|race-compiled MODEL FILE.tessel FILE.onnx
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from importlib.abc import MetaPathFinder
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.compiled_programs.models import NamedModel

NUM_INPUTS = 20
ROUNDS = 20

Arrays = list[np.ndarray]

_TUNING = ("tvm.", "cost_model.", "records.database", "tessel.search", "scripts.")


class _NoTuner(MetaPathFinder):
    """Refuses to import what a process with the run time alone does not have."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        """Raise ModuleNotFoundError for a module of the tuner, the search or TVM's compiler."""
        parts = name.split(".")
        is_tuner = parts[0] == "tuner" and parts[1:2] not in ([], ["runtime"], ["cuda_libraries"])
        if is_tuner or name.startswith(_TUNING):
            raise ModuleNotFoundError(f"{name} is not in this process", name=name)


def check(model: NamedModel, path: Path, onnx: Path) -> dict[str, Any]:
    """Return what loading takes, and the largest error of 20 calls, relative to the largest output.

    Raises:
        ValueError: results have other shapes than the original's.
    """
    began_s = time.process_time()
    import tessel  # noqa: PLC0415 - its import is part of loading

    program = tessel.load(path)
    load_s = time.process_time() - began_s
    errors: list[float] = []
    original = _of_file(model, onnx, program) if model.is_file else _of_module(model)
    for given in _drawn(model, program):
        found, expected = _leaves(program(*given)), original(given)
        if [each.shape for each in found] != [each.shape for each in expected]:
            raise ValueError(f"results are of shapes {[each.shape for each in found]}")
        errors += map(_error, found, expected)
    stub = _without_machine(program, given)
    return {
        "load_s": load_s,
        "error": max(errors),
        "overhead_us": _processor_us(lambda: stub(*given)),
        "bytes": path.stat().st_size,
        "parts": [[each.backend, each.occurrences] for each in program.manifest.parts],
    }


def race(model: NamedModel, path: Path, onnx: Path, *, with_compiled: bool) -> dict[str, Any]:
    """Return medians and ratios of the public call, onnxruntime and torch, called in turn."""
    import tessel  # noqa: PLC0415 - not before a check times it
    from tessel.compiling import racing  # noqa: PLC0415 - likewise

    program = tessel.load(path)
    given = next(_drawn(model, program))
    runs: dict[str, Callable[[], object]] = {racing.PROGRAM: lambda: program(*given)}
    if onnx.exists():
        run = _of_file(model, onnx, program)
        runs[racing.ONNXRUNTIME] = lambda: run(given)
    if model.is_file:
        raced = racing.race(runs, rounds=ROUNDS, num_threads=program.manifest.num_threads)
    else:
        import torch  # noqa: PLC0415 - files are run without it

        tensors, module = list(map(torch.from_numpy, given)), model.built()[0]
        runs[racing.PROGRAM] = lambda: program(*tensors)
        against = [racing.EAGER, *([racing.COMPILED] if with_compiled else [])]
        threads = program.manifest.num_threads
        with racing.torch_contenders(module, tensors, {}, num_threads=threads, against=against) as (more, _):
            raced = racing.race({**runs, **more}, rounds=ROUNDS, num_threads=threads)
    return {
        "rows": [[each.name, each.latency_us, each.ratio, each.low, each.high] for each in raced],
        "load": os.getloadavg()[0],
    }


def inductor(model: NamedModel, path: Path) -> dict[str, Any]:
    """Compile a module by torch, whose cache then has it, and return why that fails, if it does."""
    import torch  # noqa: PLC0415 - files are run without it

    import tessel  # noqa: PLC0415 - not before a check times it
    from tessel.compiling import racing  # noqa: PLC0415 - likewise

    program = tessel.load(path)
    tensors = list(map(torch.from_numpy, next(_drawn(model, program))))
    threads = program.manifest.num_threads
    with racing.torch_contenders(
        model.built()[0], tensors, {}, num_threads=threads, against=[racing.COMPILED]
    ) as (_, left_out):
        return dict(left_out)


def _of_file(model: NamedModel, onnx: Path, program: Any) -> Callable[[Arrays], Arrays]:
    """Return what runs a file by onnxruntime, with as many threads as the program."""
    import onnxruntime  # noqa: PLC0415 - not before what is timed

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = program.manifest.num_threads, 1
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(str(onnx), options, providers=["CPUExecutionProvider"])
    fixed = {name: np.array(value, np.int64) for name, value in model.values.items()}
    names = [each.name for each in session.get_inputs() if each.name not in fixed]
    if model.is_file:
        names = [spec.name for spec in program.manifest.inputs]
    run = session.run
    return lambda given: run(None, {**dict(zip(names, given, strict=True)), **fixed})


def _of_module(model: NamedModel) -> Callable[[Arrays], Arrays]:
    import torch  # noqa: PLC0415 - files are run without it

    module = model.built()[0]

    def run(given: Arrays) -> Arrays:
        with torch.inference_mode():
            return _leaves(module(*map(torch.from_numpy, given)))

    return run


def _drawn(model: NamedModel, program: Any) -> Iterator[Arrays]:
    """Yield inputs: normal numbers, and whole ones below 256, which every vocabulary here has."""
    rng = np.random.default_rng(0)
    for _ in range(NUM_INPUTS):
        yield [
            rng.standard_normal(spec.shape).astype(spec.dtype)
            if "float" in spec.dtype
            else rng.integers(0, 2 if spec.dtype == "bool" else 256, spec.shape).astype(spec.dtype)
            for spec in program.manifest.inputs
        ]


def _leaves(results: Any) -> Arrays:
    if isinstance(results, np.ndarray) or not hasattr(results, "__iter__"):
        return [np.asarray(results)]
    if type(results).__module__.partition(".")[0] == "torch":
        return [results.numpy()]
    items = results.values() if hasattr(results, "values") else results
    return [array for item in items for array in _leaves(item)]


def _error(found: np.ndarray, expected: np.ndarray) -> float:
    """Return the largest error relative to the largest number; infinite where either has NaN alone."""
    if not np.array_equal(np.isnan(found), np.isnan(expected)):
        return float("inf")
    scale = max(float(np.nanmax(np.abs(expected), initial=0.0)), 1e-30)
    differences = np.abs(found.astype(np.float64) - expected.astype(np.float64))
    return float(np.nanmax(differences, initial=0.0)) / scale


class _Returned:
    """Stands for the machines of a program: returns what they returned once."""

    def __init__(self, result: object, *, takes_arrays: bool) -> None:
        self._result, self.takes_arrays = result, takes_arrays

    def run(self, inputs: object) -> object:
        return self._result

    def quick(self, specs: Sequence[tuple[tuple[int, ...], Any]]) -> Callable[[Arrays], object]:
        """Return what looks at arrays and feeds them as onnxruntime's run of a whole file does."""
        from tuner.runtime.onnxruntime_calls import GraphRun  # noqa: PLC0415 - as the rest of a machine

        result = self._result if isinstance(self._result, list) else [self._result]
        real = GraphRun.__new__(GraphRun)
        real._run, real._outputs = lambda outputs, given, options: result, []
        real._inputs = tuple(map(str, range(len(specs))))
        return real.quick(specs)


def _without_machine(program: Any, given: Arrays) -> Any:
    """Return a program that does all but compute."""
    from tessel import Program  # noqa: PLC0415 - as the rest of what the fresh process needs

    machines = program.compiled.machines
    returned = _Returned(machines.run(program.prepared(given)), takes_arrays=machines.takes_arrays)
    return Program(replace(program.compiled, machines=returned), write_library=bytes)


def _processor_us(run: Callable[[], object]) -> float:
    """Return the processor time of a call in this thread, the median of samples."""
    samples = []
    for _ in range(15):
        began_s = time.thread_time()
        for _ in range(20):
            run()
        samples.append((time.thread_time() - began_s) / 20 * 1e6)
    return statistics.median(samples)


def main() -> None:
    """Print what is found, as JSON in the last line."""
    stage, name, path, onnx = sys.argv[1:]
    sys.meta_path.insert(0, _NoTuner())
    model, files = NamedModel.of(name), (Path(path), Path(onnx))
    match stage:
        case "check":
            found = check(model, *files)
        case "inductor":
            found = inductor(model, files[0])
        case _:
            found = race(model, *files, with_compiled=stage != "race")
    print(json.dumps(found))


if __name__ == "__main__":
    main()
