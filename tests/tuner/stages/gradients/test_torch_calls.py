"""Gradients through torch calls, within and across stages, are those that torch finds itself."""

import itertools

import numpy as np
import pytest
import tvm
from tvm import relax

torch = pytest.importorskip("torch")

from tuner.errors import UnsupportedOperatorError  # noqa: E402 - after the skip
from tuner.frontend.loss import with_loss  # noqa: E402
from tuner.frontend.torch.program import import_module  # noqa: E402
from tuner.graph.torch_call import read_torch_call, torch_calls_in, write_torch_call  # noqa: E402
from tuner.lowering.lower import build_unscheduled, flat_arrays  # noqa: E402
from tuner.runtime.operator_call import GradientCall, OperatorCall  # noqa: E402
from tuner.stages import build_stages, check_gradients, cut_between, layers_of  # noqa: E402
from tuner.stages.gradients.operator_gradients import gradient_of  # noqa: E402
from tuner.targets.resolution import resolve_target  # noqa: E402

pytestmark = [pytest.mark.tvm, pytest.mark.torch]


class Block(torch.nn.Module):
    """Calls of two results, of complex numbers, of a weight beside an input, and without a gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.nn.Linear(6, 6)
        self.scale = torch.nn.Parameter(torch.rand(6))

    def forward(self, x):
        y = self.inner(x)
        values, places = torch.cummax(y, -1)
        z = torch.hypot(torch.logcumsumexp(values, 1), self.scale)
        width = torch.fft.rfft(z, dim=-1).abs().sum(-1, keepdim=True)
        return x + z + places.float() + torch.histc(y.flatten(), 6) * 0.1 + width


def run(module, arrays):
    target = resolve_target("cpu", num_threads=1)
    machine = relax.VirtualMachine(build_unscheduled(module, target), tvm.cpu())
    return flat_arrays(machine["main"](*[tvm.runtime.tensor(np.array(array)) for array in arrays]))


def test_every_gradient_is_torchs_in_both_halves_of_the_backward() -> None:
    torch.manual_seed(0)
    network = torch.nn.Sequential(Block(), Block(), torch.nn.Linear(6, 5))
    model = with_loss(import_module(network, (torch.randn(4, 6),), "own"))
    stages = build_stages(model, cut_between(layers_of(model), [1]))
    assert len(stages) == 2
    found = check_gradients(model, stages, seed=0, run=run)  # against the module itself, joint and split
    assert found.is_within(1e-5), found
    names = [call.name for stage in stages for call in torch_calls_in(stage.backward.module["main"])]
    assert "torch call aten.cummax gradient" in names
    assert "torch call aten.histc gradient" not in names


def test_what_autograd_has_no_formula_for_is_refused_by_name() -> None:
    class Lost(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(4, 4)

        def forward(self, x):
            return torch.igamma(self.layer(x).exp(), x.exp())

    model = with_loss(import_module(Lost(), (torch.rand(2, 4),), "own"))
    with pytest.raises(
        UnsupportedOperatorError, match=r"torch call aten\.igamma, .* has no gradient under torch either"
    ):
        build_stages(model, ())


FLOATS, WHOLE = relax.TensorType((2, 3), "float32"), relax.TensorType((2,), "int64")
OPERANDS = {
    "floats": lambda: relax.Var("floats", FLOATS),
    "whole numbers": lambda: relax.Var("whole", WHOLE),
    "constant": lambda: relax.const(np.ones((2, 3), "float32")),
}


def parts_of(what, operands, types, gradient):
    """Return a call, its arguments' gradients, and what the variables are bound to that these read."""
    builder = relax.BlockBuilder()
    with builder.function("main", [each for each in operands if isinstance(each, relax.Var)]):
        call = builder.normalize(write_torch_call(what, operands, types))
        parts = gradient_of(relax.Var("result", call.ty), call, gradient, builder)
        builder.emit_func_output(relax.const(0.0, "float32"))
    (block,) = builder.get()["main"].body.blocks or [relax.BindingBlock([])]
    return call, parts, {binding.var: binding.value for binding in block.bindings}


@pytest.mark.parametrize("is_tuple_written_out", [False, True])
@pytest.mark.parametrize("types", [[FLOATS], [WHOLE], [FLOATS, WHOLE], [WHOLE, FLOATS], [FLOATS] * 2])
def test_operands_of_floating_point_alone_are_given_gradients_from_such_results(types, is_tuple_written_out):
    what = OperatorCall(operator="any.default", arguments=())
    floats = tuple(place for place, each in enumerate(types) if each is FLOATS)
    fields = [relax.Var(f"gradient{place}", each) for place, each in enumerate(types)]
    if len(types) == 1:
        gradient = fields[0]
    else:
        gradient = relax.Tuple(fields) if is_tuple_written_out else relax.Var("g", relax.TupleType(types))
    for names in itertools.product(OPERANDS, repeat=3):
        operands = [OPERANDS[name]() for name in names]
        _, parts, bound = parts_of(what, operands, types, gradient)
        assert len(parts) == 2
        assert parts[0] is None
        if not floats or "floats" not in names:
            assert parts[1] is None
            continue
        for place, (name, operand, part) in enumerate(zip(names, operands, parts[1].fields[1:], strict=True)):
            if name != "floats":
                assert part.same_as(operand)
                continue
            found = read_torch_call(bound[part])
            assert found.what == GradientCall(call=what, wanted=place, given=floats)
            tvm.ir.assert_structural_equal(part.ty, FLOATS)
            read, arriving = found.operands[:3], found.operands[3:]
            assert all(one.same_as(other) for one, other in zip(read, operands, strict=True))
            for one, given in zip(arriving, floats, strict=True):
                if len(types) == 1 or is_tuple_written_out:
                    assert one.same_as(fields[given])
                else:
                    assert (bound[one].tuple_value, bound[one].index) == (gradient, given)


def test_what_takes_no_gradient_is_given_none_and_a_gradient_has_none_of_its_own():
    operand, gradient = relax.Var("x", FLOATS), relax.Var("gradient", FLOATS)
    calls = {
        kind: OperatorCall(operator="any.default", arguments=(), gradient=kind)
        for kind in ("none", "missing", "autograd")
    }
    _, parts, bound = parts_of(calls["none"], [operand], [FLOATS], gradient)
    assert parts == (None, None)
    assert not bound
    for what in (calls["missing"], GradientCall(call=calls["autograd"], wanted=0, given=(0,))):
        with pytest.raises(UnsupportedOperatorError, match="no gradient under torch"):
            parts_of(what, [operand], [FLOATS], gradient)
