"""Layers that take one example without a batch are imported, partitioned and trained as torch has them."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")
nn = torch.nn

from benchmarks.architectures.given_prices import BACKENDS, MIXED  # noqa: E402 - it imports torch
from benchmarks.architectures.partition import check_partitions  # noqa: E402 - as above
from benchmarks.architectures.training import check_training  # noqa: E402 - as above
from tuner.frontend.torch.program import import_module  # noqa: E402 - as above

pytestmark = [pytest.mark.tvm, pytest.mark.torch]


class OneImage(nn.Module):
    """Convolutions of an image of three axes, and logits for each place."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 3, stride=2, padding=1)
        self.depthwise = nn.Conv2d(4, 4, 3, padding=1, groups=4, bias=False)
        self.pool = nn.MaxPool2d(2)
        self.up = nn.ConvTranspose2d(4, 6, 2, stride=2)
        self.head = nn.Linear(6, 5)

    def forward(self, x):
        x = torch.relu(self.stem(x))
        x = self.up(self.pool(x + self.depthwise(x)))
        return self.head(x.flatten(1).T)


class OneLine(nn.Module):
    """Convolutions of a line of two axes, and logits for each place."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv1d(3, 4, 3, stride=2, padding=1)
        self.next = nn.Conv1d(4, 6, 3)
        self.head = nn.Linear(6, 5)

    def forward(self, x):
        return self.head(self.next(torch.relu(self.stem(x))).T)


CASES = {"image": (OneImage, (3, 12, 12)), "line": (OneLine, (3, 13))}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if name == "image" else ()) for name in CASES]
)
def test_partitions_of_one_example_give_torchs_values(name) -> None:
    module, example = drawn(name)
    model = import_module(module, (example,), name)
    with torch.no_grad():
        expected = [module(example).numpy()]
    finding = check_partitions(model, [example.numpy()], expected, (*BACKENDS, MIXED))
    assert finding.outcome == "equal", finding.reason


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if name == "line" else ()) for name in CASES]
)
def test_stages_of_one_example_give_torchs_gradients(name) -> None:
    module, example = drawn(name)
    finding = check_training(import_module(module, (example,), name), 2)
    assert finding.outcome == "equal", finding.reason


def drawn(name):
    """Return a case's module with weights drawn, and an example."""
    torch.manual_seed(0)
    build, shape = CASES[name]
    rng = np.random.default_rng(0)
    return build().eval(), torch.from_numpy(rng.standard_normal(shape).astype(np.float32))
