"""`torch.compile` with the backend: equal values, weights that change, and what stays torch's own."""

from __future__ import annotations

import tomllib
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("tvm")

from tessel.compiling import dynamo  # noqa: E402
from tests.samples.programs.compiled_modules import draw_nested, nested, perceptron  # noqa: E402 - after the skips

pytestmark = [pytest.mark.torch, pytest.mark.tvm]

OPTIONS = {"backends": ["tvm"], "threads": 1}


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.setattr(dynamo, "_told", set())
    monkeypatch.chdir(tmp_path)
    torch._dynamo.reset()
    yield
    assert list(tmp_path.iterdir()) == [], "nothing is measured, so there is nothing to keep"
    torch._dynamo.reset()


def test_torch_finds_the_backend_by_its_entry_point() -> None:
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())["project"]
    assert project["entry-points"]["torch_dynamo_backends"] == {"tessel": "tessel.compiling.dynamo:tessel"}
    assert callable(dynamo.tessel)


def test_a_graph_for_inference_runs_as_a_program_and_follows_its_weights() -> None:
    module, _ = nested()
    compiled = torch.compile(module, backend=dynamo.tessel, options=OPTIONS)
    rng = torch.Generator().manual_seed(3)
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("error", RuntimeWarning)
        for _ in range(5):
            inputs = draw_nested(rng)
            found, expected = compiled(**inputs), module(**inputs)
            torch.testing.assert_close(found["logits"], expected["logits"], rtol=1e-4, atol=1e-5)
            torch.testing.assert_close(found["rest"][1][0], expected["rest"][1][0], rtol=1e-4, atol=1e-5)
            assert found["rest"][1][1:] == [3, None]
        module.head.weight.mul_(3)
        torch.testing.assert_close(
            compiled(**inputs)["logits"], module(**inputs)["logits"], rtol=1e-4, atol=1e-5
        )


def test_breaks_of_a_graph_stay_pythons() -> None:
    module, example = perceptron()

    class Broken(torch.nn.Module):  # type: ignore[misc, name-defined]
        def forward(self, data: Any) -> Any:
            hidden = module(data)
            torch._dynamo.graph_break()
            return module(hidden) + 1

    compiled = torch.compile(Broken(), backend=dynamo.tessel, options=OPTIONS)
    with torch.no_grad():
        torch.testing.assert_close(compiled(example), Broken()(example), rtol=1e-4, atol=1e-5)


def test_what_cannot_be_compiled_stays_torchs_own_and_is_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch._dynamo, "lookup_backend", lambda name: lambda graph, inputs: graph.forward)

    def writes(data: torch.Tensor) -> torch.Tensor:
        data.add_(1)
        return data * 2

    compiled = torch.compile(writes, backend=dynamo.tessel, options=OPTIONS)
    with torch.no_grad():
        with pytest.warns(RuntimeWarning, match="writes") as told:
            assert compiled(torch.ones(3)).tolist() == [4.0] * 3
        with warnings.catch_warnings():
            warnings.simplefilter("error", RuntimeWarning)
            assert compiled(torch.ones(4)).tolist() == [4.0] * 4
    assert len(told) == 1


@pytest.mark.parametrize(
    ("text", "seconds"), [("2min", 120.0), ("90s", 90.0), (5, 5.0), ("1.5m", 90.0), ("250ms", 0.25)]
)
def test_a_duration_is_read(text: str | int, seconds: float) -> None:
    assert dynamo._seconds(text) == seconds


@pytest.mark.parametrize(
    ("options", "message"),
    [({"tune": "soon"}, "tune is 'soon'"), ({"thread": 1}, "unexpected keyword argument 'thread'")],
)
def test_wrong_options_are_errors(options: dict[str, Any], message: str) -> None:
    module, example = perceptron()
    with torch.no_grad(), pytest.raises(Exception, match=message):
        torch.compile(module, backend=dynamo.tessel, options=options)(example)
