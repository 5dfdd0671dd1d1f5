"""Gradients through torch calls, within and across stages, are those that torch finds itself."""

import numpy as np
import pytest
import tvm
from tvm import relax

torch = pytest.importorskip("torch")

from tuner.errors import UnsupportedOperatorError  # noqa: E402 - after the skip
from tuner.frontend.loss import with_loss  # noqa: E402
from tuner.frontend.torch.program import import_module  # noqa: E402
from tuner.graph.torch_call import torch_calls_in  # noqa: E402
from tuner.lowering.lower import build_unscheduled, flat_arrays  # noqa: E402
from tuner.stages import build_stages, check_gradients, cut_between, layers_of  # noqa: E402
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
