"""Trees of arguments and results: flattened, rebuilt, and read from exported programs."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("tvm")

from tuner.frontend.torch.call_structure import call_structure, own_results  # noqa: E402 - after the skips
from tuner.runtime.call_structure import CallStructure, flat_structure, rebuilder  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.tvm]


class Pair(NamedTuple):
    first: Any
    second: Any


class Module(torch.nn.Module):  # type: ignore[misc, name-defined]
    def forward(self, x: Any, count: int, pair: Any, *, mask: Any) -> Any:
        return {"sum": x * count + pair[0], "rest": Pair((pair[1] * mask, 3), [x, None])}


@pytest.fixture(scope="module")
def exported() -> Any:
    ones = torch.ones(2)
    return torch.export.export(Module(), (ones, 2, (ones, ones)), {"mask": ones})


def test_an_exported_call_is_flattened_by_position_and_name(exported: Any) -> None:
    call = call_structure(exported)
    assert (call.names, tuple(call.keywords)) == (("x", "count", "pair"), ("mask",))
    assert call.flatten(["x", 2], {"pair": ("a", "b"), "mask": "m"}, 4) == ["x", "a", "b", "m"]
    with pytest.raises(TypeError, match="input 'mask' is missing"):
        call.flatten(["x", 2, ("a", "b")], {}, 4)
    with pytest.raises(ValueError, match="input 'count' is 3, but the program was compiled for 2"):
        call.flatten(["x", 3, ("a", "b")], {"mask": "m"}, 4)
    assert not call.is_flat


def test_results_are_rebuilt_and_in_ones_own_classes_where_these_are_known(exported: Any) -> None:
    call = call_structure(exported)
    plain = {"sum": "s", "rest": (("p", 3), ["x", None])}
    assert rebuilder(call.results)(["s", "p", "x"]) == plain
    rebuild = own_results(exported, call.results)
    assert rebuild is not None
    assert isinstance(rebuild(["s", "p", "x"])["rest"], Pair)


def test_a_structure_is_plain_data(exported: Any) -> None:
    call = call_structure(exported)
    assert msgspec.json.decode(msgspec.json.encode(call), type=CallStructure) == call


def test_a_flat_call_takes_tensors_and_gives_one_or_a_tuple() -> None:
    call = flat_structure(("a", "b"), 2)
    assert call.is_flat
    assert call.flatten((), {"b": 2, "a": 1}, 2) == [1, 2]
    assert rebuilder(call.results)([3, 4]) == (3, 4)
    assert rebuilder(flat_structure(("a",), 1).results)([3]) == 3
