"""Functions with a backward of their own train as under torch, with their own gradient, in stages too."""

import pytest

torch = pytest.importorskip("torch")

import numpy as np  # noqa: E402 - after the skip
from torch import nn  # noqa: E402

from benchmarks.architectures.training import check_training  # noqa: E402
from tests.samples.programs.imported_models import Tripled  # noqa: E402
from tuner.errors import UnsupportedOperatorError  # noqa: E402
from tuner.frontend.loading import for_training  # noqa: E402
from tuner.frontend.torch.own_functions import functions_kept, own_function  # noqa: E402
from tuner.frontend.torch.program import import_module  # noqa: E402
from tuner.graph.torch_call import (  # noqa: E402
    torch_calls_in,
)
from tuner.runtime.call_arguments import replay  # noqa: E402
from tuner.runtime.operator_call import (  # noqa: E402
    RecordedStep,
    Recording,
)

pytestmark = [pytest.mark.tvm, pytest.mark.torch]

triple = Tripled.apply


class Scaled(torch.autograd.Function):
    """A product of two tensors and a number, whose second gradient is left out; sets its context up apart."""

    @staticmethod
    def forward(x, y, factor):
        return x * y * factor, x.detach() + 1

    @staticmethod
    def setup_context(ctx, inputs, output):
        x, y, ctx.factor = inputs
        ctx.save_for_backward(x, y)

    @staticmethod
    def backward(ctx, first, second):
        x, y = ctx.saved_tensors
        gradient = torch.zeros_like(x)
        gradient.add_(first * y * ctx.factor + second)  # changes what it made
        return gradient.clamp(-0.01, 0.01), (first * x * ctx.factor).sum(0), None


class Reversed(torch.autograd.Function):
    """The identity with the gradient's sign turned: what it gives is what it was given."""

    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        return -gradient


class Random(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        return gradient * torch.rand_like(gradient)


class Model(nn.Module):
    def __init__(self, function) -> None:
        super().__init__()
        self.first, self.last, self.function = nn.Linear(6, 6), nn.Linear(6, 5), function
        self.weight = nn.Parameter(torch.rand(6))

    def forward(self, x):
        return self.last(self.function(self, self.first(x)))


def scaled(model, x):
    one, other = Scaled.apply(x, model.weight, 0.5)
    return one + other


def several(model, x):
    """Call functions twice, by a name bound before, with two tensors and a number, and the identity."""
    return Reversed.apply(scaled(model, triple(Tripled.apply(x) * model.weight)))


def built(function):
    torch.manual_seed(0)
    return import_module(Model(function), (torch.randn(4, 6),), "own")


@pytest.mark.slow
def test_stages_have_the_functions_own_gradients() -> None:
    finding = check_training(built(several), 2)
    assert finding.outcome == "equal", finding.reason


@pytest.mark.slow
def test_a_lost_backward_would_be_seen(monkeypatch) -> None:
    model = built(lambda s, x: Reversed.apply(x) + s.weight)
    (call,) = torch_calls_in(for_training(model).module["main"])
    assert call.name == "torch call Reversed"
    monkeypatch.setattr(
        "tuner.runtime.torch_operator_calls._recorded_gradient",
        lambda call, wanted, operands, gradients: gradients[0],
    )
    assert check_training(model, 2).outcome == "wrong"


def test_inference_runs_the_operators_of_the_forward() -> None:
    assert not list(torch_calls_in(built(several).module["main"]))


def test_what_no_call_of_torch_may_do_is_refused_by_name() -> None:
    model = built(lambda s, x: Random.apply(x))
    with pytest.raises(UnsupportedOperatorError, match=r"Random.*it draws random numbers.*--infer"):
        for_training(model)


def test_recordings_give_what_the_function_gives() -> None:
    x, y = torch.randn(4, 6, requires_grad=True), torch.rand(6, requires_grad=True)
    with functions_kept([Scaled], lambda: Scaled.apply(x, y, 0.5)):
        program = torch.export.export(Model(scaled), (x.detach(),), strict=False)
    (node,) = [each for each in program.graph.nodes if own_function(each.target) is not None]
    recorded = own_function(node.target).recorded
    one, other = Scaled.apply(x, y, 0.5)
    gradients = torch.randn(4, 6), torch.randn(4, 6)
    expected = torch.autograd.grad([one, other], [x, y], gradients)
    found = replay(recorded.backward, [x.detach(), y.detach(), *gradients])
    for mine, true in zip([*replay(recorded.forward, [x, y]), *found], [one, other, *expected], strict=True):
        np.testing.assert_allclose(mine.detach(), true.detach(), rtol=1e-6)


@pytest.mark.parametrize("operator", ["as_strided.default", "add_.Tensor", "rand_like.default", "save.x"])
def test_a_recording_runs_only_what_a_call_of_torch_may_name(operator: str) -> None:
    step = RecordedStep(operator=operator, arguments=({"tensor": 0},))
    with pytest.raises(ValueError, match=operator.partition(".")[0]):
        replay(Recording(steps=(step,), results=(1,)), [torch.zeros(2)])
