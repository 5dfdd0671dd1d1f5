"""Programs brought to fixed shapes and to operators that have converters, in one pass."""

import pytest

torch = pytest.importorskip("torch")

from tuner.errors import UnknownNameError  # noqa: E402 - after the skip
from tuner.frontend.torch.decomposition import decompose, has_converter, require_shapes  # noqa: E402

pytestmark = [pytest.mark.tvm, pytest.mark.torch]


class Pairs(torch.nn.Module):
    def forward(self, x, y):
        batch, length = x.shape
        z = torch.nn.functional.silu(x.reshape(batch * length)).reshape(batch, length)
        return torch.cat([z, y], 1).logsumexp(-1) + torch.arange(length).sum()


@pytest.fixture(scope="module")
def open_program():
    batch = torch.export.Dim("batch", max=64)
    dims = ({0: batch, 1: torch.export.Dim("length", max=64)}, {0: batch})
    return torch.export.export(Pairs(), (torch.randn(2, 3), torch.randn(2, 4)), dynamic_shapes=dims)


def test_open_extents_become_numbers_and_the_program_stays_as_it_was(open_program) -> None:
    fixed = decompose(open_program, "pairs", shapes={"x": (5, 7), "y": (5, 4)})
    calls = [node for node in fixed.graph.nodes if node.op == "call_function"]
    assert all(isinstance(node.meta["val"], torch.Tensor) for node in calls)
    assert all(isinstance(n, int) for node in calls for n in node.meta["val"].shape)
    assert all(has_converter(node.target) for node in calls)
    names = {node.target.__name__ for node in calls}
    assert "silu.default" in names  # is left whole
    assert "logsumexp.default" not in names  # is taken apart
    declared = next(node for node in open_program.graph.nodes if node.op == "placeholder").meta["val"].shape
    assert not all(isinstance(extent, int) for extent in declared)


@pytest.mark.parametrize(
    ("shapes", "error", "message"),
    [
        ({"x": (2, 3)}, ValueError, r"input 'y' of pairs has extents that the file leaves open"),
        ({"x": (2, 3), "y": (3, 4)}, ValueError, r"shape \(3, 4\) of input 'y'.*in another input"),
        (
            {"x": (2, 3), "y": (2, 5)},
            ValueError,
            r"shape \(2, 5\) of input 'y' does not fit: pairs was exported for",
        ),
        ({"x": (2, 3), "y": (2, 4), "z": (1,)}, UnknownNameError, "no input 'z'"),
    ],
)
def test_shapes_that_do_not_fit_are_refused(open_program, shapes, error, message: str) -> None:
    with pytest.raises(error, match=message):
        require_shapes(open_program, "pairs", shapes)


def test_what_raises_on_a_bad_status_stays_whole() -> None:
    """Taken apart, the part that raises has an effect, and the program takes a token for it."""

    class Solved(torch.nn.Module):
        def forward(self, x):
            return torch.linalg.solve(x, torch.linalg.inv(x) + 1)

    whole = torch.export.export(Solved(), (torch.eye(3),), strict=False)
    program = decompose(whole, "solved", shapes={})
    assert len(program.graph_signature.input_specs) == 1
    names = [node.target.__name__ for node in program.graph.nodes if node.op == "call_function"]
    assert {"linalg_inv.default", "linalg_solve.default"} <= set(names)
