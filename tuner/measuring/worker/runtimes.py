"""Runtimes of a measuring worker's programs: this machine, or a device behind TVM's RPC tracker.

A program for such a device is built here, linked, sent, and loaded there; inputs are made here, and it is
timed there, by the device's own clock, so that no latency contains the network. The device is others' while
no session is open: one is opened for a request (`Acquire`), and closed with it. Results that they are
compared with are computed on this machine. Checked in tests/tuner/fleet/test_rpc_pool.py.
"""

from __future__ import annotations

import gc
import itertools
import logging
import math
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import tvm
from tvm import relax, rpc
from tvm.support import cc

from tuner.errors import TunerError
from tuner.lowering.lower import Executable, flat_arrays
from tuner.lowering.machine import load_machine
from tuner.lowering.weight_binding import BIND_NAME, bound_arguments
from tuner.runtime.cuda_graph import ALLOCATE_NAME, captured
from tuner.targets.remote import RemoteDevice
from tuner.targets.resolution import tvm_device
from tuner.targets.target import Target

logger = logging.getLogger(__name__)

_MICROSECONDS = 1e6


class LoadedProgram(Protocol):
    """A program that can be executed where it was loaded."""

    def bound(self, arguments: Sequence[Any]) -> list[Any]:
        """Return what `main` takes, given the arguments as the model has them; see `bound_arguments`."""

    def results(self, arguments: Sequence[Any], function: str = "main") -> tuple[np.ndarray, ...]:
        """Execute a function once, and return its results."""

    def mean_us(self, arguments: Sequence[Any], number: int) -> float:
        """Return the mean latency of so many executions of `main`, after one that does not count."""

    def once_us(self, arguments: Sequence[Any]) -> float:
        """Return the latency of one execution of `main`, as the caches are."""


class DeviceRuntime(Protocol):
    """A device, and how programs get there."""

    def tensor(self, array: np.ndarray) -> Any:
        """Return a copy of an array on the device."""

    def load(self, executable: Executable) -> LoadedProgram:
        """Return the program, loaded on the device."""


class LocalRuntime:
    """The device of a target that is this machine's."""

    def __init__(self, target: Target) -> None:
        self.device = tvm_device(target)

    def tensor(self, array: np.ndarray) -> Any:
        """Return a copy of an array on the device."""
        return tvm.runtime.tensor(array, self.device)

    def load(self, executable: Executable) -> LoadedProgram:
        """Return the program, loaded on the device."""
        return _ProgramHere(executable, self.device)


class _ProgramHere:
    def __init__(self, executable: Executable, device: Any) -> None:
        self._machine = load_machine(executable, device)
        self._device = device
        self._is_for_graph = False
        self._launch: Callable[[int], None] | None = None
        self._results: object = None  # a graph writes to them

    def bound(self, arguments: Sequence[Any]) -> list[Any]:
        bound = bound_arguments(self._machine, arguments)
        try:
            allocate = self._machine[ALLOCATE_NAME]
        except AttributeError:
            return bound
        storages = allocate()
        self._is_for_graph, self._launch = True, None
        return [*bound, *storages]

    def results(self, arguments: Sequence[Any], function: str = "main") -> tuple[np.ndarray, ...]:
        return flat_arrays(self._machine[function](*arguments))

    def mean_us(self, arguments: Sequence[Any], number: int) -> float:
        if (launch := self._graph(arguments)) is not None:
            launch(0)
            return self._elapsed_us(lambda: launch(0), number) / number
        timer = self._machine.time_evaluator("main", self._device, number=number, repeat=1)
        return float(timer(*arguments).results[0]) * _MICROSECONDS

    def once_us(self, arguments: Sequence[Any]) -> float:
        if (launch := self._graph(arguments)) is not None:
            return self._elapsed_us(lambda: launch(0), 1)
        return self._elapsed_us(partial(self._machine["main"], *arguments), 1)

    def _elapsed_us(self, call: Callable[[], object], number: int) -> float:
        self._device.sync()
        began_s = time.perf_counter()
        for _ in range(number):
            call()
        self._device.sync()
        return (time.perf_counter() - began_s) * _MICROSECONDS

    def _graph(self, arguments: Sequence[Any]) -> Callable[[int], None] | None:
        """Return what launches `main` as a CUDA graph; None where it is not built for that, or cannot be."""
        if not self._is_for_graph:
            return None
        if self._launch is None:
            self.results(arguments)  # loads the kernels, which a capture must not
            self._device.sync()
            torch = sys.modules.get("torch")
            by_torch = torch is not None and torch.cuda.is_initialized()
            try:
                self._launch = captured(
                    lambda: self._keep(self._machine["main"](*arguments)), by_torch=by_torch
                )
            except Exception as error:  # CUDA's, TVM's or torch's: what a program calls is not theirs alone
                logger.warning("timed kernel by kernel: it cannot be captured (%s)", str(error)[-200:])
                self._is_for_graph = False
        return self._launch

    def _keep(self, results: object) -> None:
        self._results = results


class RpcRuntime:
    """A device behind a tracker, held from `acquire` to `release`."""

    def __init__(self, remote: RemoteDevice, target: Target) -> None:
        self._remote = remote
        self._kind = target.kind
        self._numbers = itertools.count()
        self._session: Any = None
        self.device: Any = None

    def acquire(self, session_s: float) -> None:
        """Wait for a device, and hold it; its server ends the session after so many seconds."""
        self.release()
        tracker = rpc.connect_tracker(self._remote.host, self._remote.port)
        self._session = tracker.request(self._remote.key, session_timeout=session_s)
        self.device = self._session.cuda(0) if self._kind == "cuda" else self._session.cpu(0)

    def release(self) -> None:
        """Give the device back; it is free when the last tensor and program on it is forgotten."""
        self._session = self.device = None
        gc.collect()  # one that is kept by a cycle keeps the device

    def tensor(self, array: np.ndarray) -> Any:
        """Return a copy of an array on the device."""
        return tvm.runtime.tensor(array, self.device)

    def load(self, executable: Executable) -> LoadedProgram:
        """Return the program, linked here and loaded there.

        Raises:
            TunerError: no device is held, or there is no compiler to link with.
        """
        if self._session is None:
            raise TunerError("no device behind the tracker is held; it is acquired before each request")
        name = f"program{next(self._numbers)}.so"
        with tempfile.TemporaryDirectory(prefix="tessel-rpc-") as folder:
            path = Path(folder) / name
            self.link(executable, path)
            self._session.upload(str(path))
        machine = relax.VirtualMachine(self._session.load_module(name), self.device)
        return _ProgramThere(machine, self.device)

    def link(self, executable: Executable, path: Path) -> None:
        """Write the program as a library for the device.

        Raises:
            TunerError: there is no compiler to link with.
        """
        compiler = self._remote.compiler
        link = {"fcompile": cc.cross_compiler(compiler)} if compiler else {}
        try:
            executable.export_library(str(path), **link)
        except (OSError, RuntimeError) as error:
            raise TunerError(
                f"a program for {self._remote.key} could not be linked ({str(error).splitlines()[0]}); "
                "install a C++ compiler, or name one for the device by &cc=… in --target"
            ) from error


class _ProgramThere:
    """Calls what keeps its results on the device: tuples do not travel."""

    def __init__(self, machine: Any, device: Any) -> None:
        self._machine = machine
        self._device = device

    def bound(self, arguments: Sequence[Any]) -> list[Any]:
        try:
            self._machine[BIND_NAME]
        except AttributeError:
            return list(arguments)
        return list(_flat(self._call(BIND_NAME, arguments)))

    def results(self, arguments: Sequence[Any], function: str = "main") -> tuple[np.ndarray, ...]:
        return tuple(tensor.numpy() for tensor in _flat(self._call(function, arguments)))

    def mean_us(self, arguments: Sequence[Any], number: int) -> float:
        timer = self._machine.time_evaluator("main", self._device, number=number, repeat=1)
        mean_s = float(timer(*arguments).results[0])
        if not 0 <= mean_s < math.inf:
            raise OSError(f"the device's clock says that the program took {mean_s} s")
        return mean_s * _MICROSECONDS

    def once_us(self, arguments: Sequence[Any]) -> float:
        return self.mean_us(arguments, 1)  # by this machine's clock it would contain the network

    def _call(self, function: str, arguments: Sequence[Any]) -> Any:
        self._machine.set_input(function, *arguments)
        self._machine.invoke_stateful(function)
        return self._machine.get_outputs(function)


def _flat(result: Any) -> tuple[Any, ...]:
    if hasattr(result, "numpy"):
        return (result,)
    return tuple(tensor for item in result for tensor in _flat(item))
