"""Indices of torch: its values, and nothing read or written outside a tensor."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from tuner.errors import UnsupportedOperatorError  # noqa: E402 - after the skip
from tuner.frontend.torch.program import import_module  # noqa: E402

pytestmark = [pytest.mark.tvm, pytest.mark.torch]

N = torch.tensor
X = torch.arange(60.0).reshape(3, 5, 4)
ROWS, COLUMNS, LAST = N([0, -1, 2]), N([1, -1, -5]), N([1, -1, -4])


class Together(torch.nn.Module):
    """Functions of one tensor and their own further inputs: exported and compiled once for all of them."""

    def __init__(self, *functions) -> None:
        super().__init__()
        self.functions = functions

    def forward(self, x, inputs):
        return tuple(function(x, *own) for function, own in zip(self.functions, inputs, strict=True))


CASES = {
    "last of an axis": (lambda x: x[:, -1], (X,)),
    "last row": (lambda x: x[-1], (X,)),
    "last of the last axis": (lambda x: x[..., -1], (X,)),
    "last but one": (lambda x: x.select(-1, -2), (X,)),
    "negative rows": (lambda x, i: x[i], (X, ROWS)),
    "negative columns": (lambda x, i: x[:, i], (X, COLUMNS)),
    "a table of negative columns": (lambda x, i: x[:, i], (X, N([[0, -1], [-3, 2]]))),
    "constants": (lambda x: x[N([0, -1])], (X,)),
    "32 bits": (lambda x, i: x[i], (X, ROWS.int())),
    "pairs": (lambda x, i, j: x[i, j], (X, ROWS, COLUMNS)),
    "triples": (lambda x, i, j: x[i, j, j], (X, ROWS, LAST)),
    "pairs behind": (lambda x, i, j: x[:, i, j], (X, ROWS, LAST)),
    "pairs apart": (lambda x, i, j: x[i, :, j], (X, ROWS, LAST)),
    "pairs that broadcast": (lambda x, i, j: x[i[:, None], j], (X, ROWS[:2], COLUMNS)),
    "pairs apart that broadcast": (lambda x, i, j: x[i[:, None], :, j], (X, ROWS, LAST)),
    "constant pairs apart": (lambda x: x[N([0, -1]), :, N([1, -4])], (X,)),
    "index_select": (lambda x, i: x.index_select(1, i), (X, N([0, 4, 2]))),
    "take": (lambda x, i: torch.take(x, i), (X, N([[0, -1], [-60, 59]]))),
    "gather": (lambda x, i: x.gather(1, i), (X, N([[[0, 1], [4, 2]]] * 2))),
    "take_along_dim": (lambda x, i: torch.take_along_dim(x, i, 1), (X, N([[[0] * 4, [4] * 4]] * 3))),
    "scatter": (lambda x, i, v: x.scatter(1, i, v), (X, N([[[0] * 4, [4] * 4]] * 3), -X[:, :2])),
    "scatter of a number": (lambda x, i: x.scatter(1, i, 2.5), (X, N([[[0] * 4, [4] * 4]] * 3))),
    "index_put": (lambda x, i, j, v: x.index_put((i, j, j), v), (X, N([0, -1]), N([1, -1]), N([7.0, 8.0]))),
    "scatter_add": (lambda x, i: x.scatter_add(1, i, x[:, :2]), (X, N([[[1] * 4, [1] * 4]] * 3))),
    "scatter of a corner": (lambda x, i: x.scatter(1, i, -x), (X, N([[[0, 1], [4, 2]]] * 2))),
    "largest": (lambda x, i: x.scatter_reduce(0, i, x * 2, "amax"), (X, N([[[1] * 4] * 5] * 3))),
    "index_add": (lambda x, i: x.index_add(1, i, x[:, :3], alpha=2), (X, N([4, 0, 4]))),
    "index_copy": (lambda x, i: x.index_copy(1, i, x[:, :2]), (X, N([4, 0]))),
    "index_put of rows": (lambda x, i: x.index_put((i,), x[0] * 0), (X, ROWS)),
    "columns written": (
        lambda x, i: (y := x.clone(), y.__setitem__((slice(None), i), x[:, :1]), y)[-1],
        (X, COLUMNS),
    ),
    "added up": (lambda x, i: x.index_put((i,), x[:, :], accumulate=True), (X, N([1, 1, -1]))),
    "filled": (lambda x, i: x.index_fill(1, i, x[0, 0, 1]), (X, N([4, -5, 4]))),
    "a number filled": (lambda x, i: x[0, 0, 1].index_fill(0, i, x[1, 1, 1]), (X, N([0]))),
    "a number filled nowhere": (lambda x, i: x[0, 0, 1].index_fill(0, i, x[1, 1, 1]), (X, N([]).long())),
    "written nowhere": (lambda x: x.index_copy(1, N([]).long(), x[:, :0]), (X,)),
    "scattered nowhere": (lambda x, i: x.scatter(2, i, x), (X, torch.zeros(3, 5, 0).long())),
    "scattered sums of nothing": (lambda x, i: x.scatter_add(2, i, x), (X, torch.zeros(3, 5, 0).long())),
    "added nowhere": (lambda x, i: x.index_add(1, i, x[:, :0]), (X, N([]).long())),
    "masked by values": (lambda x: (y := x.clone(), y.__setitem__(x > 30, -1.0), y)[-1], (X,)),
    "rows masked by values": (lambda x: (y := x.clone(), y.__setitem__(x[:, 0, 0] > 20, 5.0), y)[-1], (X,)),
    "masked_scatter": (lambda x: x.masked_scatter(x > 30, x * 2), (X,)),
}


def test_results_are_torchs(run_model) -> None:
    module = Together(*(function for function, _ in CASES.values()))
    owns = [inputs[1:] for _, inputs in CASES.values()]
    model = import_module(module, (X, owns), "indices")
    found = run_model(model, [X.numpy(), *(i.numpy() for own in owns for i in own)], model.parameters)
    for name, array, expected in zip(CASES, found, module(X, owns), strict=True):
        np.testing.assert_allclose(array, expected.numpy(), rtol=1e-5, err_msg=name)


OUTSIDE = {
    "rows": (lambda x, i: x[i], ROWS),
    "pairs": (lambda x, i: x[i, i], ROWS),
    "index_select": (lambda x, i: x.index_select(0, i), ROWS.abs()),
    "take": (lambda x, i: torch.take(x, i), ROWS),
    "gather": (lambda x, i: x.gather(0, i[:, None, None]), ROWS.abs()),
    "scatter": (lambda x, i: x.scatter(0, i[:, None, None], 1.0), ROWS.abs()),
    "index_put": (lambda x, i: x.index_put((i, i, i), x[:, 0, 0]), ROWS),
    "embedding": (lambda x, i: torch.nn.functional.embedding(i, x[0]), ROWS.abs()),
}


def test_an_index_outside_its_tensor_reads_and_writes_inside(run_model) -> None:
    """Torch refuses these; a compiled program cannot, and must not touch what is not its own."""
    examples = [example for _, example in OUTSIDE.values()]
    module = Together(*(function for function, _ in OUTSIDE.values()))
    model = import_module(module, (X, [(example,) for example in examples]), "outside")
    for index in (10_000_000, -10_000_000):
        indices = [np.full(3, index) for _ in examples]
        found = run_model(model, [X.numpy(), *indices], model.parameters)
        for name, array in zip(OUTSIDE, found, strict=True):
            assert set(np.unique(array)) <= set(X.numpy().ravel()), name


def test_a_choice_by_truth_values_is_refused() -> None:
    with pytest.raises(UnsupportedOperatorError, match=r"index\.Tensor.*its shape depends on values"):
        import_module(Together(lambda x, i: x[:, i]), (X, [(N([True, False, True, True, False]),)]), "own")


def test_dropout_that_never_ends_is_refused() -> None:
    with pytest.raises(UnsupportedOperatorError, match=r"native_dropout.*drops values at random \(p=0\.5\)"):
        import_module(Together(lambda x: torch.nn.functional.dropout(x, 0.5, True)), (X, [()]), "own")
