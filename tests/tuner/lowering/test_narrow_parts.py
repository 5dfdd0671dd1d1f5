"""Between partitions bfloat16 stays narrow where TVM compiles both sides; each operator rounds once."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from tvm import relax

from tests.harness.run_module import run_module
from tuner.backends.registry import backends_for
from tuner.graph.relax_types import PARTITION_ATTRIBUTE, IRModule
from tuner.lowering.lower import build_module, lower_module
from tuner.lowering.narrow_parts import narrow_parts
from tuner.targets.resolution import resolve_target

pytestmark = pytest.mark.tvm

op = relax.op


def two_parts(readers: tuple[str, ...], *, is_returned: bool = False) -> IRModule:
    """Return a module whose first partition widens and transposes, and others that multiply what it gives."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((4, 6), "bfloat16"))
    with builder.function("first", [x], attrs={PARTITION_ATTRIBUTE: "tvm"}, private=True):
        with builder.dataflow():
            rounded = builder.emit(op.astype(op.exp(op.astype(x, "float32")), "bfloat16"))
            widened = builder.emit(op.astype(rounded, "float32"))
            result = builder.emit_output(op.permute_dims(widened))
        first = builder.emit_func_output(result)
    seconds = []
    for number, backend in enumerate(readers):
        w = relax.Var("w", relax.TensorType((6, 4), "float32"))
        with builder.function(f"read{number}", [w], attrs={PARTITION_ATTRIBUTE: backend}, private=True):
            with builder.dataflow():
                made = builder.emit(op.matmul(w, op.permute_dims(w)))
                result = builder.emit_output(op.astype(made, "bfloat16"))
            seconds.append(builder.emit_func_output(result))
    x = relax.Var("x", relax.TensorType((4, 6), "bfloat16"))
    with builder.function("main", [x]):
        with builder.dataflow():
            wide = builder.emit(relax.Call(first, [x]))
            moved = builder.emit(op.reshape(wide, (6, 4)))
            given = [builder.emit(relax.Call(each, [moved])) for each in seconds]
            result = builder.emit_output(relax.Tuple([*given, *([wide] if is_returned else [])]))
        builder.emit_func_output(result)
    return builder.get()


def wide_results(module: IRModule) -> list[str]:
    """Return the calls of partitions in `main` that give float32."""
    bindings = [each for block in module["main"].body.blocks for each in block.bindings]
    return [
        each.value.op.name_hint
        for each in bindings
        if isinstance(each.value, relax.Call)
        and isinstance(each.value.op, relax.GlobalVar)
        and str(each.var.ty.dtype) == "float32"
    ]


def run(module: IRModule, x: np.ndarray[Any, Any]) -> list[np.ndarray[Any, Any]]:
    target = resolve_target("cpu", num_threads=1)
    backends = backends_for(("tvm",), target)
    return list(run_module(build_module(lower_module(module, backends, target), target), [x], target))


def test_what_is_widened_for_others_is_widened_by_them() -> None:
    module = two_parts(("tvm", "tvm"))
    assert wide_results(module) == ["first"]
    narrowed = narrow_parts(module)
    assert wide_results(narrowed) == []
    x = np.random.default_rng(0).standard_normal((4, 6)).astype(ml_dtypes.bfloat16)
    made = np.exp(x.astype(np.float32)).astype(ml_dtypes.bfloat16).astype(np.float32).T.reshape(6, 4)
    expected = (made @ made.T).astype(ml_dtypes.bfloat16)
    for found in run(narrowed, x):
        assert np.array_equal(found, expected)


@pytest.mark.parametrize(("readers", "is_returned"), [(("tvm", "torch"), False), (("tvm",), True)])
def test_what_others_need_wide_stays(readers: tuple[str, ...], is_returned: bool) -> None:
    assert wide_results(narrow_parts(two_parts(readers, is_returned=is_returned))) == ["first"]


def test_what_prepares_weights_is_still_what_main_calls() -> None:
    builder = relax.BlockBuilder()
    w = relax.Var("w", relax.TensorType((4, 6), "float32"))
    with builder.function("prepare_weights", [w], private=True):
        with builder.dataflow():
            result = builder.emit_output(op.sqrt(w))
        prepare = builder.emit_func_output(result)
    w = relax.Var("w", relax.TensorType((4, 6), "float32"))
    with builder.function("main", [w]):
        with builder.dataflow():
            result = builder.emit_output(relax.Call(prepare, [w]))
        builder.emit_func_output(result)
    w_value = np.full((4, 6), 4, np.float32)
    (found,) = run(narrow_parts(builder.get()), w_value)
    assert np.array_equal(found, np.sqrt(w_value))
