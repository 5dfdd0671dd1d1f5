"""Compile the mix that was chosen into a program of this process, which can be saved.

Weights are made once: folded, transposed and packed ones replace those of the model, and what makes them is
not kept. Checked in tests/tessel/compiling/test_program.py.
"""

from __future__ import annotations

import hashlib
import json
import platform
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import tvm
from tvm import relax

from tuner.backends.protocol import Backend
from tuner.errors import TunerError
from tuner.frontend.model import Model
from tuner.frontend.values import random_parameters
from tuner.graph.relax_types import IRModule
from tuner.lowering.lower import Executable, build_for_graph, build_module, lower_module
from tuner.lowering.machine import library_of, load_machine
from tuner.lowering.weight_binding import SplitProgram, split_program
from tuner.plan import PartitionPlan
from tuner.runtime.call_structure import flat_structure
from tuner.runtime.compiled_program import CompiledProgram, assemble
from tuner.runtime.manifest import Manifest, PartRow, TensorSpec, libraries_of, versions_here
from tuner.runtime.native import aligned_copy
from tuner.targets.resolution import code_features, measuring_obstacle, tvm_device
from tuner.targets.target import Target
from tuner.tuning.partition_model import PartitionedModel

HeldWeights: TypeAlias = dict[bytes, np.ndarray]
"""Bytes of weights that programs of one model keep, by their digest."""


@dataclass(frozen=True, slots=True)
class CompiledMix:
    """A program, and the executable from which its library is written."""

    program: CompiledProgram
    executable: Executable

    def write_library(self) -> bytes:
        """Return the program's code as a shared library.

        Raises:
            TunerError: there is no compiler to link it with.
        """
        with tempfile.TemporaryDirectory(prefix="tessel-link-") as folder:
            path = Path(folder) / "program.so"
            try:
                self.executable.export_library(str(path))
            except (OSError, RuntimeError, TypeError, ValueError) as error:
                reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
                raise TunerError(
                    f"the program could not be linked ({reason[:200]}); install a C++ compiler, which saving "
                    "a program needs"
                ) from error
            return path.read_bytes()


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramFacts:
    """What is known of a program beside what runs it.

    Attributes:
        fingerprint: of the model's structure and shapes.
        latency_us: measured, by `mix` and single backend.
        max_relative_error: against the model's own program; None where nothing ran.
    """

    fingerprint: str = ""
    parts: tuple[PartitionPlan, ...] = ()
    latency_us: Mapping[str, float] = field(default_factory=dict)
    max_relative_error: float | None = None

    @classmethod
    def of(cls, mix: PartitionedModel) -> ProgramFacts:
        """Return what a partition that was measured says."""
        return cls(
            fingerprint=mix.fingerprint,
            parts=mix.partition,
            latency_us={name: figure.latency_us for name, figure in mix.end_to_end.items()},
            max_relative_error=mix.max_relative_error,
        )


def compile_mix(
    model: Model,
    module: IRModule,
    backends: Sequence[Backend],
    target: Target,
    *,
    facts: ProgramFacts,
    seed: int = 0,
    held: HeldWeights | None = None,
) -> CompiledMix:
    """Return a module of partitions as a program that holds the model's weights.

    Args:
        model: whose weights and call it has; it is not trained.
        module: `main` takes what the model's `main` takes, and calls partitions.
        backends: at least those that the partitions name.
        target: this machine's CPU or its first GPU.
        facts: what its table says.
        seed: of weights that no file holds.
        held: weights of programs for other shapes; those of this one are added.

    Raises:
        TunerError: the GPU is not here, or the model writes buffers or its own inputs.
    """
    require_compilable(model, target)
    split = split_program(lower_module(module, backends, target), len(model.inputs))
    weights = _made_weights(split, model, target, seed)
    calls = tuple(sorted(_packed_calls(split.module)))
    is_on_gpu = target.kind == "cuda"
    executable = (build_for_graph if is_on_gpu else build_module)(split.module, target)
    libraries = libraries_of(calls, split.bound)
    results = result_types(split.module)
    names = [spec.name for spec in model.inputs]
    manifest = Manifest(
        model=model.name,
        fingerprint=facts.fingerprint,
        call=model.call or flat_structure(names, len(results)),
        inputs=tuple(TensorSpec(name=str(s.name), shape=s.shape, dtype=str(s.dtype)) for s in model.inputs),
        outputs=tuple(
            TensorSpec(name=f"output {at}", shape=shape, dtype=dtype)
            for at, (shape, dtype) in enumerate(results)
        ),
        weights=tuple(
            TensorSpec(name=f"weight {at}", shape=array.shape, dtype=str(array.dtype))
            for at, array in enumerate(weights)
        ),
        bound=split.bound,
        calls=calls,
        num_threads=target.num_threads,
        machine=platform.machine(),
        features=() if is_on_gpu else code_features(target),
        versions=versions_here(libraries),
        parts=tuple(map(part_row, facts.parts)),
        latency_us=dict(facts.latency_us),
        max_relative_error=facts.max_relative_error,
        gpu=json.loads(target.tvm_json)["arch"] if is_on_gpu else None,
    )
    kept = [_held(array.reshape(-1).view(np.uint8), {} if held is None else held) for array in weights]
    return CompiledMix(assemble(manifest, library_of(executable), kept), executable)


def _held(data: np.ndarray, held: HeldWeights) -> np.ndarray:
    """Return aligned memory of these bytes: what holds them already, or a copy."""
    digest = hashlib.sha256(data.data).digest()
    if digest not in held:
        held[digest] = aligned_copy(data)
    return held[digest]


def require_compilable(model: Model, target: Target) -> None:
    """Refuse what no program is made of, before anything is measured.

    Raises:
        TunerError: the GPU is not here, or the model is trained, or writes buffers or its own inputs.
    """
    if target.kind == "cuda" and (reason := measuring_obstacle(target)) is not None:
        raise TunerError(f"programs are compiled where they run, and {reason}; give a target that is here")
    if model.training:
        raise TunerError("programs are compiled for inference; leave train out")
    if model.state:
        raise TunerError(
            f"forward of {model.name} writes {', '.join(model.state)}, and a compiled program keeps no "
            "state; return what it writes, and pass it to the next call"
        )


def _made_weights(split: SplitProgram, model: Model, target: Target, seed: int) -> list[np.ndarray]:
    """Return the tensors that the program keeps."""
    given = list(random_parameters(model, seed).values())
    contiguous = [np.ascontiguousarray(array).reshape(array.shape) for array in given]
    if split.maker is None:
        return [*contiguous, *split.constants]
    machine = load_machine(build_module(split.maker, target), device := tvm_device(target))
    made = machine["main"](*(tvm.runtime.tensor(array, device) for array in contiguous))
    return [*(np.array(each.numpy()) for each in made), *split.constants]


def _packed_calls(module: IRModule) -> set[str]:
    """Return the names of the packed functions that Relax functions call."""
    found: set[str] = set()

    def note(expression: Any) -> None:
        if isinstance(expression, relax.ExternFunc):
            found.add(str(expression.global_symbol))

    for _, function in module.functions_items():
        if isinstance(function, relax.Function):
            relax.analysis.post_order_visit(function, note)
    return {name for name in found if not name.startswith(("vm.", "runtime.", "tvm.contrib."))}


def result_types(module: IRModule) -> list[tuple[tuple[int, ...], str]]:
    """Return shape and type of each result of `main`."""
    kind = module["main"].ret_ty
    fields = list(kind.fields) if isinstance(kind, relax.TupleType) else [kind]
    return [(tuple(int(extent) for extent in field.shape), str(field.dtype.dtype)) for field in fields]


def part_row(part: PartitionPlan) -> PartRow:
    """Return what a manifest says of a sub-graph."""
    return PartRow(
        operators=part.operators,
        backend=part.backend,
        latency_us=part.figure.latency_us,
        source=part.figure.source,
        occurrences=part.occurrences,
        layers=part.layers,
    )
