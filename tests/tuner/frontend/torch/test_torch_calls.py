"""Operators without a converter, and with a wrong one, stay calls of torch, and give what torch gives."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from tvm import relax  # noqa: E402 - after the skip

from tuner.errors import UnsupportedOperatorError  # noqa: E402
from tuner.frontend.converters import CONVERTERS  # noqa: E402
from tuner.frontend.torch.program import import_module  # noqa: E402
from tuner.graph.torch_call import torch_calls_in  # noqa: E402

pytestmark = [pytest.mark.tvm, pytest.mark.torch]


class Apply(torch.nn.Module):
    def __init__(self, function) -> None:
        super().__init__()
        self.function = function

    def forward(self, *inputs):
        return self.function(*inputs)


def imported(function, *inputs):
    return import_module(Apply(function), inputs, "own")


def called(model) -> list[str]:
    return [call.what.name for call in torch_calls_in(model.module["main"])]


def several(x):
    values, places = torch.cummax(x, -1)
    return values * torch.histc(x.flatten(), 5), places


def spectrum(x):
    return torch.fft.irfft(torch.fft.rfft(x.relu(), dim=-1) * 2j, n=5, dim=-1)


def gridded(x):
    grid = torch.stack([x[:3, :3].tanh()] * 3, -1)[None, None]
    return torch.nn.functional.grid_sample(
        x.reshape(1, 1, 2, 2, 5), grid, padding_mode="border", align_corners=False
    )


CASES = {
    "two results of two types": (several, ["aten.cummax", "aten.histc"]),
    "complex numbers between": (spectrum, None),
    "taken apart into primitives": (lambda x: torch.hypot(x, x.flip(0)), ["aten.hypot"]),
    "a volume": (gridded, None),
    "results that no converter gives": (lambda x: torch.native_layer_norm(x, (5,), None, None, 1e-5), None),
    "no gradient": (lambda x: torch.nextafter(x, x + 1), ["aten.nextafter"]),
}


@pytest.mark.parametrize("name", CASES)
def test_a_call_gives_what_torch_gives(name: str, run_model, assert_close) -> None:
    function, names = CASES[name]
    x = torch.from_numpy(np.random.default_rng(1).standard_normal((4, 5)).astype("float32"))
    model = imported(function, x)
    assert called(model)
    if names is not None:
        assert called(model) == names
    expected = function(x)
    found = run_model(model, [x.numpy()], model.parameters)
    for mine, true in zip(found, expected if isinstance(expected, tuple) else [expected], strict=True):
        assert str(mine.dtype) == str(true.dtype).removeprefix("torch.")
        assert_close(mine, true.numpy())


@pytest.mark.parametrize(
    "wrong",
    [
        lambda call: call.emit(relax.op.cumsum(call["self"], axis=-1)),  # bool in place of int64
        lambda call: call.emit(relax.op.sum(call.operand("self"))),  # another shape
    ],
)
def test_a_converter_that_gives_another_type_or_shape_gives_way(wrong, run_model, monkeypatch) -> None:
    monkeypatch.setitem(CONVERTERS, "cumsum.default", wrong)
    x = torch.tensor([[True, False, True], [True, True, True]])
    model = imported(lambda x: x.cumsum(-1) * 2, x)
    assert called(model) == ["aten.cumsum"]
    (found,) = run_model(model, [x.numpy()], model.parameters)
    np.testing.assert_array_equal(found, (x.cumsum(-1) * 2).numpy())


def test_gradients_that_autograd_lacks_are_known_while_importing() -> None:
    x = torch.rand(3, 4)
    model = imported(lambda x: torch.igamma(x, x) + torch.histc(x, 4) + torch.logcumsumexp(x, 0), x)
    assert [call.what.gradient for call in torch_calls_in(model.module["main"])] == [
        "missing",
        "none",
        "autograd",
    ]


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (lambda x: torch.bernoulli(x), r"it draws random numbers; give what is drawn as an input$"),
        (lambda x: torch.nonzero(x), r"depends on values"),
    ],
)
def test_what_no_call_can_express_is_refused(function, reason: str) -> None:
    with pytest.raises(UnsupportedOperatorError, match=rf"is the first that cannot be .*{reason}"):
        imported(function, torch.rand(3, 4))
