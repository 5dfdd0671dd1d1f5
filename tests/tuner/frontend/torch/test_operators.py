"""Modules and operators that torch programs are made of: the same result as torch, or refused by name."""

import numpy as np
import pytest

from tuner.errors import UnsupportedOperatorError

torch = pytest.importorskip("torch")
nn, F = torch.nn, torch.nn.functional

from tuner.frontend.torch.program import import_module  # noqa: E402 - after the skip

pytestmark = [pytest.mark.tvm, pytest.mark.torch]


class Apply(nn.Module):
    """A function as a module, with a layer of its own where it wants one."""

    def __init__(self, function, layer=None) -> None:
        super().__init__()
        self.function = function
        self.layer = layer

    def forward(self, *arguments):
        return self.function(*arguments) if self.layer is None else self.function(self.layer, *arguments)


def draws(*shape: int):
    return torch.from_numpy(np.random.default_rng(len(shape)).standard_normal(shape).astype("float32"))


def attend_to_self(layer, x):
    return layer(x, x, x, need_weights=False)[0]


def rotate(x):
    angles = torch.arange(8).float().cos()
    return torch.cat([-x[..., 4:], x[..., :4]], -1) * angles + x


def mask_future(x):
    return x.masked_fill(torch.ones(5, 5).triu(1).bool(), -1e9).softmax(-1)


TOKENS, IMAGE, CLASSES = (2, 5, 8), (1, 4, 8, 8), torch.tensor([1, 2, 3])

CASES = {
    "bags, which stay a call of torch": (nn.EmbeddingBag(5, 4), (torch.tensor([[0, 1]]),)),
    "transformer encoder": (
        nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 1),
        (draws(*TOKENS),),
    ),
    "multi-head attention": (
        Apply(attend_to_self, nn.MultiheadAttention(8, 2, batch_first=True)),
        (draws(*TOKENS),),
    ),
    "grouped heads": (
        Apply(lambda q, k: F.scaled_dot_product_attention(q, k, k, enable_gqa=True)),
        (draws(2, 4, 5, 8), draws(2, 2, 5, 8)),
    ),
    "attention of three axes": (
        Apply(lambda x: F.scaled_dot_product_attention(x, x, x)),
        (draws(*TOKENS),),
    ),
    "rotary positions": (Apply(rotate), (draws(*TOKENS),)),
    "mask of the future": (Apply(mask_future), (draws(2, 5, 5),)),
    "gated linear unit": (nn.GLU(), (draws(*TOKENS),)),
    "root-mean-square norm": (nn.RMSNorm(8), (draws(*TOKENS),)),
    "group norm": (nn.GroupNorm(2, 4), (draws(*IMAGE),)),
    "instance norm": (nn.InstanceNorm2d(4, affine=True), (draws(*IMAGE),)),
    "weight norm": (nn.utils.parametrizations.weight_norm(nn.Linear(8, 4)), (draws(2, 8),)),
    "transposed convolution": (nn.ConvTranspose2d(4, 3, 3, stride=2, padding=1), (draws(*IMAGE),)),
    "padding by name": (nn.Conv1d(3, 4, 3, padding="same"), (draws(1, 3, 8),)),
    "pooling to an extent": (nn.AdaptiveAvgPool2d((2, 3)), (draws(*IMAGE),)),
    "pixel shuffle": (nn.PixelShuffle(2), (draws(*IMAGE),)),
    "upsampling": (nn.Upsample(scale_factor=2), (draws(*IMAGE),)),
    "einsum": (Apply(lambda x, y: torch.einsum("bij,bkj->bik", x, y)), (draws(*TOKENS), draws(*TOKENS))),
    "slices": (Apply(lambda x: x[:, 1:, ::2]), (draws(*TOKENS),)),
    "half": (nn.Linear(8, 4).half(), (draws(2, 8).half(),)),
    "several results by name": (Apply(lambda x: {"a": x + 1, "b": x.sum()}), (draws(2, 3),)),
    "in-place": (Apply(lambda x: x.clone().add_(1).relu_()), (draws(2, 3),)),
    "an input that is returned": (Apply(lambda x: x), (draws(2),)),
    "cross-entropy": (
        Apply(lambda layer, x: F.cross_entropy(layer(x), CLASSES), nn.Linear(4, 7)),
        (draws(3, 4),),
    ),
    "cross-entropy that ignores a class": (
        Apply(lambda x: F.cross_entropy(x, CLASSES, ignore_index=2)),
        (draws(3, 7),),
    ),
    "cross-entropy summed up": (
        Apply(lambda x: F.cross_entropy(x, CLASSES, reduction="sum")),
        (draws(3, 7),),
    ),
    "cross-entropy of an image": (
        Apply(lambda x: F.cross_entropy(x, torch.ones(1, 8, 8, dtype=torch.long))),
        (draws(*IMAGE),),
    ),
    "mean square": (Apply(F.mse_loss), (draws(3, 4), draws(3, 4) * 2)),
    "choice with a number": (Apply(lambda x: torch.where(x > 0, x, 0.5)), (draws(3, 4),)),
}


ALONE = ("an input that is returned", "bags, which stay a call of torch", "half", "several results by name")
"""Those that are told apart by what a whole program takes and returns."""


def test_results_within_one_program_are_torchs(assert_as_torch) -> None:
    assert_as_torch({name: case for name, case in CASES.items() if name not in ALONE})


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name in ALONE else pytest.mark.slow) for name in sorted(CASES)],
)
def test_result_is_torchs(name: str, run_model, assert_close) -> None:
    module, inputs = CASES[name]
    model = import_module(module, inputs, name)
    found = run_model(model, [tensor.numpy() for tensor in inputs], model.parameters)
    with torch.no_grad():
        expected = module.eval()(*inputs)
    expected = list(expected.values()) if isinstance(expected, dict) else [expected]
    for one, other in zip(found, expected, strict=True):
        if name == "half":
            np.testing.assert_allclose(one, other.numpy(), rtol=1e-2, atol=1e-2)
        else:
            assert_close(one, other.numpy())


@pytest.mark.parametrize(
    ("module", "inputs", "message"),
    [
        (Apply(lambda x: x[x > 0]), (draws(3),), r"its shape depends on values"),
        (Apply(lambda x: x.nonzero()), (draws(3),), "nonzero"),
    ],
)
def test_what_cannot_be_imported_is_named(module, inputs, message: str) -> None:
    with pytest.raises(UnsupportedOperatorError, match=message):
        import_module(module, inputs, "own")
