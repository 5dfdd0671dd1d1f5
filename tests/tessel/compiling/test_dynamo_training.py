"""`torch.compile` with the backend while training: values, gradients and buffers are those of torch alone."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("tvm")

from tessel.compiling import dynamo  # noqa: E402 - after the skips

pytestmark = [pytest.mark.torch, pytest.mark.tvm]

OPTIONS = {"backends": ["tvm", "torch"], "threads": 1}


class Classifier(torch.nn.Module):  # type: ignore[misc, name-defined]
    """Convolution, statistics that are written, a table, a normalisation, and dropout where asked."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.convolution = torch.nn.Conv2d(3, 8, 3, padding=1)
        self.norm = torch.nn.BatchNorm2d(8)
        self.table = torch.nn.Embedding(5, 8)
        self.dropout = torch.nn.Dropout(dropout)
        self.head = torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.LayerNorm(4))

    def forward(self, image: Any, labels: Any) -> Any:
        features = torch.nn.functional.gelu(self.norm(self.convolution(image))).mean((2, 3))
        return torch.softmax(self.head(self.dropout(features + self.table(labels))), -1)


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.setattr(dynamo, "_told", set())
    monkeypatch.chdir(tmp_path)
    torch._dynamo.reset()
    yield
    assert list(tmp_path.iterdir()) == [], "nothing is measured, so there is nothing to keep"
    torch._dynamo.reset()


@pytest.fixture
def compiled_graphs(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Return the list to which each program that is compiled is added."""
    found: list[Any] = []

    def noting(*args: Any, **kwargs: Any) -> Any:
        found.append(compile_within(*args, **kwargs))
        return found[-1]

    compile_within = dynamo.compile_within
    monkeypatch.setattr(dynamo, "compile_within", noting)
    return found


def draw(batch: int, seed: int) -> tuple[Any, Any]:
    rng = torch.Generator().manual_seed(seed)
    return torch.randn(batch, 3, 8, 8, generator=rng), torch.randint(0, 5, (batch,), generator=rng)


def train(module: Any, run: Any, batches: list[int]) -> list[list[Any]]:
    """Return loss, the input's gradient, gradients and buffers of each step of gradient descent."""
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    steps = []
    for seed, batch in enumerate(batches):
        image, labels = draw(batch, seed)
        image.requires_grad_()
        torch.manual_seed(seed)
        optimizer.zero_grad()
        loss = (run(image, labels) ** 2).sum()
        loss.backward()
        gradients = [each.grad.clone() for each in module.parameters()]
        steps.append([loss.detach(), image.grad, *gradients, *(each.clone() for each in module.buffers())])
        optimizer.step()
    return steps


def assert_equal(found: list[list[Any]], expected: list[list[Any]]) -> None:
    for one, other in zip(found, expected, strict=True):
        for mine, theirs in zip(one, other, strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-3, atol=2e-6)


def test_forward_and_backward_are_programs_with_the_gradients_of_torch(compiled_graphs: list[Any]) -> None:
    torch.manual_seed(0)
    module = Classifier(0.0)
    own = copy.deepcopy(module)
    compiled = torch.compile(module, backend=dynamo.tessel, options=OPTIONS)
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        assert_equal(train(module, compiled, [2, 2, 2]), train(own, own, [2, 2, 2]))
    assert len(compiled_graphs) == 2, "weights are inputs: a step of the optimizer compiles nothing again"
    backward = {name: part.backend for part in compiled_graphs[1].manifest.parts for name in part.operators}
    assert backward["torch call aten.convolution_backward"] == "torch"
    assert "tvm" in backward.values()


@pytest.mark.slow
def test_another_batch_is_another_program_and_random_numbers_stay_torchs(compiled_graphs: list[Any]) -> None:
    torch.manual_seed(0)
    module = Classifier(0.5)
    own = copy.deepcopy(module)
    compiled = torch.compile(module, backend=dynamo.tessel, options=OPTIONS)
    batches = [2, 3, 2, 3]
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        assert_equal(train(module, compiled, batches), train(own, own, batches))
    assert len(compiled_graphs) >= 6, "two pieces of a forward and a backward, for two shapes"


def test_random_numbers_are_drawn_by_torch_between_programs(compiled_graphs: list[Any]) -> None:
    weight = torch.ones(6, 6, requires_grad=True)

    def drops(data: Any) -> Any:
        return torch.nn.functional.dropout(data @ weight, 0.5).relu().sum()

    data = torch.arange(1.0, 13).view(2, 6)
    gradients = []
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        for run in (torch.compile(drops, backend=dynamo.tessel, options=OPTIONS), drops):
            torch.manual_seed(1)
            run(data).backward()
            gradients.append(weight.grad.clone())
            weight.grad = None
    torch.testing.assert_close(*gradients)
    assert len(compiled_graphs) >= 2


def test_a_backward_that_cannot_be_a_program_stays_torchs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch._dynamo, "lookup_backend", lambda name: lambda graph, inputs: graph.forward)
    weight = torch.full((3, 5, 5), 0.5, requires_grad=True)

    def filtered(data: Any) -> Any:
        return torch.nn.functional.conv1d(data, weight).square().sum()

    only_tvm = {"backends": ["tvm"], "threads": 1}
    compiled = torch.compile(filtered, backend=dynamo.tessel, options=only_tvm)
    data = torch.arange(40.0).view(1, 5, 8)
    with pytest.warns(RuntimeWarning, match="stays torch's own, because .*convolution_backward"):
        compiled(data).backward()
    found, weight.grad = weight.grad, None
    filtered(data).backward()
    torch.testing.assert_close(found, weight.grad)


def test_open_shapes_are_compiled_one_by_one_up_to_a_number(
    compiled_graphs: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dynamo, "_MAX_SHAPES", 2)
    module = torch.nn.Linear(4, 3)
    compiled = torch.compile(module, backend=dynamo.tessel, options=OPTIONS, dynamic=True)
    with torch.no_grad(), warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for rows in (5, 6, 5, 7):
            data = torch.randn(rows, 4)
            torch.testing.assert_close(compiled(data), module(data))
    assert ["it has met 2 other shapes" in str(each.message) for each in told] == [True]
    assert [program.manifest.inputs[0].shape for program in compiled_graphs] == [(5, 4), (6, 4)]
