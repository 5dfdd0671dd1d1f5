"""Torch calls as texts and as bindings: what is written is read again, and nothing else is taken for one."""

import math

import pytest
from tvm import relax

from tuner.graph.dataflow import DataflowGraph
from tuner.graph.torch_call import read_torch_call, torch_calls_in, write_torch_call
from tuner.lowering.workload_of import workload_of
from tuner.runtime.operator_call import (
    GradientCall,
    OperatorCall,
    decode_gradient_call,
    decode_operator_call,
    encode_number,
    encode_operator_call,
)

pytestmark = pytest.mark.tvm

CALL = OperatorCall(operator="histc.default", arguments=({"tensor": 0}, 6), keywords={"min": 0})
VECTOR = relax.TensorType([6], "float32")


def function_of(expression, *parameters):
    builder = relax.BlockBuilder()
    with builder.function("main", list(parameters)):
        with builder.dataflow():
            result = builder.emit_output(expression)
        builder.emit_func_output(result)
    return builder.get()["main"]


def test_texts_hold_calls_and_their_gradients() -> None:
    gradient = GradientCall(call=CALL, wanted=0, given=(0,))
    assert decode_operator_call(encode_operator_call(CALL)) == CALL
    assert decode_gradient_call(encode_operator_call(gradient)) == gradient
    assert [encode_number(number) for number in (True, 2, 0.5)] == [True, 2, 0.5]
    assert [encode_number(number) for number in (math.inf, -math.inf, math.nan)] == [
        {"number": "inf"},
        {"number": "-inf"},
        {"number": "nan"},
    ]


@pytest.mark.parametrize("text", ["", "[]", '{"operator": "x", "arguments": [], "module": "os"}'])
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        decode_operator_call(text)


def test_calls_are_found_in_functions_and_named_in_graphs() -> None:
    x = relax.Var("x", VECTOR)
    gradient = GradientCall(call=CALL, wanted=0, given=(0,))
    function = function_of(write_torch_call(CALL, [x], [VECTOR]), x)
    (found,) = torch_calls_in(function)
    assert (found.what, list(found.operands), found.name) == (CALL, [x], "torch call aten.histc")
    (node,) = DataflowGraph.from_relax(function).nodes
    assert node.operator == "torch call aten.histc"
    backward = read_torch_call(write_torch_call(gradient, [x, x], [VECTOR]))
    assert backward is not None
    assert backward.name == "torch call aten.histc gradient"
    assert list(torch_calls_in(function_of(relax.call_dps_packed("other", [x], out_ty=VECTOR), x))) == []


def test_arguments_that_are_no_tensors_tell_workloads_apart() -> None:
    x = relax.Var("x", VECTOR)
    others = [CALL, OperatorCall(operator="histc.default", arguments=({"tensor": 0}, 7))]
    functions = [function_of(write_torch_call(each, [x], [VECTOR]), x) for each in others]
    assert len({workload_of(function).fingerprint for function in functions}) == 2
