"""Measure a table of layer timings inside a torch job; this file needs torch alone and can be copied there.

    rows = measure_layers({"embed": model.embed, "block0": model.blocks[0], …, "head": model.head}, step)
    write_table(rows, "profile.csv", model="my model")

Hooks keep what each layer is given in one run of `step`; then every layer runs alone, forward and backward,
and is timed by CUDA events, or by a clock on the CPU. Layers take turns in every round, so that a machine
that is busy for a while is so for all of them. Saved bytes are those of the distinct storages that autograd
packs, parameters left out. The input half of a backward is measured as the gradient of the layer's inputs
alone; the weight half is what the joint backward of the same round takes beyond that. Layers that are alike
and differ by more than their rounds do are warned about: the machine was busy, or one does other work. What
is left out: work between the layers, such as a loss that is in none of them (`coverage` says how much), and
overlap of one layer with the next. In a distributed job, call it on every rank alike: collectives of tensor
parallelism are then included.
Checked in tests/tessel/profiles/test_torch_hooks.py.
"""

from __future__ import annotations

import csv
import io
import os
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

MIB = 2**20

WARM_UPS = 2
"""Rounds that are not timed."""

COLUMNS = (
    "layer",
    "forward_ms",
    "backward_ms",
    "backward_input_ms",
    "backward_weight_ms",
    "weights_mib",
    "saved_mib",
    "peak_mib",
    "boundary_mib",
    "tie",
    "micro_batch",
    "tensor_parallel",
    "spread",
)
"""Columns of the table, as docs/profiles.md describes them."""

Row = dict[str, str | float | int]


@dataclass(frozen=True, slots=True)
class _Call:
    """What a layer was given: its arguments, and how automatic mixed precision was set."""

    arguments: tuple[Any, ...]
    keywords: dict[str, Any]
    autocast: torch.dtype | None


def measure_layers(
    layers: Mapping[str, nn.Module],
    step: Callable[[], object],
    *,
    repeats: int = 10,
    micro_batch: int = 1,
    tensor_parallel: int = 1,
) -> list[Row]:
    """Return the rows of the table, one a layer.

    Args:
        layers: by name, in the order in which the model runs them; together they are the model.
        step: runs one micro-batch through the model, such as `lambda: model(tokens)`; a backward may follow.
        repeats: timed runs of each layer, of which the median counts; two more warm up.
        micro_batch: samples that `step` runs.
        tensor_parallel: devices over which each layer is split.

    Warns:
        UserWarning: layers that are alike took times that differ beyond their spread.

    Raises:
        ValueError: a layer is not run by `step`, or its result has no gradient.
    """
    if repeats < 1:
        raise ValueError(f"repeats is {repeats}; time each layer at least once")
    calls = _calls(layers, step)
    ties = _ties(layers)
    runs = {name: _Run(name, layer, calls[name]) for name, layer in layers.items()}
    times = _timed(runs, repeats)
    for warning in _unlike(runs, times):
        warnings.warn(warning, stacklevel=2)
    rows = []
    for name, run in runs.items():
        row: Row = {"layer": name}
        row |= _figures(run, times[name])
        row |= {"tie": ties.get(name, ""), "micro_batch": micro_batch, "tensor_parallel": tensor_parallel}
        rows.append(row)
    return rows


def write_table(rows: Sequence[Row], path: str | Path, *, model: str = "", device: str = "") -> None:
    """Write the rows as a CSV file that `tessel plan` reads; the file appears whole or not at all.

    Args:
        rows: of `measure_layers`; those of several micro-batch sizes or degrees one after another.
        model: name of the model, for titles.
        device: kind of device measured on; found if empty.
    """
    text = io.StringIO()
    for key, value in (("model", model), ("device", device or _device_name())):
        if value:  # a line end in it would begin a row
            text.write(f"# {key}: {' '.join(value.split())}\n")
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    _write_whole(Path(path), text.getvalue().encode())


def _write_whole(path: Path, content: bytes) -> None:
    """Write as `records.output` does, which a copy of this file lacks."""
    if path.exists() and not path.is_file():  # a FIFO or a device
        path.write_bytes(content)
        return
    target = Path(os.path.realpath(path))
    descriptor, name = tempfile.mkstemp(dir=target.parent, prefix=".tessel-", suffix=".part")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
        Path(name).chmod(0o644)
        Path(name).replace(target)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def coverage(rows: Sequence[Row], step: Callable[[], Tensor], *, repeats: int = 10) -> float:
    """Return the time of all layers over that of a whole forward and backward.

    Args:
        rows: of `measure_layers`.
        step: runs forward and loss of one micro-batch and returns the loss, whose backward is run too.
        repeats: timed runs, of which the median counts.
    """
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    whole_ms = _median_ms(lambda: torch.autograd.backward(step()), device, repeats)
    return sum(float(row["forward_ms"]) + float(row["backward_ms"]) for row in rows) / whole_ms


def _calls(layers: Mapping[str, nn.Module], step: Callable[[], object]) -> dict[str, _Call]:
    """Return what each layer is given in one run, the first time that it is called.

    Raises:
        ValueError: a layer is not called.
    """
    calls: dict[str, _Call] = {}

    def keep(name: str) -> Callable[[nn.Module, tuple[Any, ...], dict[str, Any]], None]:
        def hook(module: nn.Module, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> None:
            kept_arguments, kept_keywords = _detached(arguments), _detached(keywords)
            calls.setdefault(name, _Call(kept_arguments, kept_keywords, _autocast_type()))

        return hook

    hooks = [layer.register_forward_pre_hook(keep(name), with_kwargs=True) for name, layer in layers.items()]
    try:
        step()
    finally:
        for hook in hooks:
            hook.remove()
    missing = next((name for name in layers if name not in calls), None)
    if missing is not None:
        raise ValueError(f"the layer {missing!r} is not run by the step; name modules that the model calls")
    return calls


def _autocast_type() -> torch.dtype | None:
    kind = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None


def _ties(layers: Mapping[str, nn.Module]) -> dict[str, str]:
    """Return the name of the largest weight that a layer shares with others, by layer."""
    holders: dict[int, list[tuple[str, str, int]]] = {}
    for name, layer in layers.items():
        for parameter_name, parameter in layer.named_parameters():
            holders.setdefault(id(parameter), []).append((name, parameter_name, _num_bytes(parameter)))
    ties: dict[str, tuple[int, str]] = {}
    for places in holders.values():
        if len({name for name, _, _ in places}) < 2:
            continue
        owner, parameter_name, size = places[0]
        for name, _, _ in places:
            ties[name] = max(ties.get(name, (0, "")), (size, f"{owner}.{parameter_name}"))
    return {name: tie for name, (_, tie) in ties.items()}


@dataclass(slots=True)
class _Times:
    """Milliseconds of a layer, one a round; `backward` and `backward_input` of a round belong together."""

    forward: list[float]
    backward: list[float]
    backward_input: list[float]

    @property
    def backward_weight(self) -> list[float]:
        """What each joint backward took beyond its input half."""
        return [joint - half for joint, half in zip(self.backward, self.backward_input, strict=True)]


def _timed(runs: Mapping[str, _Run], repeats: int) -> dict[str, _Times]:
    """Return the times of each layer, the layers taking turns in each round."""
    times = {name: _Times([], [], []) for name in runs}
    for number in range(repeats + WARM_UPS):
        for name, run in runs.items():
            found = run.round_ms()
            if number >= WARM_UPS:
                for kept, taken in zip(
                    (times[name].forward, times[name].backward, times[name].backward_input),
                    found,
                    strict=True,
                ):
                    kept.append(taken)
    return times


def _unlike(runs: Mapping[str, _Run], times: Mapping[str, _Times]) -> Iterator[str]:
    """Yield a sentence for each set of layers that are alike and took other times."""
    alike: dict[object, list[str]] = {}
    for name, run in runs.items():
        alike.setdefault(run.kind, []).append(name)
    for names in alike.values():
        for figure in ("forward", "backward", "backward_weight"):
            taken = {name: getattr(times[name], figure) for name in names}
            low = min(names, key=lambda name: statistics.median(taken[name]))
            high = max(names, key=lambda name: statistics.median(taken[name]))
            apart = statistics.median(taken[high]) - statistics.median(taken[low])
            # A half of weights is a difference, whose rounds differ as much as those of what it is of.
            whole = times[low].forward if figure == "forward" else times[low].backward
            noise = max(_spread(taken[low]) + _spread(taken[high]), 0.1 * statistics.median(whole))
            if apart > noise:
                yield (
                    f"layers {low!r} and {high!r} are alike, and a {figure.replace('_', ' of ')} took "
                    f"{statistics.median(taken[low]):.3g} and {statistics.median(taken[high]):.3g} ms, more "
                    "apart than their rounds; measure again on an idle machine, or find out what differs"
                )
                break


def _spread(times: Sequence[float]) -> float:
    """Return half the width of the middle half of some times."""
    if len(times) < 2:
        return 0.0
    low, _, high = statistics.quantiles(times, n=4)
    return (high - low) / 2


def _figures(run: _Run, times: _Times) -> Row:
    """Return the figures of one layer's row."""
    backward_ms = statistics.median(times.backward)
    weight_ms = max(0.0, statistics.median(times.backward_weight)) if run.parameters else 0.0
    return {
        "forward_ms": _rounded(statistics.median(times.forward)),
        "backward_ms": _rounded(backward_ms),
        "backward_input_ms": _rounded(
            statistics.median(times.backward_input) if run.parameters else backward_ms
        ),
        "backward_weight_ms": _rounded(weight_ms),
        "weights_mib": _mib(run.weight_bytes),
        "saved_mib": _mib(run.saved_bytes),
        "peak_mib": _mib(run.peak_bytes()),
        "boundary_mib": _mib(run.boundary_bytes),
        "spread": _rounded(_sigma([sum(each) for each in zip(times.forward, times.backward, strict=True)])),
    }


def _sigma(times: Sequence[float]) -> float:
    """Return sigma of a log-normal law whose middle half is as wide as that of some times."""
    return min(2.0, _spread(times) / 0.6745 / max(statistics.median(times), 1e-9))


class _Run:
    """Runs one layer alone, on what it was given.

    Raises:
        ValueError: its result has no gradient.
    """

    def __init__(self, name: str, layer: nn.Module, call: _Call) -> None:
        self._layer = layer
        self._call = call
        self._device = next(
            (each.device for each in _tensors((call, *layer.parameters()))), torch.device("cpu")
        )
        self.inputs = tuple(each for each in _tensors(call) if each.requires_grad)
        self.parameters = [each for each in layer.parameters() if each.requires_grad]
        self.weight_bytes = sum(_num_bytes(each) for each in set(layer.parameters()))
        saved = _SavedBytes({each.untyped_storage().data_ptr() for each in layer.parameters()})
        with saved.counted():
            outputs = self.forward()
        if not any(each.requires_grad for each in outputs):
            raise ValueError(f"the result of the layer {name!r} has no gradient; train it, or leave it out")
        self.saved_bytes = saved.total
        self.boundary_bytes = sum(_num_bytes(each) for each in outputs)

    @property
    def kind(self) -> object:
        """What layers that are alike have in common: class, saved bytes, and shapes of weights and inputs."""
        shapes = [(tuple(each.shape), each.dtype) for each in self._layer.parameters()]
        given = [(tuple(each.shape), each.dtype, each.requires_grad) for each in _tensors(self._call)]
        return type(self._layer), self.saved_bytes, tuple(shapes), tuple(given)

    def forward(self) -> tuple[Tensor, ...]:
        """Return the tensors of the result."""
        with torch.autocast(
            self._device.type, dtype=self._call.autocast, enabled=self._call.autocast is not None
        ):
            result = self._layer(*self._call.arguments, **self._call.keywords)
        return tuple(_tensors(result))

    def backward(self, outputs: Sequence[Tensor], wanted: Sequence[Tensor]) -> None:
        """Compute the gradients of `wanted`, without leaving them anywhere."""
        with_gradient = [each for each in outputs if each.requires_grad]
        ones = [torch.ones_like(each) for each in with_gradient]
        torch.autograd.grad(with_gradient, tuple(wanted), ones, allow_unused=True)

    def round_ms(self) -> tuple[float, float, float]:
        """Return milliseconds of a forward, of the joint backward, and of that to the inputs; 0 of none."""
        kept: list[tuple[Tensor, ...]] = []
        forward_ms = _time_ms(lambda: kept.append(self.forward()), self._device)
        joint_ms = self._backward_ms(kept.pop(), (*self.inputs, *self.parameters))
        if not self.inputs or not self.parameters:
            return forward_ms, joint_ms, joint_ms if self.inputs else 0.0
        return forward_ms, joint_ms, self._backward_ms(self.forward(), self.inputs)

    def _backward_ms(self, outputs: Sequence[Tensor], wanted: Sequence[Tensor]) -> float:
        return _time_ms(lambda: self.backward(outputs, wanted), self._device) if wanted else 0.0

    def peak_bytes(self) -> int:
        """Return bytes held only while it runs, beyond saved activations and gradients; 0 where unknown."""
        if self._device.type != "cuda":
            return 0
        torch.cuda.synchronize(self._device)
        before = torch.cuda.memory_allocated(self._device)
        torch.cuda.reset_peak_memory_stats(self._device)
        self.backward(self.forward(), (*self.inputs, *self.parameters))
        held = torch.cuda.max_memory_allocated(self._device) - before
        return max(0, held - self.saved_bytes - sum(_num_bytes(each) for each in self.parameters))


class _SavedBytes:
    """Counts the bytes that autograd keeps, each storage once."""

    def __init__(self, left_out: set[int]) -> None:
        self._left_out = left_out
        self._bytes_by_storage: dict[int, int] = {}
        self._kept: list[Tensor] = []

    @property
    def total(self) -> int:
        """Bytes of the distinct storages."""
        return sum(self._bytes_by_storage.values())

    @contextmanager
    def counted(self) -> Iterator[None]:
        """Count what a forward in the body saves."""
        with torch.autograd.graph.saved_tensors_hooks(self._pack, lambda packed: packed):
            yield
        self._kept.clear()

    def _pack(self, tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in self._left_out:
            self._bytes_by_storage[storage.data_ptr()] = storage.nbytes()
            self._kept.append(tensor)  # so that no other storage gets its address
        return tensor


def _median_ms(run: Callable[[], object], device: torch.device, repeats: int) -> float:
    times = [_time_ms(run, device) for _ in range(repeats + WARM_UPS)]
    return statistics.median(times[WARM_UPS:])


def _time_ms(run: Callable[[], object], device: torch.device) -> float:
    """Return milliseconds of one run: by events on a GPU, by a clock on a CPU."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]  # torch's own
        begin.record()
        run()
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end))
    began = time.perf_counter()
    run()
    return (time.perf_counter() - began) * 1e3


def _tensors(value: object) -> Iterator[Tensor]:
    """Yield the tensors in arguments, results and containers."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, _Call):
        yield from _tensors((value.arguments, value.keywords))
    elif isinstance(value, Mapping):
        for each in value.values():
            yield from _tensors(each)
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _tensors(each)


def _detached(value: Any) -> Any:
    """Return arguments with every tensor cut off from the graph before it, and copied."""
    if isinstance(value, Tensor):
        return value.detach().clone().requires_grad_(value.requires_grad)
    if isinstance(value, dict):
        return {key: _detached(each) for key, each in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_detached(each) for each in value)
    return value


def _num_bytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _mib(num_bytes: int) -> float:
    return num_bytes / MIB


def _rounded(milliseconds: float) -> float:
    return float(f"{milliseconds:.4g}")


def _device_name() -> str:
    return torch.cuda.get_device_name() if torch.cuda.is_available() else ""
