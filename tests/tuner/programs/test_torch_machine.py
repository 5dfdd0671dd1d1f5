"""Torch runs a Relax function operator by operator: the same values as TVM, and what it lacks by name."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")
tvm = pytest.importorskip("tvm")

from run_module import plain_machine  # noqa: E402 - after the skip
from tvm import relax  # noqa: E402 - after the skip

from tuner.errors import UnsupportedOperatorError  # noqa: E402 - after the skip
from tuner.programs.torch_machine import TorchProgram  # noqa: E402 - after the skip

pytestmark = [pytest.mark.tvm, pytest.mark.torch]

op = relax.op
X = np.linspace(-2, 2, 24, dtype=np.float32).reshape(2, 3, 4)


def written(function, *, shape=X.shape, dtype="float32"):
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType(shape, dtype))
    with builder.function("main", [x]):
        with builder.dataflow():
            result = builder.emit_output(builder.normalize(function(x)))
        builder.emit_func_output(result)
    return builder.get()


@pytest.mark.parametrize(
    "function",
    [
        lambda x: op.clip(x, -1, 1),
        lambda x: op.nn.softplus(x, 2.0, 0.5),
        lambda x: op.expand_dims(x, [0, 2, -1]),
        lambda x: op.squeeze(op.expand_dims(x, [0, 2]), [2]),
        lambda x: op.nn.pad(x, (0, 1, 2, 0, 1, 1), pad_value=3.0),
        lambda x: op.strided_slice(x, [0, 2], [1, 0], [2, 4], [1, 2]),
        lambda x: op.variance(x, [1], keepdims=True),
        lambda x: op.take(x, relax.const(np.array([[2, 0], [1, 1]])), 1),
        lambda x: op.concat([x, op.full((2, 1, 4), relax.const(2.5, "float32"), "float32")], 1),
        lambda x: op.add(x, op.astype(op.arange(4, dtype="int64"), "float32")),
        lambda x: op.astype(op.argmax(x, 1), "float32"),
        lambda x: op.cumsum(x, 2),
        lambda x: op.tril(x, -1),
        lambda x: op.floor_mod(x, relax.const(0.7, "float32")),
        lambda x: op.collapse_sum_to(op.broadcast_to(x, (5, 2, 3, 4)), (2, 1, 4)),
    ],
)
def test_values_are_tvms(function) -> None:
    module = written(function)
    (found,) = TorchProgram(module, is_checked=True).run([torch.from_numpy(X)])
    machine = plain_machine(module)
    expected = machine["main"](tvm.runtime.tensor(X)).numpy()
    assert found.dtype == getattr(torch, str(expected.dtype))
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-6, atol=1e-6)


def test_what_torch_lacks_is_named_when_a_program_is_made() -> None:
    with pytest.raises(
        UnsupportedOperatorError, match=r"operator image\.resize2d has no counterpart in torch"
    ):
        TorchProgram(written(lambda x: op.image.resize2d(x, (4, 4)), shape=(1, 1, 2, 2)))
