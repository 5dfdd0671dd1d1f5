"""Libraries for which TVM itself generates calls: cuBLAS, cuDNN, CUTLASS, TensorRT, oneDNN.

Whether one is there depends on how the installed TVM was built: a library's code generator is a function
`relax.ext.NAME`, and its patterns are TVM's own. A partition must be covered by the patterns as a whole.
Checked in tests/tuner/backends/tvm/test_codegen.py with a generator of the test's own.

Source: TVM's "Bring Your Own Codegen" (`FuseOpsByPattern`, `RunCodegen`).
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

import tvm
from tvm import relax
from tvm.relax.backend import get_patterns_with_prefix

from tuner.backends.tvm.native import as_public, replace_function
from tuner.graph.relax_types import IRModule, RelaxFunction
from tuner.rules.pattern import LabelledPattern
from tuner.rules.protocol import Rule
from tuner.rules.styles import FusionStyle, library_rule
from tuner.targets.target import Target

_PATTERN_MODULES = {
    "cublas": "tvm.relax.backend.cuda.cublas",
    "cudnn": "tvm.relax.backend.cuda.cudnn",
    "cutlass": "tvm.relax.backend.cuda.cutlass",
    "tensorrt": "tvm.relax.backend.contrib.tensorrt",
}
"""Where TVM registers the patterns of each library that it has patterns for."""


_EXTERNAL = "external_mods"
"""Module attribute under which TVM keeps generated code until it links."""


class TvmCodegen:
    """Runs partitions by a library that TVM generates calls of."""

    settings = ""

    def __init__(self, name: str, kind: str, style: FusionStyle = FusionStyle.NONE) -> None:
        """Use one of TVM's generators.

        Args:
            name: the library, as in `relax.ext.NAME` and in the names of its patterns.
            kind: device kind that it runs on.
            style: how its calls may be joined into one partition.
        """
        self.name = name
        self.reference = name
        self._kind = kind
        self._style = style

    def versions(self) -> tuple[tuple[str, str], ...]:
        """Return nothing: the library is part of TVM's build, whose version is in every environment."""
        return ()

    def unavailable_reason(self, target: Target) -> str | None:
        """Say that it is for other devices, or that TVM was built without it."""
        if target.kind != self._kind:
            return f"{self.name} runs on targets of kind {self._kind}"
        if tvm.get_global_func(f"relax.ext.{self.name}", allow_missing=True) is None:
            return f"the installed TVM was built without {self.name}"
        if not self._patterns():
            return f"the installed TVM has no patterns for {self.name}"
        return None

    def rule(self, target: Target) -> Rule:
        """Return the rule of TVM's patterns for the library."""
        patterns = [LabelledPattern(pattern.name, pattern.pattern) for pattern in self._patterns()]
        return library_rule(patterns, self._style, name=self.name)

    def refusal(self, function: RelaxFunction, target: Target) -> str | None:
        """Say that TVM's patterns, with their own checks, do not cover the function."""
        partitioned = self._partitioned(function)
        for block in partitioned["main"].body.blocks:
            for binding in block.bindings:
                value = binding.value
                if isinstance(value, relax.Call) and not isinstance(value.op, tvm.ir.GlobalVar):
                    return f"TVM's patterns for {self.name} do not take {value.op.name} here"
        return None

    def lower(self, module: IRModule, functions: Sequence[str], target: Target) -> IRModule:
        """Return the module with each function as calls of code that TVM generated for the library."""
        for name in functions:
            generated = relax.transform.RunCodegen()(_with_symbols(self._partitioned(module[name]), name))
            module = _with_external(replace_function(module, name, generated), generated)
        return module

    def _patterns(self) -> Sequence[Any]:
        if self.name in _PATTERN_MODULES:
            importlib.import_module(_PATTERN_MODULES[self.name])
        return tuple(get_patterns_with_prefix(self.name))

    def _partitioned(self, function: RelaxFunction) -> IRModule:
        """Return the function as calls of functions for the generator.

        A library that joins its calls gets one function with a composite function a call inside; others get
        one function a call.
        """
        joins = self._style is not FusionStyle.NONE
        module = relax.transform.FuseOpsByPattern(
            list(self._patterns()), bind_constants=False, annotate_codegen=not joins
        )(tvm.IRModule({"main": as_public(function)}))
        return relax.transform.MergeCompositeFunctions()(module) if joins else module


def _with_symbols(partitioned: IRModule, name: str) -> IRModule:
    """Return the module with symbols that no other partition's generated code has."""
    named = partitioned.clone()
    for variable, function in partitioned.functions_items():
        if variable.name_hint != "main":
            named.update_func(variable, function.with_attr("global_symbol", f"{name}_{variable.name_hint}"))
    return named


def _with_external(module: IRModule, generated: IRModule) -> IRModule:
    """Return the module with the generated code of another beside its own, for TVM to link."""
    modules = [
        external
        for source in (module, generated)
        if source.attrs is not None and _EXTERNAL in source.attrs.keys()  # noqa: SIM118 - TVM's maps
        for external in source.attrs[_EXTERNAL]
    ]
    return module.with_attr(_EXTERNAL, modules)
