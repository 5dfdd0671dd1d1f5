"""Whole networks at inference, batch 1: the mix against every single backend, torch and onnxruntime.

Each network of `benchmarks.network_models` is partitioned through the records, so that an interrupted run
goes on where it stopped. Then all contenders run in one process, on one set of weights, in turn: one
execution of each, again and again, so that whatever else the machine does meets all of them alike. Every
contender's output is compared with torch's. Give the networks that are wanted; each run replaces their
figures in --out.

    taskset -c 1 python -m benchmarks.networks squeezenet --records sqlite:///out/networks.db
    python -m benchmarks.networks --report --out out/networks.json
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import torch
import torch._inductor.config
import tvm
from tvm import relax

from benchmarks import network_models
from benchmarks.networks.contenders import REMEDIES, Run, eager, other_contenders
from benchmarks.networks.figures import TOLERANCE, figures_of, largest_error, run_in_turn
from benchmarks.networks.report import LONGEST, WITHOUT, report
from benchmarks.processor_peak import peak_gflops
from tuner.frontend import Model
from tuner.frontend.torch.program import import_module
from tuner.lowering.lower import build_module, lower_module
from tuner.lowering.weight_binding import bound_arguments
from tuner.tuning.partition_model import PartitionedModel, partition_model
from tuner.tuning.partitioned_function import PartitionedFunction
from tuner.tuning.session import Session, SessionSettings, TuningProgress, start_session

THREADS = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "TVM_NUM_THREADS",
    "TORCHINDUCTOR_COMPILE_THREADS",
)
"""Variables that libraries read when they are loaded."""


NETWORKS = ("squeezenet", "mobilenet", "resnet50", "densenet", "gpt2", "bert", "mt5", "flava")


def measure_network(name: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """Partition a network, run all contenders in turn, and return the figures."""
    module, inputs = getattr(network_models, name)()
    rivals = other_contenders(
        module, inputs, name, arguments
    )  # first, so that one that cannot run costs no minutes
    model = import_module(module, inputs, name)
    backends = arguments.backends.split(",") if arguments.backends else None
    started = time.perf_counter()
    session, result = _partitioned(model, backends, arguments)
    partition_s = time.perf_counter() - started
    functions = {"mix": (session, result.function)}
    functions |= {name: (session, function) for name, function in result.alone.items()}
    others = [backend.reference for backend in session.backends if backend.name != LONGEST]
    if len(others) < len(session.backends):
        # Who takes the whole network at once decides the mix; what do the others make together?
        without, found = _partitioned(model, others, arguments)
        functions[WITHOUT] = without, found.function
    tensors = program_arguments(model, inputs)
    compiled: dict[tuple[str, ...], Run] = {}
    contenders: dict[str, Run] = {}
    for label, (built_by, function) in functions.items():
        key = function.fingerprint, *(backend.reference for backend in built_by.backends)
        if key not in compiled:
            contenders[label] = compiled[key] = compiled_run(function, built_by, tensors)
    contenders |= rivals
    expected = eager(module, inputs)()
    errors = {label: largest_error(run(), expected) for label, run in contenders.items()}
    wrong = [label for label, error in errors.items() if not error <= TOLERANCE]
    if wrong:
        sys.exit(f"{name}: {wrong[0]} differs from torch by {errors[wrong[0]]:.1e} of the largest output")
    before = peak_gflops()
    samples = run_in_turn(contenders, repeats=arguments.repeats, seconds=arguments.seconds)
    peak = max(before, peak_gflops())
    alone = {label: function for label, (_, function) in functions.items()}
    return figures_of(name, model, result, alone, errors, samples, partition_s, peak)


def _partitioned(
    model: Model, backends: Sequence[str] | None, arguments: argparse.Namespace
) -> tuple[Session, PartitionedModel]:
    with start_session(
        "cpu",
        SessionSettings(backend_names=backends, num_threads=1),
        records_url=arguments.records,
        on_progress=_progress(model.name),
    ) as session:
        result = partition_model(
            model, session, graph_level_search=arguments.graph_level_search, coarser=arguments.coalesce
        )
    return session, result


def _progress(name: str) -> Callable[[TuningProgress], None]:
    last = [0.0]

    def show(progress: TuningProgress) -> None:
        if time.monotonic() - last[0] > 10:
            last[0] = time.monotonic()
            share = "" if progress.total is None else f" {progress.completed}/{progress.total}"
            print(f"{name}: {progress.text}{share}", file=sys.stderr, flush=True)

    return show


def _stop(number: int, frame: FrameType | None) -> None:
    """Say on SIGTERM, which a time limit sends, that nothing went wrong, and what to do."""
    sys.exit(
        f"stopped by {signal.Signals(number).name} before the figures were complete; what was measured is in "
        "the records: run the same command again, and it goes on from there"
    )


def program_arguments(model: Model, inputs: Sequence[torch.Tensor]) -> list[Any]:
    """Return a program's arguments; weights are shared with the torch module where they lie well."""
    weights = [torch.from_numpy(model.parameters[name]).contiguous() for name in model.parameter_names]
    return [tvm.runtime.from_dlpack(tensor) for tensor in (*inputs, *weights)]


def compiled_run(function: PartitionedFunction, session: Session, tensors: Sequence[Any]) -> Run:
    lowered = lower_module(function.module, session.backends, session.target)
    machine = relax.VirtualMachine(build_module(lowered, session.target), tvm.cpu())
    main, arguments = machine["main"], bound_arguments(machine, tensors)
    return lambda: first_array(main(*arguments))


def first_array(result: Any) -> np.ndarray:
    """Return a program's first result where it lies, as torch's `numpy()` does: a copy would take 0.2 ms."""
    while not hasattr(result, "__dlpack__"):
        result = result[0]
    return np.from_dlpack(result)


def main() -> None:
    if any(os.environ.get(variable) != "1" for variable in THREADS):
        # They were loaded already: begin again with one thread everywhere.
        environment = os.environ | dict.fromkeys(THREADS, "1")
        os.execve(sys.executable, [sys.executable, "-m", "benchmarks.networks", *sys.argv[1:]], environment)
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("networks", nargs="*", metavar="NETWORK", help=", ".join(NETWORKS))
    parser.add_argument("--records", default="sqlite:///out/networks.db")
    parser.add_argument("--out", default="out/networks.json", help="figures, one entry a network")
    parser.add_argument("--backends", default=None, help="by commas; all that are here if left out")
    parser.add_argument("--coalesce", action="store_true", help="try fewer, larger parts too")
    parser.add_argument("--graph-level-search", type=int, default=0)
    parser.add_argument("--repeats", type=int, default=7, help="least executions of each contender")
    parser.add_argument("--seconds", type=float, default=20.0, help="go on for so long, with short networks")
    parser.add_argument(
        "--without", action="append", default=[], choices=tuple(REMEDIES), help="leave a contender out"
    )
    parser.add_argument("--report", action="store_true", help="print the tables of --out and measure nothing")
    parser.add_argument("--json", action="store_true", help="print figures as JSON instead of tables")
    arguments = parser.parse_args()
    unknown = sorted(set(arguments.networks) - set(NETWORKS))
    if unknown:
        parser.error(f"there is no network {unknown[0]}; choose {', '.join(NETWORKS)}")
    torch.set_num_threads(1)
    signal.signal(signal.SIGTERM, _stop)
    path = Path(arguments.out)
    path.parent.mkdir(parents=True, exist_ok=True)
    figures: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    if not arguments.report:
        for name in arguments.networks or NETWORKS:
            figures[name] = measure_network(name, arguments)
            partial = path.with_suffix(".partial")
            partial.write_text(json.dumps(figures, indent=1))
            partial.replace(path)
    shown = [figures[name] for name in arguments.networks or NETWORKS if name in figures]
    if not shown:
        parser.error(f"{path} holds none of these networks; measure them first, without --report")
    print(json.dumps(shown, indent=1) if arguments.json else report(shown))


if __name__ == "__main__":
    main()
