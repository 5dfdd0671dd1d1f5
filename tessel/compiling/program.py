"""A compiled program that is called like the module it was made of.

It takes and gives torch tensors, NumPy arrays, or whatever else speaks DLPack: results are of the kind of the
inputs, and neither is copied unless its layout asks for it. Programs are for inference: no gradient flows
through one. Checked in tests/tessel/compiling/test_program.py.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from msgspec import structs

from tessel.compiling.program_file import write_program
from tessel.compiling.racing import (
    COMPILED,
    EAGER,
    ONNXRUNTIME,
    PROGRAM,
    Benchmark,
    draw_inputs,
    onnxruntime_run,
    race,
    torch_contenders,
)
from tuner.runtime.call_structure import rebuilder
from tuner.runtime.compiled_program import CompiledProgram, QuickRun
from tuner.runtime.manifest import Manifest, TensorSpec
from tuner.runtime.native import (
    INPUT_ALIGNMENT,
    Tensor,
    aligned_copy,
    array_of_tensor,
    tensor_of_array,
    tensor_of_dlpack,
)

Rebuild = Callable[[Sequence[Any]], Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramSource:
    """What a program was compiled of, for races against it.

    Attributes:
        module: of torch; None for files and names.
        onnx: path of a file; None likewise.
        args: example inputs of the module, and `kwargs` likewise.
    """

    module: Any = None
    onnx: str | None = None
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)


class Program:
    """A compiled program; call it as its module is called.

    Calls from several threads run at once, as many as the machine has cores for; each has as many threads as
    the program was compiled for. Parts that torch runs use torch's threads.

    Args:
        compiled: what runs.
        own_results: rebuilds results in classes of the module's own; None where there are none.
        write_library: gives the program's code as a shared library.
        source: what it was compiled of.
    """

    def __init__(
        self,
        compiled: CompiledProgram,
        *,
        own_results: Rebuild | None = None,
        write_library: Callable[[], bytes],
        source: ProgramSource | None = None,
    ) -> None:
        self.compiled = compiled
        self.source = source or ProgramSource()
        self.write_library = write_library
        manifest = compiled.manifest
        devices = ("cpu",) if manifest.gpu is None else ("cpu", "cuda")
        self._call = manifest.call
        self._takes_arrays = compiled.machines.takes_arrays
        self._inputs = tuple(_Input(spec, devices, self._takes_arrays) for spec in manifest.inputs)
        self._converts = tuple(each.tensor for each in self._inputs)
        self._is_flat = manifest.call.is_flat and len(manifest.call.arguments) == len(self._inputs)
        self._quick: QuickRun | None = None
        if self._takes_arrays and self._is_flat and hasattr(compiled.machines, "quick"):
            self._quick = compiled.machines.quick([(each.shape, each.numpy_dtype) for each in self._inputs])
        self._gives_one = len(manifest.outputs) == 1
        self._array_of = _array_maker(manifest, self._takes_arrays)
        self.results = own_results or rebuilder(manifest.call.results)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Return what the module returns for the arguments.

        Raises:
            TypeError: an argument is missing, unknown, no tensor, or of another data type; names it.
            ValueError: an input has another shape than the program was compiled for; names it.
        """
        quick = self._quick
        if quick is not None and not kwargs and len(args) == len(self._inputs):
            found = quick(args)
            if found is not None:
                return self.results(found)
        return self.run(self.leaves(args, kwargs))

    def leaves(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Sequence[Any]:
        """Return the tensors of a call in the order of the program's inputs.

        Raises:
            TypeError: an argument is missing, unknown or given twice, or its tree is another one.
            ValueError: a constant is another one than the program was compiled for.
        """
        if kwargs or not self._is_flat or len(args) != len(self._inputs):
            return self._call.flatten(args, kwargs, len(self._inputs))
        return args

    def run(self, leaves: Sequence[Any], *, cut: Callable[[int, Any], Any] | None = None) -> Any:
        """Return what the module returns for tensors in the order of the program's inputs.

        Args:
            leaves: tensors.
            cut: what becomes of a result, by its position; it stays as it is if None.
        """
        return self.rebuilt(self.compiled.machines.run(self.prepared(leaves)), leaves, cut=cut)

    def prepared(self, leaves: Sequence[Any]) -> list[Tensor]:
        """Return tensors as the program reads them; errors of a call."""
        return [convert(leaf) for convert, leaf in zip(self._converts, leaves, strict=True)]

    def rebuilt(
        self, found: Any, leaves: Sequence[Any], *, cut: Callable[[int, Any], Any] | None = None
    ) -> Any:
        """Return what machines gave as the module returns it, of the kind of the inputs."""
        kind = self._kind_of(leaves)
        made = [kind(found)] if self._gives_one else [kind(each) for each in found]
        if cut is not None:
            made = [cut(at, each) for at, each in enumerate(made)]
        return self.results(made)

    def _kind_of(self, leaves: Sequence[Any]) -> Callable[[Any], Any]:
        """Return what turns a result into the kind of the inputs: torch's where one is, else the first's."""
        torch = sys.modules.get("torch")
        if torch is not None:
            for leaf in leaves:
                if isinstance(leaf, torch.Tensor):
                    return torch.from_numpy if self._takes_arrays else _torch_tensor
        first = leaves[0] if leaves else None
        if first is None or isinstance(first, np.ndarray):
            return self._array_of
        namespace = getattr(first, "__array_namespace__", None)
        return namespace().from_dlpack if namespace is not None else lambda found: found

    @property
    def manifest(self) -> Manifest:
        """What the program is: inputs, outputs, who runs what, versions, processor features."""
        return self.compiled.manifest

    def measured(self, latency_us: float) -> Program:
        """Return the program with what a call of it took; a single part took that, too."""
        manifest = self.manifest
        parts = manifest.parts
        if len(parts) == 1 and parts[0].occurrences == 1:
            parts = (structs.replace(parts[0], latency_us=latency_us, source="measured"),)
        figures = {**manifest.latency_us, "mix": latency_us}
        manifest = structs.replace(manifest, latency_us=figures, parts=parts)
        return Program(
            replace(self.compiled, manifest=manifest),
            own_results=self.results,
            write_library=self.write_library,
            source=self.source,
        )

    def explain(self) -> str:
        """Return a table of who runs what, most time first."""
        manifest = self.manifest
        whole_us = sum(part.latency_us * part.occurrences for part in manifest.parts) or 1.0
        rows = [("backend", "runs", "latency", "share", "operators", "layers")]
        for part in manifest.parts:
            share = part.latency_us * part.occurrences / whole_us
            figure = f"{part.latency_us:.1f} us"
            layers = ", ".join(dict.fromkeys(part.layers))
            operators = ", ".join(part.operators)
            rows.append((part.backend, str(part.occurrences), figure, f"{share:.1%}", operators, layers))
        widths = [min(max(map(len, column)), 48) for column in zip(*rows, strict=True)]
        lines = [
            "  ".join(cell[:48].ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
            for row in rows
        ]
        whole = ", ".join(f"{name} {latency:.1f} us" for name, latency in manifest.latency_us.items())
        return "\n".join([f"{manifest.model}, {manifest.num_threads} threads: {whole}", *lines])

    def benchmark(
        self,
        *args: Any,
        module: Any = None,
        onnx: str | os.PathLike[str] | None = None,
        against: Collection[str] = (EAGER, COMPILED, ONNXRUNTIME),
        rounds: int = 30,
        **kwargs: Any,
    ) -> Benchmark:
        """Race the program against torch eager, torch.compile and onnxruntime, in turn in this process.

        Args:
            args: of each call, and `kwargs` likewise; drawn at random where none are given.
            module: what torch runs; the one that the program was compiled of, where it was.
            onnx: the file that onnxruntime runs; the one that the program was compiled of, likewise.
            against: who else runs, of `torch eager`, `torch.compile` and `onnxruntime`.
            rounds: how often each contender runs, at least 6.

        Returns:
            Medians, and ratios to the program with their 95 % intervals.
        """
        module, onnx = module or self.source.module, onnx or self.source.onnx
        threads = self.manifest.num_threads
        if not args and not kwargs:
            args, kwargs = self.source.args, dict(self.source.kwargs)
        with ExitStack() as stack:
            runs: dict[str, Any] = {}
            left_out: dict[str, str] = {}
            if self.manifest.gpu is not None:
                module = onnx = None
                left_out = dict.fromkeys(against, "it runs on the processor, and the program on a GPU")
            if module is not None:
                runs, left_out = stack.enter_context(
                    torch_contenders(module, args, kwargs, num_threads=threads, against=against)
                )
            elif onnx is not None and ONNXRUNTIME in against:
                arrays = draw_inputs(self.manifest.inputs)
                args, kwargs = args or tuple(map(aligned_copy, arrays)), {}
                runs[ONNXRUNTIME] = onnxruntime_run(os.fspath(onnx), args, threads)
            elif not args and not kwargs:
                args = tuple(map(aligned_copy, draw_inputs(self.manifest.inputs)))
            found = race({PROGRAM: lambda: self(*args, **kwargs), **runs}, rounds=rounds, num_threads=threads)
        return Benchmark(contenders=found, left_out=left_out, rounds=rounds, num_threads=threads)

    def save(self, path: str | os.PathLike[str]) -> int:
        """Write the program to one file, which `tessel.load` reads, and return its bytes.

        Raises:
            TunerError: there is no C++ compiler to link the code with.
            ValueError: a backend of one's own runs some of it, which no other process has.
            OSError: the file cannot be written.
        """
        return write_program([self.compiled], [self.write_library()], path)

    def __repr__(self) -> str:
        inputs = ", ".join(f"{s.name}: {s.dtype}{list(s.shape)}" for s in self.manifest.inputs)
        return f"<tessel program {self.manifest.model}({inputs})>"


class _Input:
    """One input: what it must be, and how it becomes what the program reads.

    Args:
        spec: what it must be.
        devices: where tensors of torch may be.
        takes_arrays: whether the program reads NumPy's arrays.
    """

    def __init__(self, spec: TensorSpec, devices: Collection[str], takes_arrays: bool) -> None:
        self._devices, self._takes_arrays = devices, takes_arrays
        self.name, self.shape, self.dtype = spec.name, spec.shape, spec.dtype
        self._torch_dtype: Any = None
        self.numpy_dtype = None if spec.dtype == "bfloat16" else np.dtype(spec.dtype)

    def tensor(self, value: Any) -> Any:
        """Return the value as the program reads it, of the same memory where that lies as kernels want it."""
        if isinstance(value, np.ndarray):
            if value.shape != self.shape or value.dtype != self.numpy_dtype:
                self._check(value.shape, str(value.dtype))
            return value if self._takes_arrays else tensor_of_array(value)
        torch = sys.modules.get("torch")
        if torch is not None and isinstance(value, torch.Tensor):
            return self._of_torch(torch, value)
        if not hasattr(value, "__dlpack__"):
            raise TypeError(
                f"input {self.name!r} is a {type(value).__name__}, but the program takes a tensor of "
                f"{self.dtype}{list(self.shape)}; give a torch tensor, a NumPy array or what has __dlpack__"
            )
        tensor = tensor_of_dlpack(value)
        self._check(tuple(tensor.shape), str(tensor.dtype))
        return array_of_tensor(tensor) if self._takes_arrays else tensor

    def _of_torch(self, torch: Any, value: Any) -> Any:
        if self._torch_dtype is None:
            self._torch_dtype = getattr(torch, self.dtype)
        if value.shape != self.shape or value.dtype is not self._torch_dtype:
            self._check(tuple(value.shape), str(value.dtype).removeprefix("torch."))
        if not value.is_cpu and value.device.type not in self._devices:
            where = " or ".join(self._devices)
            raise ValueError(f"input {self.name!r} is on {value.device}, but the program runs on {where}")
        if value.requires_grad:
            value = value.detach()
        if not value.is_contiguous() or value.is_neg() or value.is_conj():
            value = value.resolve_conj().resolve_neg().contiguous()
        if self._takes_arrays:
            return value.numpy()
        return value.clone() if value.data_ptr() % INPUT_ALIGNMENT else value

    def _check(self, shape: tuple[int, ...], dtype: str) -> None:
        if dtype != self.dtype:
            raise TypeError(
                f"input {self.name!r} is of {dtype}, but the program was compiled for "
                f"{self.dtype}; convert it"
            )
        if shape != self.shape:
            raise ValueError(
                f"input {self.name!r} has shape {list(shape)}, but the program was compiled for "
                f"{list(self.shape)}; compile it for that shape, too"
            )


def _torch_tensor(found: Any) -> Any:
    torch = sys.modules["torch"]
    if isinstance(found, torch.Tensor):
        return found
    return torch.utils.dlpack.from_dlpack(found.__dlpack__())


def _array_maker(manifest: Manifest, takes_arrays: bool) -> Callable[[Any], np.ndarray]:
    """Return what makes an array of a result."""
    if takes_arrays:
        return np.asarray
    has_foreign = any(spec.dtype == "bfloat16" for spec in manifest.outputs)
    return array_of_tensor if has_foreign else np.from_dlpack
