"""A function that is read and written again is the same function."""

from dataclasses import replace

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import relax
from tvm.relax import op
from tvm.script import ir as I
from tvm.script import relax as R
from tvm.script import tirx as T

from tuner.errors import TunerError, UnsupportedOperatorError
from tuner.frontend import load_model
from tuner.frontend.model import InputSpec, Model
from tuner.stages import build_stages
from tuner.stages.program import operator_name, read_program, tensor_info, write_module

pytestmark = pytest.mark.tvm

X = InputSpec(name="x", shape=(2, 4), dtype="float32")


def write_again(program):
    return write_module(
        program.bindings,
        inputs=(*program.inputs, *program.parameters),
        outputs=program.outputs,
        names=program.names,
        functions=program.functions,
    )


def test_writing_all_bindings_gives_the_function_back():
    model = load_model("mlp:tiny", training=True)
    module = write_again(read_program(model))
    # What is read is a tensor, what is written a tuple of it.
    again = replace(model, module=module)
    assert tvm_ffi.structural_equal(write_again(read_program(again)), module)


def test_names_are_unique_and_those_of_the_model():
    model = load_model("gpt2:tiny", training=True)
    program = read_program(model)
    assert len(set(program.names.values())) == len(program.names)
    assert [program.names[variable] for variable in program.inputs] == ["input_ids", "labels"]
    assert tuple(program.names[variable] for variable in program.parameters) == model.parameter_names


def test_tuples_written_out_are_taken_apart(make_model):
    def build(emit, x):
        pair = emit(relax.Tuple([x, emit(op.exp(x))]))
        return op.negative(emit(relax.TupleGetItem(pair, 1)))

    program = read_program(make_model(build, inputs=[X], parameters={}, training=False))
    assert [operator_name(binding.value) for binding in program.bindings][-1] == "negative"
    assert program.bindings[-1].reads == (program.bindings[0].var,)


@pytest.mark.parametrize(
    ("dtype", "num_bytes"), [("float32", 32), ("bool", 8), ("bfloat16", 16), ("int64", 64)]
)
def test_bytes_of_a_tensor(dtype, num_bytes):
    assert tensor_info(relax.Var("x", relax.TensorType((2, 4), dtype)), "x").num_bytes == num_bytes


def test_a_shape_that_is_not_static_is_named():
    batch = tvm.tirx.Var("n", "int64")
    with pytest.raises(TunerError, match=r"'x' has shape .* bind it with --shape"):
        tensor_info(relax.Var("x", relax.TensorType((batch, 4), "float32")), "x")


@I.ir_module(s_tir=True)
class WithKernel:
    @T.prim_func(s_tir=True)
    def double(x: T.Buffer((2, 4), "float32"), y: T.Buffer((2, 4), "float32")):
        for i, j in T.grid(2, 4):
            with T.sblock("double"):
                row, column = T.axis.remap("SS", [i, j])
                y[row, column] = x[row, column] * T.float32(2)

    @R.function
    def main(x: R.Tensor((2, 4), "float32")):
        cls = WithKernel
        with R.dataflow():
            a = R.exp(x)
            b = R.call_tir(cls.double, (a,), out_ty=R.Tensor((2, 4), "float32"))
            c = R.negative(b)
            R.output(c)
        return c


def test_kernels_that_bindings_call_come_along_and_have_no_gradient(run):
    model = Model(name="k", module=WithKernel, inputs=(X,), parameter_names=(), module_paths=("0", "0", "1"))
    first, second = build_stages(model, (2,))
    x = np.ones((2, 4), "float32")
    (middle,) = run(first.forward.module, [x])
    (result,) = run(second.forward.module, [middle])
    np.testing.assert_allclose(result, -2 * np.exp(x), rtol=1e-6)


@I.ir_module
class WithBranch:
    @R.function
    def main(x: R.Tensor((), "bool"), y: R.Tensor((2,), "float32")):
        if x:  # noqa: SIM108 - TVMScript knows no conditional expression
            z = R.exp(y)
        else:
            z = R.negative(y)
        return z


def test_control_flow_is_refused():
    inputs = (InputSpec(name="x", shape=(), dtype="bool"), InputSpec(name="y", shape=(2,), dtype="float32"))
    model = Model(name="b", module=WithBranch, inputs=inputs, parameter_names=(), module_paths=("",))
    with pytest.raises(UnsupportedOperatorError, match="control flow cannot be cut"):
        read_program(model)
