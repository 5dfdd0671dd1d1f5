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
import random
import signal
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, TypeAlias

import numpy as np
import torch
import torch._inductor.config
import tvm
from tvm import relax

from benchmarks import network_models
from benchmarks.processor_peak import peak_gflops
from records.workload import Operator, Workload
from tuner.frontend import Model
from tuner.frontend.torch.program import import_module
from tuner.lowering.lower import build_module, lower_module
from tuner.lowering.weight_binding import bound_arguments
from tuner.measuring.race import paired_ratio
from tuner.tuning.partition_model import PartitionedModel, partition_model
from tuner.tuning.partitioned_function import PartitionedFunction, choose_partition
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
OTHERS = ("torch eager", "torch.compile", "torch.compile frozen", "onnxruntime alone")
LONGEST = "onnxruntime"
"""The library that takes whole networks; what the other backends make without it is measured too."""

WITHOUT = f"mix without {LONGEST}"
_REMEDIES = {
    "torch.compile": "install a C++ compiler that torch finds, such as g++",
    "torch.compile frozen": "install a C++ compiler that torch finds, such as g++",
    "onnxruntime alone": "install what benchmarks need by pip install 'tessel-tuner[bench]' or make bench",
}
"""What to do where a contender cannot run."""

OWN_KERNELS = ("attention", "nhwc", "packed_matmul")
"""Backends whose kernels are written in this project; the others' come from libraries and from TVM."""

TOLERANCE = 1e-4
"""Largest error over largest output: float32 sums in another order, through some hundred layers."""

_PRODUCTS = frozenset({"matmul", "nn.conv2d", "nn.attention"})
_WINOGRAD_SAVES = 4
"""How many times fewer multiplications a 3 x 3 convolution with stride 1 takes in tiles of 4 x 4."""

Run: TypeAlias = Callable[[], np.ndarray]


def measure_network(name: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """Partition a network, run all contenders in turn, and return the figures."""
    module, inputs = getattr(network_models, name)()
    rivals = _others(module, inputs, name, arguments)  # first, so that one that cannot run costs no minutes
    model = import_module(module, inputs, name)
    backends = arguments.backends.split(",") if arguments.backends else None
    started = time.perf_counter()
    session, result = _partitioned(model, backends, arguments)
    partition_s = time.perf_counter() - started
    functions = {"mix": result.function, **result.alone}
    others = [backend.reference for backend in session.backends if backend.name != LONGEST]
    if len(others) < len(session.backends):
        # Who takes the whole network at once decides the mix; what do the others make together?
        functions[WITHOUT] = _partitioned(model, others, arguments)[1].function
    tensors = _arguments(model, inputs)
    compiled: dict[str, Run] = {}
    contenders: dict[str, Run] = {}
    for label, function in functions.items():
        if function.fingerprint not in compiled:
            contenders[label] = compiled[function.fingerprint] = _compiled(function, session, tensors)
    contenders |= rivals
    expected = _eager(module, inputs)()
    errors = {label: _error(run(), expected) for label, run in contenders.items()}
    wrong = [label for label, error in errors.items() if not error <= TOLERANCE]
    if wrong:
        sys.exit(f"{name}: {wrong[0]} differs from torch by {errors[wrong[0]]:.1e} of the largest output")
    before = peak_gflops()
    samples = _in_turn(contenders, repeats=arguments.repeats, seconds=arguments.seconds)
    peak = max(before, peak_gflops())
    return _figures(name, model, result, functions, errors, samples, partition_s, peak)


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


def _arguments(model: Model, inputs: Sequence[torch.Tensor]) -> list[Any]:
    """Return a program's arguments; weights are shared with the torch module where they lie well."""
    weights = [torch.from_numpy(model.parameters[name]).contiguous() for name in model.parameter_names]
    return [tvm.runtime.from_dlpack(tensor) for tensor in (*inputs, *weights)]


def _compiled(function: PartitionedFunction, session: Session, tensors: Sequence[Any]) -> Run:
    lowered = lower_module(function.module, session.backends, session.target)
    machine = relax.VirtualMachine(build_module(lowered, session.target), tvm.cpu())
    main, arguments = machine["main"], bound_arguments(machine, tensors)
    return lambda: _first_array(main(*arguments))


def _first_array(result: Any) -> np.ndarray:
    """Return a program's first result where it lies, as torch's `numpy()` does: a copy would take 0.2 ms."""
    while not hasattr(result, "__dlpack__"):
        result = result[0]
    return np.from_dlpack(result)


def _others(
    module: torch.nn.Module, inputs: Sequence[torch.Tensor], name: str, arguments: argparse.Namespace
) -> dict[str, Run]:
    """Return what the mix is compared with; the program ends with a remedy where one of it cannot run."""
    found: dict[str, Run] = {"torch eager": _eager(module, inputs)}
    makers: dict[str, Callable[[], Run]] = {
        "torch.compile": lambda: _inductor(module, inputs, freezing=False),
        "torch.compile frozen": lambda: _inductor(module, inputs, freezing=True),
        "onnxruntime alone": lambda: _onnxruntime(module, inputs, Path(arguments.out).with_name(name)),
    }
    for label, make in makers.items():
        if label in arguments.without:
            continue
        try:
            found[label] = make()
        except Exception as error:  # a missing compiler, package or operator: a dash would hide it
            reason = next(iter(str(error).splitlines()), type(error).__name__)
            sys.exit(
                f"{name}: {label} cannot run here ({reason}); {_REMEDIES[label]}, or leave it out by "
                f"--without {label!r}"
            )
    return found


def _eager(module: torch.nn.Module, inputs: Sequence[torch.Tensor]) -> Run:
    def run() -> np.ndarray:
        with torch.inference_mode():
            return module(*inputs).numpy()

    return run


class _Plain(torch.nn.Module):
    def __init__(self, module: torch.nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        return self.module(*inputs)


class _Frozen(_Plain):
    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        return self.module(*inputs)


def _inductor(module: torch.nn.Module, inputs: Sequence[torch.Tensor], *, freezing: bool) -> Run:
    # torch keeps compiled code by the Python function it came from, so each way has a function of its own.
    compiled = torch.compile((_Frozen if freezing else _Plain)(module).eval())

    def run() -> np.ndarray:
        with torch.no_grad():
            return compiled(*inputs).numpy()

    with torch._inductor.config.patch(freezing=freezing):
        run()  # which compiles
    return run


def _onnxruntime(module: torch.nn.Module, inputs: Sequence[torch.Tensor], folder: Path) -> Run:
    import onnxruntime  # noqa: PLC0415 - it need not be here

    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "model.onnx"
    torch.onnx.export(module, tuple(inputs), path, dynamo=True, external_data=True, verbose=False)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    for file in folder.iterdir():
        file.unlink()
    folder.rmdir()
    feed = {spec.name: each.numpy() for spec, each in zip(session.get_inputs(), inputs, strict=True)}
    return lambda: session.run(None, feed)[0]


def _in_turn(contenders: dict[str, Run], *, repeats: int, seconds: float) -> dict[str, list[float]]:
    """Return milliseconds of each contender, one execution of each in every round.

    Every round has an order of its own: who runs after whom decides what is in the caches. One thread does
    all the work, so the processor's time is counted: what passes while another program has the processor is
    nobody's.
    """
    samples: dict[str, list[float]] = {label: [] for label in contenders}
    order = list(contenders.items())
    rng = random.Random(0)
    started = time.perf_counter()
    rounds = 0
    while rounds < repeats or (time.perf_counter() - started < seconds and rounds < 50 * repeats):
        rounds += 1
        rng.shuffle(order)
        for label, run in order:
            before = time.process_time()
            run()
            samples[label].append((time.process_time() - before) * 1e3)
    return samples


def _products_gflop(workload: Workload) -> float:
    """Return the 10⁹ operations of products and convolutions, as few as any backend here needs for them."""
    return sum(_least_flops(workload, each) for each in workload.operators if each.name in _PRODUCTS) / 1e9


def _least_flops(workload: Workload, operator: Operator) -> float:
    attributes = dict(operator.attributes)
    is_winograd = (
        operator.name == "nn.conv2d"
        and workload.values[operator.inputs[1]].shape[2:] == (3, 3)
        and attributes["strides"] == "[1, 1]"
        and attributes["groups"] == "1"
    )
    return operator.flops / _WINOGRAD_SAVES if is_winograd else operator.flops


def _sums(result: PartitionedModel) -> dict[str, float]:
    """Return what the search adds up for its cheapest cover, and for the cheapest of each backend alone."""
    priced = result.function.priced
    covers = {"mix": choose_partition(priced)}
    covers |= {backend: choose_partition(priced, only=backend) for backend in result.alone}
    return {label: cover.partition.cost_us / 1e3 for label, cover in covers.items()}


def _error(found: np.ndarray, expected: np.ndarray) -> float:
    return float(np.abs(found - expected).max() / np.abs(expected).max())


def _figures(
    name: str,
    model: Model,
    result: PartitionedModel,
    functions: dict[str, PartitionedFunction],
    errors: dict[str, float],
    samples: dict[str, list[float]],
    partition_s: float,
    peak: float,
) -> dict[str, Any]:
    latency_ms = {label: statistics.median(values) for label, values in samples.items()}
    measured = {functions[label].fingerprint: latency_ms[label] for label in functions if label in samples}
    # Equal programs ran once.
    latency_ms |= {label: measured[function.fingerprint] for label, function in functions.items()}
    return {
        "network": name,
        "operators": len(result.function.priced.graph),
        "products_gflop": _products_gflop(result.function.priced.workload),
        "peak_gflops": peak,
        "parameters": sum(int(np.prod(array.shape)) for array in model.parameters.values()),
        "latency_ms": latency_ms,
        "quartiles_ms": {label: statistics.quantiles(values, n=4)[::2] for label, values in samples.items()},
        "rounds": len(samples["mix"]),
        "ratio_to_mix": {label: _ratio_to_mix(samples, label) for label in samples},
        "tie": result.is_tie,
        "errors": errors,
        "tolerance": TOLERANCE,
        "chosen_by": result.chosen_by,
        "sums_ms": _sums(result),
        "parts": {
            label: Counter(part.backend for part in function.partition.chosen)
            for label, function in functions.items()
        },
        "sum_of_parts_ms": result.sum_of_parts.latency_us / 1e3,
        "candidates": sum(result.num_candidates_by_rule.values()),
        "states": result.num_states,
        "new_measurements": result.new_measurements,
        "partition_s": partition_s,
    }


def _ratio_to_mix(samples: dict[str, list[float]], label: str) -> tuple[float, float, float | None]:
    """Return a contender's latency over the mix's, paired by rounds, with its 95 % interval."""
    found = paired_ratio(samples["mix"], samples[label], error=0.05)
    return found.ratio, found.low, found.high


def report(networks: Sequence[dict[str, Any]]) -> str:
    """Return the tables as Markdown."""
    labels = {label for each in networks for label in each["latency_ms"]}
    singles = sorted(labels - {"mix", WITHOUT, *OTHERS})
    lines = ["Latency in milliseconds, medians of executions in turn.", ""]
    lines += _latencies(networks, [*(["mix", WITHOUT] if WITHOUT in labels else ["mix"]), *singles, *OTHERS])
    lines += [
        "",
        "Latency over the mix's: above 1 the mix is faster. In brackets, where another program than the mix "
        "is the best single backend, the 95 % interval of the median ratio within a round.",
        "",
    ]
    lines += _ratios(networks, "mix", singles)
    if WITHOUT in labels:
        lines += ["", f"The same without {LONGEST} among the backends.", ""]
        lines += _ratios(networks, WITHOUT, [label for label in singles if label != LONGEST])
    lines += [
        "",
        "What is left to win: the same products at the peak of this machine's core, and nothing besides.",
        "",
    ]
    lines += _room(networks, singles)
    return "\n".join(lines)


def _latencies(networks: Sequence[dict[str, Any]], columns: Sequence[str]) -> list[str]:
    lines = [
        f"| network | {' | '.join(columns)} | error of the mix |",
        f"|---|{'--:|' * (len(columns) + 1)}",
    ]
    for each in networks:
        latency_ms = each["latency_ms"]
        cells = [f"{latency_ms[label]:.2f}" if label in latency_ms else "–" for label in columns]
        lines.append(f"| {each['network']} | {' | '.join(cells)} | {each['errors']['mix']:.1e} |")
    return lines


def _ratios(networks: Sequence[dict[str, Any]], mix: str, singles: Sequence[str]) -> list[str]:
    lines = [
        f"| network | best single backend | best one without own kernels | {' | '.join(OTHERS)} | parts |",
        f"|---|--:|--:|{'--:|' * len(OTHERS)}---|",
    ]
    ratios: dict[str, list[float]] = {label: [] for label in ("best", "without own", *OTHERS)}
    for each in networks:
        latency_ms = each["latency_ms"]
        if mix not in latency_ms:
            continue
        best = _best(latency_ms, singles)
        without_own = _best(latency_ms, [label for label in singles if label not in OWN_KERNELS])
        found = {"best": latency_ms[best], "without own": latency_ms[without_own]}
        found |= {label: latency_ms[label] for label in OTHERS if label in latency_ms}
        found = {label: latency / latency_ms[mix] for label, latency in found.items()}
        for label, ratio in found.items():
            ratios[label].append(ratio)
        intervals = each.get("ratio_to_mix", {}) if mix == "mix" else {}
        cells = [f"{found[label]:.2f}" if label in found else "–" for label in OTHERS]
        parts = ", ".join(f"{backend} {count}" for backend, count in sorted(each["parts"][mix].items()))
        lines.append(
            f"| {each['network']} | {found['best']:.2f}{_interval(intervals.get(best))} ({best}) "
            f"| {found['without own']:.2f} ({without_own}) | {' | '.join(cells)} | {parts} |"
        )
    means = [f"{statistics.geometric_mean(values):.2f}" if values else "–" for values in ratios.values()]
    lines.append(f"| **geometric mean** | **{means[0]}** | {' | '.join(means[1:])} | |")
    return lines


def _interval(ratio: Sequence[float | None] | None) -> str:
    """Return a paired ratio's interval in brackets; nothing for a program that is the mix itself."""
    return "" if ratio is None else " [{:.2f}, {:.2f}]".format(*(end or float("inf") for end in ratio[1:]))


def _best(latency_ms: dict[str, float], labels: Sequence[str]) -> str:
    return min((label for label in labels if label in latency_ms), key=lambda label: latency_ms[label])


def _room(networks: Sequence[dict[str, Any]], singles: Sequence[str]) -> list[str]:
    """Return how far the best single backend is from products at the machine's peak, network by network."""
    lines = [
        "| network | products, GFLOP | peak, GFLOP/s | at the peak, ms | mix, ms | best single over the peak "
        "| best single over the mix, by sums of parts |",
        "|---|--:|--:|--:|--:|--:|--:|",
    ]
    rooms, gains = [], []
    for each in networks:
        latency_ms = each["latency_ms"]
        least_ms = each["products_gflop"] / each["peak_gflops"] * 1e3
        rooms.append(latency_ms[_best(latency_ms, singles)] / least_ms)
        sums_ms = each["sums_ms"]
        gains.append(sums_ms[_best(sums_ms, singles)] / sums_ms["mix"])
        lines.append(
            f"| {each['network']} | {each['products_gflop']:.2f} | {each['peak_gflops']:.0f} "
            f"| {least_ms:.2f} | {latency_ms['mix']:.2f} | {rooms[-1]:.2f} | {gains[-1]:.2f} |"
        )
    means = [statistics.geometric_mean(ratios) for ratios in (rooms, gains)]
    lines.append(f"| **geometric mean** | | | | | **{means[0]:.2f}** | **{means[1]:.2f}** |")
    return lines


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
        "--without", action="append", default=[], choices=tuple(_REMEDIES), help="leave a contender out"
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
