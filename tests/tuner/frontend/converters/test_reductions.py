"""Reductions, running sums, orders and bins: torch's values in torch's types."""

import pytest

torch = pytest.importorskip("torch")

pytestmark = [pytest.mark.tvm, pytest.mark.torch]


def test_reductions_are_torchs(assert_as_torch, draws) -> None:
    cases = {}
    for dtype in ("float32", "float16", "int64", "uint8", "bool"):
        x = draws(2, 3, 5, dtype=dtype)
        cases |= {
            f"sum {dtype}": (torch.sum, (x,)),
            f"sum of axes {dtype}": (lambda x: x.sum((0, -1), keepdim=True), (x,)),
            f"amax {dtype}": (lambda x: x.amax((1, 2)), (x,)),
            f"amin {dtype}": (lambda x: x.amin(-2, keepdim=True), (x,)),
            f"any {dtype}": (torch.any, (x,)),
            f"all of an axis {dtype}": (lambda x: x.all(1), (x,)),
            f"cumsum {dtype}": (lambda x: x.cumsum(1), (x,)),
            f"prod {dtype}": (lambda x: x[0, 0].prod(), (x,)),
            f"prod of an axis {dtype}": (lambda x: x.prod(0), (x,)),
            f"count {dtype}": (lambda x: x.count_nonzero(0), (x,)),
        }
        if dtype not in ("bool", "float16"):
            cases |= {
                f"max {dtype}": (lambda x: x.max(1), (x,)),
                f"min {dtype}": (lambda x: x.min(), (x,)),
                f"argmax {dtype}": (torch.argmax, (x,)),
                f"argmin of an axis {dtype}": (lambda x: x.argmin(-1, keepdim=True), (x,)),
                f"cumprod {dtype}": (lambda x: x.cumprod(-1), (x,)),
            }
    assert_as_torch(cases)


def test_moments_are_torchs(assert_as_torch, draws) -> None:
    x = draws(3, 4, 5) + 2
    cases = {
        "std": (torch.std, (x,)),
        "std of an axis": (lambda x: x.std(1), (x,)),
        "without correction": (lambda x: x.std(1, unbiased=False), (x,)),
        "corrected by two": (lambda x: x.var((0, 2), correction=2), (x,)),
        "variance and mean": (lambda x: torch.var_mean(x, -1, keepdim=True), (x,)),
        "deviation and mean": (lambda x: torch.std_mean(x, 0), (x,)),
        "mean": (lambda x: x.mean((0, 1)), (x,)),
        "mean of halves": (torch.mean, (x.half(),)),
        "norm": (lambda x: x.norm(dim=-1), (x,)),
        "norm of one": (lambda x: torch.linalg.vector_norm(x, 1, (0, 1)), (x,)),
        "logsumexp": (lambda x: x.logsumexp((1, 2)), (x,)),
        "no axes": (lambda x: x.sum() + x.mean(0) + x.amax(), (torch.tensor(3.0),)),
    }
    assert_as_torch(cases)


def test_orders_are_torchs(assert_as_torch, draws) -> None:
    x, n = draws(3, 7), draws(4, 6, dtype="int64", low=-50, high=50)
    odd = x.clone()
    odd[0, 1], odd[1, 6], odd[1, 0] = float("nan"), float("nan"), float("-inf")
    cases = {
        "sort": (lambda x: x.sort(-1), (x,)),
        "sort down": (lambda x: x.sort(0, descending=True), (x,)),
        "argsort": (lambda x: x.argsort(dim=1, stable=True), (n,)),
        "topk": (lambda x: x.topk(3), (x,)),
        "least": (lambda x: x.topk(2, 0, largest=False), (x,)),
        "median": (torch.median, (x,)),
        "median of an axis": (lambda x: x.median(0), (x,)),
        "kth": (lambda x: x.kthvalue(2), (x,)),
        "NaN sorted": (lambda x: x.sort(-1), (odd,)),
        "NaN sorted down": (lambda x: x.sort(-1, descending=True), (odd,)),
        "NaN among the largest": (lambda x: x.topk(2), (odd,)),
        "NaN beside the least": (lambda x: x.topk(3, largest=False), (odd,)),
        "median of NaN": (torch.median, (odd,)),
        "medians beside NaN": (lambda x: x.median(1), (odd,)),
        "NaN of a rank": (lambda x: x.kthvalue(7), (odd,)),
        "NaN of halves": (lambda x: x.half().sort(0), (odd,)),
        "bins": (lambda x: torch.histc(x, 4, min=-1, max=1), (x,)),
        "bins of classes": (lambda x: torch.histc(x.float(), 8, min=0, max=7), (n.abs() % 8,)),
        "between": (lambda x: torch.bucketize(x, torch.tensor([-1.0, 0.0, 1.0])), (x,)),
        "one of each": (lambda x: torch.nn.functional.one_hot(x, 8), (n.abs() % 8,)),
    }
    assert_as_torch(cases)
