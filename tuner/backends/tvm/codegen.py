"""Libraries for which TVM itself generates calls: cuBLAS, cuDNN, CUTLASS, TensorRT, oneDNN.

Whether one is there depends on how the installed TVM was built: a library's code generator is a function
`relax.ext.NAME`, and its patterns are TVM's own. A partition must be covered by the patterns as a whole. A
library that joins calls gets those that the search labelled, as composites inside of one function.
Checked in tests/tuner/backends/tvm/test_codegen.py with a generator of the test's own.

Source: TVM's "Bring Your Own Codegen" (`FuseOpsByPattern`, `RunCodegen`).
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlencode

import tvm
from tvm import relax
from tvm.relax.backend import get_patterns_with_prefix

from tuner.backends.tvm.native import as_public, replace_function
from tuner.graph.relax_types import IRModule, RelaxFunction
from tuner.graph.subgraph import SubGraphLimits
from tuner.rules.pattern import LabelledPattern
from tuner.rules.protocol import Rule
from tuner.rules.styles import DEFAULT_MAX_DEPTH, FusionStyle, library_rule
from tuner.targets.target import Target

_PATTERN_MODULES = {
    "cublas": "tvm.relax.backend.cuda.cublas",
    "cudnn": "tvm.relax.backend.cuda.cudnn",
    "cutlass": "tvm.relax.backend.cuda.cutlass",
    "tensorrt": "tvm.relax.backend.contrib.tensorrt",
}
"""Where TVM registers the patterns of each library that it has patterns for."""

_STYLES = {"tensorrt": FusionStyle.TVM}
"""How libraries join calls; upstream's defaults. Others run one call a partition."""

_EXTERNAL = "external_mods"
"""Module attribute under which TVM keeps generated code until it links."""


class TvmCodegen:
    """Runs partitions by a library that TVM generates calls of."""

    def __init__(self, name: str, kind: str, *, style: str = "", depth: int = DEFAULT_MAX_DEPTH) -> None:
        """Use one of TVM's generators.

        Args:
            name: the library, as in `relax.ext.NAME` and in the names of its patterns.
            kind: device kind that it runs on.
            style: how its calls may be joined into one partition, a `FusionStyle`; its own if empty.
            depth: operators on the longest path of what is joined.

        Raises:
            ValueError: there is no such style, or the depth is 0.
        """
        known = [str(each) for each in FusionStyle]
        if style and style not in known:
            raise ValueError(f"backend {name!r} has no style {style!r}; give one of {', '.join(known)}")
        own = _STYLES.get(name, FusionStyle.NONE)
        self.name = name
        self._kind = kind
        self._style = FusionStyle(style) if style else own
        self._limits = SubGraphLimits(max_depth=depth)
        given = {
            **({} if self._style is own else {"style": str(self._style)}),
            **({} if depth == DEFAULT_MAX_DEPTH else {"depth": depth}),
        }
        self.reference = f"{name}?{urlencode(given)}" if given else name
        self.settings = urlencode({key: value for key, value in given.items() if key == "style"})

    @property
    def takes_composites(self) -> bool:
        """Say that calls which are joined come as functions inside of one."""
        return self._style is not FusionStyle.NONE

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
        limits = self._limits if self._style is not FusionStyle.NONE else None
        return library_rule(patterns, self._style, name=self.name, limits=limits)

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
            function = module[name]
            calls = self._composed(function) if _composites(function) else self._partitioned(function)
            generated = relax.transform.RunCodegen()(_with_symbols(calls, name))
            module = _with_external(replace_function(module, name, generated), generated)
        return module

    def _patterns(self) -> Sequence[Any]:
        if self.name in _PATTERN_MODULES:
            importlib.import_module(_PATTERN_MODULES[self.name])
        return tuple(get_patterns_with_prefix(self.name))

    def _composed(self, function: RelaxFunction) -> IRModule:
        """Return the function, whose composites the search chose, as a call of one for the generator.

        A pattern may refuse what it matches by a check of its own. Where one refuses its composite, the calls
        are matched anew.
        """
        checks = {pattern.name: pattern for pattern in self._patterns()}
        composites = _composites(function)
        flat = _flat(function)
        if not all(_is_taken(checks.get(str(each.attrs["Composite"])), each) for each in composites):
            return self._partitioned(flat)
        builder = relax.BlockBuilder()
        outer = as_public(function).without_attr("global_symbol").with_attr("Codegen", self.name)
        variable = builder.add_func(
            outer.with_attr("global_symbol", f"{self.name}_joined"), f"{self.name}_joined"
        )
        parameters = [relax.Var(parameter.name, parameter.ty) for parameter in function.params]
        with builder.function("main", parameters):
            with builder.dataflow():
                result = builder.emit_output(relax.Call(variable, parameters))
            builder.emit_func_output(result)
        return builder.get()

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


def _composites(function: RelaxFunction) -> Sequence[Any]:
    """Return the functions inside of a function."""
    values = [binding.value for block in function.body.blocks for binding in block.bindings]
    return [value for value in values if isinstance(value, relax.Function)]


def _flat(function: RelaxFunction) -> RelaxFunction:
    """Return a function with the operators of the functions inside in place of their calls."""
    lifted = relax.transform.LambdaLift()(tvm.IRModule({"main": as_public(function)}))
    for variable, inner in lifted.functions_items():
        if variable.name_hint != "main":
            lifted.update_func(variable, inner.without_attr("Composite"))
    inlined = relax.transform.InlinePrivateFunctions()(lifted)
    flat: RelaxFunction = relax.transform.ConvertToDataflow()(inlined)["main"]
    return flat


def _is_taken(pattern: Any, composite: RelaxFunction) -> bool:
    """Say whether a pattern, with its own check, takes all operators of a composite."""
    if pattern is None:
        return False
    plain = _flat(composite.without_attr("Composite"))
    fused = relax.transform.FuseOpsByPattern([pattern], bind_constants=False)(
        tvm.IRModule({"main": as_public(plain)})
    )
    return all(
        isinstance(binding.value, relax.Call) and isinstance(binding.value.op, tvm.ir.GlobalVar)
        for block in fused["main"].body.blocks
        for binding in block.bindings
    )


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
