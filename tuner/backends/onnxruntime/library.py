"""onnxruntime: contiguous sub-graphs in one call, with weights packed once and its own layouts inside.

A partition is written as an ONNX graph and becomes one packed call. Where it reads weights of a model that is
not trained, they are constants to onnxruntime: it folds normalisations into them and packs them, which is
where it is fast. So what it wants is long: convolutions in a row stay in its blocked layout. Checked in
tests/tuner/backends/.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.metadata
import importlib.util
from collections.abc import Sequence
from typing import Any

import tvm
from tvm import relax

from tuner.backends.torch.library import LIBRARY_PATTERNS
from tuner.backends.tvm.native import replace_function
from tuner.graph.relax_types import IRModule, RelaxFunction, weights_of
from tuner.rules.combinators import Union
from tuner.rules.protocol import Rule
from tuner.rules.segments import ContiguousSubgraphs, WithPackedWeights
from tuner.rules.styles import library_rule
from tuner.targets.target import Target

_CALLS_MODULE = "tuner.runtime.onnxruntime_calls"
_EXPORT_MODULE = "tuner.backends.onnxruntime.export"


class OnnxRuntime:
    """Runs contiguous sub-graphs of a model with onnxruntime."""

    name = "onnxruntime"
    settings = ""
    reference = "onnxruntime"
    packs_weights = True
    takes_contiguous_subgraphs = True

    def versions(self) -> tuple[tuple[str, str], ...]:
        """Return onnxruntime's version."""
        return (("onnxruntime", importlib.metadata.version("onnxruntime")),)

    def unavailable_reason(self, target: Target) -> str | None:
        """Say that a package is not installed, or that the target is no CPU of this machine."""
        missing = [name for name in ("onnxruntime", "onnx") if importlib.util.find_spec(name) is None]
        if missing:
            return f"{missing[0]} is not installed; install the extra `onnxruntime`"
        if target.kind != "cpu":
            return "onnxruntime is used on this machine's CPU only"
        return None

    def rule(self, target: Target) -> Rule:
        """Return the rule that proposes library calls, and contiguous sub-graphs of an inference model."""
        calls = library_rule(LIBRARY_PATTERNS, name="calls")
        return Union(self.name, (calls, WithPackedWeights(ContiguousSubgraphs("stretches"))))

    def refusal(self, function: RelaxFunction, target: Target) -> str | None:
        """Say which operator or type has no conversion to ONNX."""
        reason: str | None = importlib.import_module(_EXPORT_MODULE).onnx_refusal(function)
        return reason

    def lower(self, module: IRModule, functions: Sequence[str], target: Target) -> IRModule:
        """Return the module with each function as one packed call."""
        export = importlib.import_module(_EXPORT_MODULE)
        for name in functions:
            function = module[name]
            weights = weights_of(function)
            parameters = [relax.Var(parameter.name, parameter.ty) for parameter in function.params]
            graph = export.to_onnx(function, weights=weights)
            called = call_of_graph(graph, parameters, weights, function.ret_ty, target.num_threads)
            module = replace_function(module, name, called)
        return module


def call_of_graph(
    graph: bytes,
    parameters: Sequence[Any],
    weights: Sequence[int],
    results: Any,
    num_threads: int,
    *,
    is_alone: bool = False,
) -> IRModule:
    """Return a module whose `main` loads a graph, once where its weights are known, and calls it.

    Args:
        graph: a serialised ONNX model whose inputs have the names of their positions.
        parameters: of `main`.
        weights: positions of those that never change, whose values lie outside of the graph.
        results: the type of what `main` returns.
        is_alone: whether nothing else runs in the program.
    """
    calls = importlib.import_module(_CALLS_MODULE)  # registers the packed functions
    text = calls.encode_call(
        calls.GraphCall(
            model=graph,
            num_inputs=len(parameters),
            weights=tuple(weights),
            num_threads=num_threads,
            is_alone=is_alone,
        )
    )
    inputs = [each for position, each in enumerate(parameters) if position not in weights]
    builder = relax.BlockBuilder()
    with builder.function("main", parameters):
        with builder.dataflow():
            out = list(results.fields) if isinstance(results, relax.TupleType) else results
            # Where nothing is bound the graph is loaded by each call: long texts are slow to look up.
            digest = hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
            loaded = builder.emit(
                relax.call_pure_packed(
                    "tessel.onnxruntime.load",
                    tvm.ir.StringImm(digest),
                    tvm.ir.StringImm(text),
                    *(parameters[position] for position in weights),
                    ty_args=relax.ObjectType(),
                )
            )
            result = builder.emit_output(
                relax.call_dps_packed("tessel.onnxruntime.call", [loaded, *inputs], out_ty=out)
            )
        builder.emit_func_output(result)
    return builder.get()
