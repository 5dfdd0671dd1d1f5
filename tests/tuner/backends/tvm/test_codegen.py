"""TVM's own code generators: refused with a reason where TVM lacks them, run where it has them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import tvm
from numerics import relative_error
from tvm import relax
from tvm.relax.backend.pattern_registry import register_patterns
from tvm.relax.dpl import is_op, wildcard

from tests.harness.run_module import run_module
from tests.samples.partition_samples import part_of, partition_module
from tuner.backends.registry import make_backend
from tuner.backends.tvm.codegen import TvmCodegen
from tuner.lowering.lower import build_module, build_reference, lower_module
from tuner.measuring.worker.inputs import input_specs, random_inputs
from tuner.targets.resolution import resolve_target
from tuner.targets.target import Target

pytestmark = pytest.mark.tvm

op = relax.op

NAME = "tesseltest"


@pytest.fixture(scope="module")
def target() -> Target:
    return resolve_target("cpu", num_threads=1)


@pytest.fixture(scope="module")
def backend() -> TvmCodegen:
    """A library for linear layers with ReLU, whose generator is written in Python."""

    def generate(functions: Sequence[Any], _options: Any, _constants: Any) -> list[Any]:
        return [_compiled(function) for function in functions]

    pattern = is_op("relax.nn.relu")(is_op("relax.matmul")(wildcard(), wildcard()))
    register_patterns([(f"{NAME}.linear_relu", pattern)])
    tvm.register_global_func(f"relax.ext.{NAME}", generate, override=True)
    return TvmCodegen(NAME, "cpu")


def _composites_of(function: Any) -> list[Any]:
    """Return the functions inside of a function."""
    values = [binding.value for block in function.body.blocks for binding in block.bindings]
    return [value for value in values if isinstance(value, relax.Function)]


def _compiled(function: Any) -> Any:
    """Return a runtime module that runs an extracted function with one composite under its symbol."""
    symbol = str(function.attrs["global_symbol"])
    (inner,) = _composites_of(function)
    return _kernel_of(inner.without_attr("Composite"), symbol)


def _kernel_of(function: Any, symbol: str) -> Any:
    """Return a runtime module with a function's operators as one kernel under a symbol."""
    main = function.with_attr("global_symbol", "main")
    legal = relax.transform.LegalizeOps()(tvm.IRModule({"main": main}))
    fused = relax.transform.FuseTIR()(
        relax.transform.FuseOps()(relax.transform.AnnotateTIROpPattern()(legal))
    )
    kernels = [item for _, item in fused.functions_items() if isinstance(item, tvm.tirx.PrimFunc)]
    assert len(kernels) == 1
    return tvm.compile(tvm.IRModule({symbol: kernels[0].with_attr("global_symbol", symbol)}), "llvm").mod


JOINING = "tesseljoin"


def test_a_library_that_joins_calls_gets_one_function_with_a_composite_a_call(target: Target) -> None:
    composites = []

    def generate(functions: Sequence[Any], _options: Any, _constants: Any) -> list[Any]:
        composites.extend(
            [str(inner.attrs["Composite"]) for inner in _composites_of(each)] for each in functions
        )
        return [_joined(each) for each in functions]

    product = is_op("relax.matmul")(wildcard(), wildcard())
    patterns = [("linear_relu", is_op("relax.nn.relu")(product)), ("tanh", is_op("relax.tanh")(wildcard()))]
    register_patterns([(f"{JOINING}.{name}", pattern) for name, pattern in patterns])
    tvm.register_global_func(f"relax.ext.{JOINING}", generate, override=True)
    joining = TvmCodegen(JOINING, "cpu", style="tvm")

    module = partition_module(JOINING, [(8, 16), (16, 8)], lambda x, w: op.tanh(op.nn.relu(op.matmul(x, w))))
    assert joining.refusal(part_of(module), target) is None
    lowered = lower_module(module, [joining], target)
    assert composites == [[f"{JOINING}.linear_relu", f"{JOINING}.tanh"]]
    inputs = random_inputs(input_specs(module), seed=0)
    results = run_module(build_module(lowered, target), inputs, target)
    assert relative_error(results, run_module(build_reference(module, target), inputs, target)) < 1e-5


def _joined(function: Any) -> Any:
    """Return a runtime module that runs an extracted function of several composites under its symbol."""
    symbol = str(function.attrs["global_symbol"])
    plain = function.without_attr("Codegen").with_attr("global_symbol", "main")
    lifted = relax.transform.LambdaLift()(tvm.IRModule({"main": plain}))
    for variable, inner in lifted.functions_items():
        if inner.attrs and "Composite" in inner.attrs.keys():  # noqa: SIM118 - TVM's attributes are no Mapping
            lifted.update_func(variable, inner.without_attr("Composite"))
    inlined = relax.transform.InlinePrivateFunctions()(lifted)
    return _kernel_of(relax.transform.ConvertToDataflow()(inlined)["main"], symbol)


@pytest.mark.parametrize("name", ["cublas", "cudnn", "cutlass", "tensorrt"])
def test_a_library_for_gpus_does_not_run_on_a_cpu(name: str, target: Target) -> None:
    assert make_backend(name).unavailable_reason(target) == f"{name} runs on targets of kind cuda"


@pytest.mark.parametrize("name", ["cublas", "cudnn", "cutlass", "tensorrt", "dnnl"])
def test_a_library_that_tvm_lacks_says_so(name: str, target: Target) -> None:
    if tvm.get_global_func(f"relax.ext.{name}", allow_missing=True) is not None:
        pytest.skip(f"this TVM was built with {name}")
    there = target if name == "dnnl" else resolve_target("nvidia/nvidia-h200")
    assert make_backend(name).unavailable_reason(there) == f"the installed TVM was built without {name}"


def test_a_library_that_tvm_has_runs_what_its_patterns_cover(backend: TvmCodegen, target: Target) -> None:
    assert backend.unavailable_reason(target) is None
    module = partition_module(NAME, [(8, 16), (16, 8)], lambda x, w: op.nn.relu(op.matmul(x, w)))
    assert backend.refusal(part_of(module), target) is None
    before = module.script()
    lowered = lower_module(module, [backend], target)
    assert module.script() == before
    assert "call_dps_packed" in lowered["main"].script()
    inputs = random_inputs(input_specs(module), seed=0)
    results = run_module(build_module(lowered, target), inputs, target)
    assert relative_error(results, run_module(build_reference(module, target), inputs, target)) < 1e-5


def test_what_its_patterns_do_not_cover_is_refused(backend: TvmCodegen, target: Target) -> None:
    module = partition_module(NAME, [(8, 16), (16, 8)], lambda x, w: op.tanh(op.nn.relu(op.matmul(x, w))))
    reason = backend.refusal(part_of(module), target)
    assert reason is not None
    assert "relax.tanh" in reason
