"""Gradients at bounds, at 0 and among equals, where an operator has no derivative, are those of torch."""

import dataclasses

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import tvm  # noqa: E402 - as above
from run_module import plain_machine  # noqa: E402 - only where torch is installed
from torch import nn  # noqa: E402 - as above
from torch.nn import functional as F  # noqa: E402 - as above

from tuner.frontend.loading import for_training  # noqa: E402 - it imports torch
from tuner.frontend.torch.arrays import as_array  # noqa: E402 - as above
from tuner.frontend.torch.program import import_module  # noqa: E402 - as above
from tuner.stages import build_stages, run_stages  # noqa: E402 - as above

pytestmark = [pytest.mark.tvm, pytest.mark.torch]

BORDERS = [-7.0, -6.0, -3.0, -1.0, -0.5, -0.1, -0.0, 0.0, 0.1, 0.5, 1.0, 3.0, 6.0, 7.0]
EQUALS = [[1.0, 3.0, 3.0, 2.0], [0.0, 0.0, 0.0, 0.0], [2.0, -1.0, 2.0, -1.0]]
ROWS = [[0.0, 0.0, 0.0], [3.0, -4.0, 0.0]]
OTHERS = [[3.0, -4.0, 0.0], [0.0, 0.0, 1.0]]
IMAGE = [[[[1.0, 2.0, 0.0, 0.0], [2.0, 1.0, 0.0, 0.0], [5.0, 4.0, 1.0, 3.0], [5.0, 5.0, 3.0, 3.0]]]]
ONE = [-1.0, 1.0, 1.0, 0.0, 2.0]
OTHER = [1.0, 1.0, -1.0, 0.0, 2.0]
BASES = [0.0, 0.0, 2.0, 4.0]
EXPONENTS = [0.0, 2.0, 0.0, 0.5]

LARGE = [-100.0, -30.0, 30.0, 100.0]
GRID = [[[[-1.0, -1.0], [1.0, 1.0], [1.5, 0.0], [0.1, 0.2], [-1.7, 3.3]]]]
CLASSES = torch.tensor([0, 1, 2])
LABELS = torch.tensor([[0, 2, -1, 1], [1, -1, 0, 0], [0, 1, 2, 3]])

ACTIVATIONS = {
    "relu": F.relu,
    "relu6": F.relu6,
    "hardtanh": F.hardtanh,
    "hardtanh between halves that no type holds": lambda x: F.hardtanh(x, -0.1, 0.1),
    "hardswish": F.hardswish,
    "hardsigmoid": F.hardsigmoid,
    "leaky_relu": lambda x: F.leaky_relu(x, 0.25),
    "elu": lambda x: F.elu(x, 2.0),
    "celu": lambda x: F.celu(x, 2.0),
    "selu": F.selu,
    "threshold": lambda x: F.threshold(x, 0.5, 2.0),
    "softshrink": F.softshrink,
    "hardshrink": F.hardshrink,
    "tanhshrink": F.tanhshrink,
    "softsign": F.softsign,
    "softplus": lambda x: F.softplus(x, 1.0, 3.0),
    "logsigmoid": F.logsigmoid,
    "abs": torch.abs,
    "sign": torch.sign,
    "floor": torch.floor,
    "clamp": lambda x: x.clamp(-1, 3),
    "clamp between bounds that no type holds": lambda x: x.clamp(-0.1, 0.1),
    "clamp below": lambda x: x.clamp(min=0),
    "clamp above": lambda x: x.clamp(max=-0.5),
    "clamp to nothing": lambda x: x.clamp(1, -1),
    "fractional power": lambda x: x.abs() ** 1.5,
    "cube": lambda x: x**3,
    "binary cross-entropy": lambda x: F.binary_cross_entropy_with_logits(
        x, torch.full_like(x, 0.25), reduction="none"
    ),
}

OF_LARGE = {
    "elu": F.elu,
    "celu": lambda x: F.celu(x, 2.0),
    "selu": F.selu,
    "mish": F.mish,
    "silu": F.silu,
    "gelu": F.gelu,
    "softplus": F.softplus,
    "logsigmoid": F.logsigmoid,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "binary cross-entropy with logits": lambda x: F.binary_cross_entropy_with_logits(
        x, torch.full_like(x, 0.25), reduction="none"
    ),
    "logaddexp": lambda x: torch.logaddexp(x, -x),
    "logaddexp2": lambda x: torch.logaddexp2(x, -x),
    "expm1": lambda x: torch.expm1(x * x.abs() * -1000 * torch.sign(x.detach())),
    "soft margin loss": lambda x: F.soft_margin_loss(x, torch.sign(x.detach()), reduction="none"),
}
"""Functions of numbers whose exponential is infinite or 0 in what is not chosen."""

CASES = {name: (function, [BORDERS]) for name, function in ACTIVATIONS.items()}
CASES |= {f"{name} of large numbers": (function, [LARGE]) for name, function in OF_LARGE.items()}
CASES |= {
    "prelu": (F.prelu, [BORDERS, [0.25]]),
    "clamp between tensors": (torch.clamp, [ONE, [0.0, 1.0, -1.0, 0.0, 3.0], [1.0, 2.0, 1.0, 1.0, 4.0]]),
    "clamp below a tensor": (lambda x, low: x.clamp(min=low), [ONE, OTHER]),
    "clamp above a tensor": (lambda x, high: x.clamp(max=high), [ONE, OTHER]),
    "maximum": (torch.maximum, [ONE, OTHER]),
    "minimum": (torch.minimum, [ONE, OTHER]),
    "maximum with broadcast": (torch.maximum, [EQUALS, [0.0, 3.0, 2.0, -1.0]]),
    "maximum with a number": (lambda x: torch.maximum(x, torch.zeros((), dtype=x.dtype)), [BORDERS]),
    "max of two": (torch.max, [ONE, OTHER]),
    "fmax": (torch.fmax, [ONE, OTHER]),
    "fmin": (torch.fmin, [ONE, OTHER]),
    "logaddexp": (torch.logaddexp, [ONE, OTHER]),
    "copysign": (torch.copysign, [ONE, [1.0, -1.0, -1.0, 1.0, -0.5]]),
    "power": (torch.pow, [BASES, EXPONENTS]),
    "amax": (lambda x: x.amax(1), [EQUALS]),
    "amin": (lambda x: x.amin(0), [EQUALS]),
    "amax over two axes": (lambda x: x.amax((0, 1)), [EQUALS]),
    "max": (torch.max, [EQUALS]),
    "min": (torch.min, [EQUALS]),
    "max of an axis": (lambda x: x.max(1).values, [EQUALS]),
    "min of an axis": (lambda x: x.min(0, keepdim=True).values, [EQUALS]),
    "max of an axis and its place": (lambda x: (lambda found: found[0] * found[1])(x.max(1)), [EQUALS]),
    "logsumexp": (lambda x: x.logsumexp(1), [EQUALS]),
    "max_pool2d": (lambda x: F.max_pool2d(x, 2), [IMAGE]),
    "max_pool2d with windows that overlap": (lambda x: F.max_pool2d(x, 3, 1, 1), [IMAGE]),
    "max_pool1d": (lambda x: F.max_pool1d(x[0], 2), [IMAGE]),
    "adaptive_max_pool2d": (lambda x: F.adaptive_max_pool2d(x, 2), [IMAGE]),
    "adaptive_max_pool2d of parts that overlap": (lambda x: F.adaptive_max_pool2d(x, 3), [IMAGE]),
    "adaptive_max_pool2d of all": (lambda x: F.adaptive_max_pool2d(x, 1), [IMAGE]),
    "norm": (lambda x: torch.linalg.vector_norm(x, dim=1), [ROWS]),
    "norm of all": (lambda x: x.norm(), [[0.0, 0.0]]),
    "sum of sizes": (lambda x: torch.linalg.vector_norm(x, 1, dim=1, keepdim=True), [ROWS]),
    "norm of the third power": (lambda x: torch.linalg.vector_norm(x, 3, dim=1), [ROWS]),
    "largest size": (lambda x: torch.linalg.vector_norm(x, float("inf"), dim=1), [ROWS]),
    "norm of one": (lambda x: torch.linalg.vector_norm(x, dim=1), [[[0.0], [-2.0]]]),
    "normalize": (F.normalize, [ROWS]),
    "cosine_similarity": (F.cosine_similarity, [ROWS, OTHERS]),
    "cdist": (torch.cdist, [ROWS, ROWS]),
    "cdist of sizes": (lambda x, y: torch.cdist(x, y, p=1.0), [ROWS, ROWS]),
    "cdist of the third power": (lambda x, y: torch.cdist(x, y, p=3.0), [ROWS, ROWS]),
    "pairwise_distance": (F.pairwise_distance, [ROWS, ROWS]),
    "deviation": (lambda x: x.std(1), [ROWS]),
    "deviation and mean": (lambda x: sum(torch.std_mean(x, 1)), [ROWS]),
    "root": (torch.sqrt, [[0.0, 4.0]]),
    "power of a half": (lambda x: x**0.5, [[0.0, 4.0]]),
    "l1_loss": (lambda x, y: F.l1_loss(x, y, reduction="none"), [ONE, OTHER]),
    "smooth_l1_loss": (lambda x, y: F.smooth_l1_loss(x, y, reduction="none"), [ONE, OTHER]),
    "huber_loss": (lambda x, y: F.huber_loss(x, y, reduction="none"), [ONE, OTHER]),
    "margin_ranking_loss": (
        lambda x, y: F.margin_ranking_loss(x, y, torch.ones_like(x), 0.0, reduction="none"),
        [ONE, OTHER],
    ),
    "log1p": (torch.log1p, [[0.0, 1e-9, -0.5, 1e9, float("inf")]]),
    "sinc": (torch.sinc, [[0.0, 0.5, 1.0, -2.0]]),
    "arctangent of two": (torch.atan2, [[0.0, 1.0, -1.0, 0.0], [0.0, 0.0, 0.0, -1.0]]),
    "copysign of zeros": (torch.copysign, [[1.0, 1.0, -1.0, 0.0], [0.0, -0.0, -0.0, -0.0]]),
    "factor 0 of a logarithm": (torch.xlogy, [[0.0, 0.0, 0.0, 1.0], [2.0, 0.5, 1.0, 3.0]]),
    "factor 0 of a number's logarithm": (lambda x: torch.xlogy(x, 2.0), [[0.0, 1.0]]),
    "number 0 by a logarithm": (lambda x: torch.xlogy(0.0, x), [[2.0, 1.0]]),
    "factor 0 of the logarithm of 0": (
        lambda x: torch.xlogy(x, torch.zeros_like(x)),
        [[0.0, 0.0]],
    ),
    "factor 0 of log1p": (torch.special.xlog1py, [[0.0, 0.0, 0.0, 1.0], [2.0, -0.5, 0.0, 3.0]]),
    "logaddexp of infinities": (
        torch.logaddexp,
        [[float("inf"), -float("inf")], [1.0, 1.0]],
    ),
    "binary cross-entropy of certainty": (
        lambda x: F.binary_cross_entropy(x, torch.tensor([0, 1, 1, 0]).to(x.dtype), reduction="none"),
        [[0.0, 1.0, 0.25, 0.5]],
    ),
    "binary cross-entropy of error": (
        lambda x: F.binary_cross_entropy(x, torch.tensor([0, 1]).to(x.dtype), reduction="mean"),
        [[1.0, 0.0]],
    ),
    "norm of a root": (lambda x: torch.linalg.vector_norm(x, 0.5, dim=1), [[[0.0, 0.0], [0.0, 2.0]]]),
    "norm of a number": (lambda x: torch.linalg.vector_norm(x, 1.5, dim=0), [-2.0]),
    "norm of the reciprocal": (lambda x: torch.linalg.vector_norm(x, -1, dim=1), [[[1.0, -2.0]]]),
    "median of all": (torch.median, [EQUALS]),
    "multi_margin_loss": (lambda x: F.multi_margin_loss(x, CLASSES, reduction="none"), [EQUALS]),
    "multi_margin_loss of squares": (lambda x: F.multi_margin_loss(x, CLASSES, p=2), [EQUALS]),
    "multilabel_margin_loss": (lambda x: F.multilabel_margin_loss(x, LABELS, reduction="none"), [EQUALS]),
    "multilabel_margin_loss of a number": (
        lambda x: F.multilabel_margin_loss(x, torch.tensor(0)) + x,
        [0.5],
    ),
    "grid_sample at the border": (
        lambda x, grid: F.grid_sample(x, grid, padding_mode="border", align_corners=True),
        [IMAGE, GRID],
    ),
    "grid_sample by reflection": (
        lambda x, grid: F.grid_sample(x, grid, padding_mode="reflection", align_corners=True),
        [IMAGE, GRID],
    ),
    "grid_sample by reflection at edges": (
        lambda x, grid: F.grid_sample(x, grid, padding_mode="reflection", align_corners=False),
        [IMAGE, GRID],
    ),
    "linspace": (
        lambda x, y: torch.linspace(x, y, 4) + x + y,  # torch reads numbers of both
        [1.0, 2.0],
    ),
    "hinge_embedding_loss": (
        lambda x: F.hinge_embedding_loss(x, -torch.ones_like(x), reduction="none"),
        [ONE],
    ),
}

NOT_OF_BFLOAT16 = (
    "cdist",
    "power of a half",
    "root",
    "binary cross-entropy of",
    "grid_sample",
    "multi_margin_loss",
    "multilabel_margin_loss",
)
"""Functions that torch refuses in bfloat16, and roots whose infinite slopes are told once."""


class Weighted(nn.Module):
    """The sum of what functions give, each value by a weight of its own; the operands are what is trained."""

    def __init__(self, cases, dtype) -> None:
        super().__init__()
        self.functions = [function for function, _ in cases.values()]
        self.operands = nn.ModuleList(
            nn.ParameterList(nn.Parameter(torch.tensor(each, dtype=dtype)) for each in operands)
            for _, operands in cases.values()
        )

    def forward(self, one):
        losses = []
        for function, operands in zip(self.functions, self.operands, strict=True):
            found = function(*(each * one for each in operands)).flatten()
            weights = (torch.arange(len(found)) % 4 + 1).to(found.dtype) / 4
            losses.append((found * weights).float().sum())
        return torch.stack(losses).sum()


@pytest.mark.parametrize(
    ("dtype", "every"),
    [
        (torch.float32, 5),
        pytest.param(torch.bfloat16, 11, marks=pytest.mark.slow),
        *(pytest.param(dtype, 1, marks=pytest.mark.slow) for dtype in (torch.float32, torch.bfloat16)),
    ],
    ids=["float32-some", "bfloat16-some", "float32-all", "bfloat16-all"],
)
def test_gradients_at_borders_are_torchs(dtype, every: int) -> None:
    is_single = dtype is torch.float32
    names = [name for name in CASES if is_single or not name.startswith(NOT_OF_BFLOAT16)]
    cases = {name: CASES[name] for name in names[::every]}
    module = Weighted(cases, dtype).eval()
    one = torch.ones((), dtype=dtype)
    model = dataclasses.replace(for_training(import_module(module, (one,), "borders")), reference=None)
    tensors = {name: np.asarray(model.parameters[name]) for name in model.parameter_names}
    found = run_stages(
        build_stages(model, ()), tensors | {model.inputs[0].name: as_array(one)}, split=False, run=run
    )
    module(one).backward()
    wrong = []
    for index, name in enumerate(cases):
        for place, operand in enumerate(module.operands[index]):
            expected = as_array(operand.grad).astype(np.float64)
            mine = found.get(f"operands.{index}.{place}.grad", np.zeros_like(expected)).astype(np.float64)
            if not np.allclose(mine, expected, rtol=1e-5 if is_single else 3e-2, atol=1e-6, equal_nan=True):
                wrong.append(f"{name}, operand {place}: {mine.tolist()} in place of {expected.tolist()}")
    assert not wrong, "\n".join(wrong)


def run(module, arrays):
    """Run a module as TVM builds it."""
    machine = plain_machine(module)
    return [output.numpy() for output in machine["main"](*map(tvm.runtime.tensor, arrays))]
