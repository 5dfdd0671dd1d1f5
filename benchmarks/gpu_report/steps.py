"""The steps of the report: each measures one thing on a device and returns plain data.

Steps that need the tuner run it as a user would; where it cannot (a type that no backend takes, a TVM that
does not reach the GPU), the step says why beside what torch measured.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import torch
import torch.utils.dlpack
from torch.distributed.pipelining._backward import stage_backward_input, stage_backward_weight
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.gpu_report.calibration import calibrate
from benchmarks.gpu_report.device import Device, Run
from benchmarks.gpu_report.networks import NETWORKS, SIZES, TYPES, Sizes, training_block
from benchmarks.gpu_report.runner import num_jobs
from benchmarks.gpu_report.timing import Prepared, time_in_turn
from cost_model.gpu.typed.kernels import Product
from tessel.compiling.whole_runs import program_of
from tuner.errors import TunerError
from tuner.frontend.torch.program import import_module
from tuner.tuning.compile_mix import ProgramFacts, compile_mix
from tuner.tuning.partition_model import partition_model
from tuner.tuning.session import SessionSettings, start_session

MIB = 2**20
PROFILE = "profile.csv"
PLAN_MEMORY_SHARE = 0.9


@dataclass(frozen=True, kw_only=True)
class Context:
    """What every step is given.

    Attributes:
        device: what is measured.
        sizes_name: a key of `SIZES`.
        folder: where earlier steps left their results, records and profile.
    """

    device: Device
    sizes_name: str
    folder: Path

    @property
    def sizes(self) -> Sizes:
        """How large everything is."""
        return SIZES[self.sizes_name]

    @property
    def records(self) -> str:
        """URL of the records that all steps share."""
        return f"sqlite:///{self.folder / 'records.db'}"

    def result(self, step: str) -> dict[str, Any]:
        """Return what an earlier step left; nothing where it failed or did not run."""
        path = self.folder / "steps" / f"{step}.json"
        return json.loads(path.read_text()).get("result", {}) if path.exists() else {}

    def time(self, programs: Mapping[str, Run | Prepared]) -> dict[str, Any]:
        """Time programs in turn."""
        return time_in_turn(self.device, programs, rounds=self.sizes.rounds, seconds=self.sizes.seconds)


Step: TypeAlias = Callable[[Context], dict[str, Any]]


def ceilings(context: Context) -> dict[str, Any]:
    """Measure what the device reaches at best: a large product in either type, and a large copy."""
    extent, name = context.sizes.product, context.device.name
    torch.backends.cuda.matmul.allow_tf32 = False
    programs: dict[str, Run] = {}
    for label, dtype in TYPES.items():
        left, right = (torch.randn(extent, extent, device=name).to(dtype) for _ in range(2))
        programs[label] = partial(torch.matmul, left, right)
    source = torch.randn(context.sizes.copy_bytes // 4, device=name)
    target = torch.empty_like(source)
    programs["copy"] = lambda: target.copy_(source)
    timed = context.time(programs)
    median = {label: each["median"] for label, each in timed["latency_us"].items()}
    return timed | {
        "tflops": {label: 2 * extent**3 / median[label] / 1e6 for label in TYPES},
        "copy_gb_s": 2 * context.sizes.copy_bytes / median["copy"] / 1e3,
    }


def launches(context: Context) -> dict[str, Any]:
    """Measure what one more kernel costs: a chain of small ones, launched one by one and as one graph."""
    length = context.sizes.chain
    value = torch.randn(256, device=context.device.name)

    def chain() -> None:
        for _ in range(length):
            value.mul_(0.999)

    timed = context.time({"one by one": chain, "as one graph": context.device.capture(chain)})
    return timed | {
        "per_kernel_us": {label: each["median"] / length for label, each in timed["latency_us"].items()}
    }


def network(context: Context, name: str, dtype: str) -> dict[str, Any]:
    """Time a network in torch eager, under torch.compile and as the tuner partitions it, in turn."""
    module, inputs = NETWORKS[context.sizes_name][name]()
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        module(*inputs)
    device = context.device.name
    module = module.to(TYPES[dtype])
    inputs = tuple(each.to(TYPES[dtype]) if each.is_floating_point() else each for each in inputs)
    model = import_module(module, inputs, f"{name}-{dtype}")
    module, moved = module.to(device), tuple(each.to(device) for each in inputs)
    programs: dict[str, Run] = {"torch eager": _inference(module, moved)}
    notes: dict[str, str] = {}
    try:
        programs["torch.compile"] = _inference(torch.compile(module), moved)
        programs["torch.compile"]()
    except Exception as error:  # foreign code: no compiler, or an operator that it lacks
        del programs["torch.compile"]
        notes["torch.compile"] = _first_line(error)
    extra: dict[str, Any] = {}
    try:
        extra = _add_tuned(context, model, moved, programs)
    except TunerError as error:
        notes["tuner"] = _first_line(error)
    expected = programs["torch eager"]()
    errors = {label: _error(run(), expected) for label, run in programs.items()}
    timed = context.time(programs)
    median_us = {label: each["median"] for label, each in timed["latency_us"].items()}
    ceilings_found = context.result("ceilings")
    flops, ceiling = counter.get_total_flops(), ceilings_found.get("tflops", {}).get(dtype)
    # What any program has to move at least: weights and inputs in, results out.
    traffic = sum(each.nbytes for each in (*module.parameters(), *module.buffers(), *moved, expected))
    copy_gb_s = ceilings_found.get("copy_gb_s")
    return timed | {
        "tflop": flops / 1e12,
        "least_bytes": traffic,
        "share_of_ceiling": {}
        if not ceiling
        else {label: flops / median / 1e6 / ceiling for label, median in median_us.items()},
        "share_of_copy": {}
        if not copy_gb_s
        else {label: traffic / median / 1e3 / copy_gb_s for label, median in median_us.items()},
        "errors": errors,
        "notes": notes,
        **extra,
    }


def training(context: Context) -> dict[str, Any]:
    """Time a block's forward, joint and split backward, measure its memory, and write a profile of blocks."""
    module, inputs = training_block(context.sizes_name)
    found: dict[str, Any] = {}
    for label, dtype in TYPES.items():
        found[label] = _training_costs(context, module.to(context.device.name, dtype), inputs, dtype)
    _write_profile(context.folder / PROFILE, found["float32"], context.sizes.num_blocks)
    return found


def hops(context: Context) -> dict[str, Any]:
    """Time what a boundary tensor takes from the device to the host's pinned memory and back."""
    _, inputs = training_block(context.sizes_name)
    there = inputs.to(context.device.name)
    pinned = torch.empty_like(inputs, pin_memory=context.device.name == "cuda")
    back = torch.empty_like(there)

    def round_trip() -> None:
        pinned.copy_(there, non_blocking=True)
        back.copy_(pinned, non_blocking=True)

    timed = context.time({"round trip": round_trip})
    num_bytes = inputs.numel() * inputs.element_size()
    if not torch.equal(back.cpu(), inputs):
        raise RuntimeError("a boundary tensor came back changed from the host; the device's copies are wrong")
    median = timed["latency_us"]["round trip"]["median"]
    return timed | {"bytes": num_bytes, "gb_s": 2 * num_bytes / median / 1e3, "one_way_us": median / 2}


def schedules(context: Context) -> dict[str, Any]:
    """Plan pipelines of the profiled blocks, and set the best order beside hand-written ones."""
    hop_us = context.result("hops").get("one_way_us", 10.0)
    profile = context.folder / PROFILE
    if not profile.exists():
        raise RuntimeError("the step `training` left no profile; run it first")
    found = {}
    for devices in context.sizes.devices:
        command = ["plan", str(profile), "--devices", str(devices), "--micro-batches", str(4 * devices)]
        work = "0.3" if context.sizes_name == "small" else "5"
        only = ["--data-parallel", "1", "--pipeline", str(devices)]
        options = ["--hop-us", f"{hop_us:.1f}", "--optimizer", "none", "--work", work, "--json", *only]
        found[str(devices)] = json.loads(_tessel(*command, *options))
    return found


def ranks(context: Context) -> dict[str, Any]:
    """Tune a small model for two stages, run them as two ranks on the one device, and check gradients."""
    out = context.folder / "two-ranks"
    target = ["--target", context.device.name, "--records", context.records, "--backends", "tvm"]
    target += ["--jobs", str(num_jobs())]
    size = "mlp:tiny" if context.sizes_name == "small" else "gpt2:tiny"
    pipeline = ["--devices", "2", "--micro-batches", "4", "--work", "1", "--hop-us", "10"]
    _tessel("tune", size, *target, *pipeline, "--train", "--out", str(out))
    return json.loads(_tessel("run", str(out / "plan.json"), "--repeats", "2", "--json"))


def calibration(context: Context) -> dict[str, Any]:
    """Measure chosen products in bfloat16, and say how far the GPU cost model is off before and after."""

    def measure_us(product: Product) -> float:
        shapes = (product.rows, product.inner), (product.inner, product.columns)
        operands = [torch.randn(*shape, device=context.device.name).bfloat16() for shape in shapes]
        timed = context.time({"product": partial(torch.matmul, *operands)})
        return float(timed["latency_us"]["product"]["median"])

    name, sizes = context.device.describe()["device"], context.sizes
    return calibrate(name, largest=sizes.product, count=sizes.swept, measure_us=measure_us)


def steps_for(sizes_name: str) -> dict[str, Step]:
    """Return the steps by name, in the order in which they run: later ones use what earlier ones left.

    Networks come last, each in both types: they take longest, 70 s for one on an H200, and what the budget
    has no time for is then one of many.
    """
    found: dict[str, Step] = {"ceilings": ceilings, "launches": launches, "training": training, "hops": hops}
    found |= {"schedules": schedules, "ranks": ranks, "calibration": calibration}
    for name in NETWORKS[sizes_name]:
        for dtype in TYPES:
            found[f"network-{name}-{dtype}"] = partial(network, name=name, dtype=dtype)
    return found


def _inference(module: Callable[..., Any], inputs: tuple[torch.Tensor, ...]) -> Run:
    def run() -> Any:
        with torch.no_grad():
            return module(*inputs)

    return run


def _add_tuned(
    context: Context, model: Any, inputs: tuple[torch.Tensor, ...], programs: dict[str, Run]
) -> dict[str, Any]:
    """Partition a model, and add what was chosen, and the best single backend, to the programs that race."""
    settings = SessionSettings(
        backend_names=("tvm", "torch"),
        jobs=num_jobs(),
        num_threads=1 if context.device.name == "cpu" else None,  # as torch has there
    )
    with start_session(context.device.name, settings, records_url=context.records) as session:
        result = partition_model(model, session)
        mix = (result.source, result.function.module, session.backends, session.target)
        program = program_of(compile_mix(*mix, facts=ProgramFacts.of(result)), result.source)
    programs["tuner: mix"] = lambda: _first_tensor(program(*inputs))
    parts: dict[str, int] = {}
    for part in result.partition:
        parts[part.backend] = parts.get(part.backend, 0) + part.occurrences
    return {
        "parts": parts,
        "chosen_by": result.chosen_by,
        "launch_penalty_us": result.launch_penalty_us,
        "single_backends_us": {name: figure.latency_us for name, figure in result.end_to_end.items()},
        "new_measurements": result.new_measurements,
    }


def _first_tensor(result: Any) -> torch.Tensor:
    while not isinstance(result, torch.Tensor):
        result = result[0]
    return result


def _error(found: torch.Tensor, expected: torch.Tensor) -> float:
    found, expected = found.double(), expected.double()
    return float((found - expected).norm() / expected.norm())


def _training_costs(
    context: Context, module: torch.nn.Module, inputs: torch.Tensor, dtype: torch.dtype
) -> dict[str, Any]:
    """Return microseconds and bytes of one block in training."""
    x = inputs.detach().to(context.device.name, dtype, copy=True).requires_grad_(True)
    weights = tuple(module.parameters())
    out = module(x)
    gradient = torch.randn_like(out)

    def backward_input(made: torch.Tensor) -> Any:
        groups = stage_backward_input([made], [gradient], [x], iter(weights))[1]
        x.grad = None  # or the next execution adds to it
        return groups

    def backward_weight(groups: Any) -> None:
        stage_backward_weight(iter(weights), groups)
        for weight in weights:
            weight.grad = None

    saved: dict[int, int] = {}

    def note(tensor: torch.Tensor) -> torch.Tensor:
        if not any(tensor is weight for weight in weights):
            saved[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        module(x)
    kept = {weight.untyped_storage().data_ptr() for weight in weights}
    # The halves as a pipeline runs them: the weights' takes up the gradients that the inputs' has kept.
    programs: dict[str, Run | Prepared] = {
        "forward": lambda: module(x),
        "backward": lambda: torch.autograd.grad(out, (x, *weights), gradient, retain_graph=True),
        "backward_input": Prepared(prepare=lambda: module(x), run=backward_input),
        "backward_weight": Prepared(prepare=lambda: backward_input(module(x)), run=backward_weight),
    }

    def step() -> None:
        torch.autograd.grad(module(x), (x, *weights), gradient)

    return context.time(programs) | {
        "weight_bytes": sum(weight.numel() * weight.element_size() for weight in weights),
        "saved_bytes": sum(size for address, size in saved.items() if address not in kept),
        "boundary_bytes": out.numel() * out.element_size(),
        "peak_bytes": context.device.peak_bytes(step),
    }


def _write_profile(path: Path, costs: Mapping[str, Any], num_blocks: int) -> None:
    median_ms = {name: each["median"] / 1e3 for name, each in costs["latency_us"].items()}
    times = [median_ms[name] for name in ("forward", "backward", "backward_input", "backward_weight")]
    sizes = [costs[name] / MIB for name in ("weight_bytes", "saved_bytes", "boundary_bytes")]
    header = (
        "layer,forward_ms,backward_ms,backward_input_ms,backward_weight_ms,weights_mib,saved_mib,boundary_mib"
    )
    row = ",".join(f"{value:.6g}" for value in (*times, *sizes))
    path.write_text("\n".join([header, *(f"block{number},{row}" for number in range(num_blocks))]) + "\n")


def _tessel(*arguments: str) -> str:
    """Return what a command of this project prints.

    Raises:
        RuntimeError: it failed; with the last line that it said.
    """
    command = [sys.executable, "-m", "scripts", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
        raise RuntimeError(f"`tessel {' '.join(arguments[:2])}` failed: {last}")
    return done.stdout


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]
