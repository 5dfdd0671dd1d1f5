"""Thirty small torch modules of many kinds, which the import must take as they are: no alarm is right here.

Each builder returns a module and its example inputs, as a function that `tessel` is given does. All but those
named in `NOT_TRAINED` return one tensor of logits or a loss, so that they can be trained, too.
"""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional

Built = tuple[nn.Module, tuple[torch.Tensor, ...]]


class Tripled(torch.autograd.Function):
    """Doubles, with a backward of its own that says three times."""

    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 3


class Apply(nn.Module):
    """A function over some layers as a module."""

    def __init__(self, function, **layers: nn.Module) -> None:
        super().__init__()
        self.function = function
        for name, layer in layers.items():
            setattr(self, name, layer)

    def forward(self, *inputs):
        return self.function(self, *inputs)


def draws(*shape: int) -> torch.Tensor:
    return torch.randn(*shape)


def tokens(*shape: int, high: int = 11) -> torch.Tensor:
    return torch.randint(high, shape)


def multilayer() -> Built:
    return nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.Linear(8, 5)), (draws(3, 6),)


def last_token() -> Built:
    layers = {"embed": nn.Embedding(11, 8), "head": nn.Linear(8, 5)}
    return Apply(lambda s, i: s.head(s.embed(i).tanh()[:, -1]), **layers), (tokens(2, 6),)


def ignored_labels() -> Built:
    """The loss of the next token, whose last label is to be ignored, as language models have it."""

    def run(s, i):
        logits = s.head(s.embed(i).tanh())
        following = functional.pad(i, (0, 1), value=-100)[:, 1:]
        return functional.cross_entropy(logits.flatten(0, 1), following.flatten())

    return Apply(run, embed=nn.Embedding(11, 8), head=nn.Linear(8, 11)), (tokens(2, 6),)


def self_attention() -> Built:
    attention = nn.MultiheadAttention(8, 2, batch_first=True)
    return Apply(lambda s, x: s.a(x, x, x, need_weights=False)[0], a=attention), (draws(2, 5, 8),)


def causal_attention() -> Built:
    def run(s, x):
        q, k, v = s.qkv(x).reshape(2, 5, 3, 2, 4).permute(2, 0, 3, 1, 4).unbind(0)
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return s.out(mixed.transpose(1, 2).flatten(2))

    return Apply(run, qkv=nn.Linear(8, 24), out=nn.Linear(8, 8)), (draws(2, 5, 8),)


def masked_attention() -> Built:
    def run(s, x):
        scores = s.q(x) @ s.k(x).transpose(1, 2) / math.sqrt(8)
        future = torch.ones(5, 5, dtype=torch.bool).triu(1)
        return scores.masked_fill(future, -1e9).softmax(-1) @ x

    return Apply(run, q=nn.Linear(8, 8), k=nn.Linear(8, 8)), (draws(2, 5, 8),)


def encoder_layer() -> Built:
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    return layer, (draws(2, 5, 8),)


def rotary() -> Built:
    def run(s, x):
        x = s.l(x)
        angles = torch.arange(5.0)[:, None] * torch.tensor([1.0, 0.1])
        turned = torch.cat([-x[..., 2:], x[..., :2]], -1)
        return x * angles.cos().repeat(1, 2) + turned * angles.sin().repeat(1, 2)

    return Apply(run, l=nn.Linear(4, 4)), (draws(2, 5, 4),)


def convolutions() -> Built:
    layers = [nn.Conv2d(3, 4, 3, stride=2, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(1)]
    return nn.Sequential(*layers, nn.Linear(16, 5)), (draws(2, 3, 8, 8),)


def depthwise() -> Built:
    layers = [nn.Conv2d(4, 4, 3, padding=1, groups=4), nn.ReLU6(), nn.Conv2d(4, 6, 1), nn.Flatten(1)]
    return nn.Sequential(*layers, nn.Linear(96, 3)), (draws(1, 4, 4, 4),)


def residual() -> Built:
    def run(s, x):
        return s.head((x + s.b(functional.relu(s.a(x)))).mean((2, 3)))

    convs = {"a": nn.Conv2d(4, 4, 3, padding=1), "b": nn.Conv2d(4, 4, 3, padding=1)}
    return Apply(run, **convs, head=nn.Linear(4, 5)), (draws(2, 4, 5, 5),)


def convolution_in_one_dimension() -> Built:
    return Apply(lambda s, x: s.head(s.c(x).relu().mean(-1)), c=nn.Conv1d(3, 4, 3), head=nn.Linear(4, 2)), (
        draws(2, 3, 8),
    )


def average_pool() -> Built:
    return nn.Sequential(nn.AvgPool2d(2), nn.Flatten(1), nn.Linear(12, 4)), (draws(2, 3, 4, 4),)


def batch_norm() -> Built:
    norm = nn.BatchNorm2d(4)
    nn.init.uniform_(norm.running_mean)
    nn.init.uniform_(norm.running_var, 0.5, 2.0)
    return nn.Sequential(nn.Conv2d(3, 4, 1), norm, nn.Flatten(1), nn.Linear(36, 5)), (draws(2, 3, 3, 3),)


def layer_norm() -> Built:
    return nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.Linear(8, 5)), (draws(3, 6),)


def group_norm() -> Built:
    return nn.Sequential(nn.GroupNorm(2, 4), nn.Flatten(1), nn.Linear(36, 5)), (draws(2, 4, 3, 3),)


def root_mean_square_norm() -> Built:
    return nn.Sequential(nn.Linear(6, 8), nn.RMSNorm(8), nn.Linear(8, 5)), (draws(3, 6),)


def dropout() -> Built:
    return nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.5), nn.Linear(8, 5)), (draws(3, 6),)


def embeddings() -> Built:
    layers = {"words": nn.Embedding(11, 8), "places": nn.Embedding(6, 8), "head": nn.Linear(8, 4)}
    return Apply(lambda s, i: s.head(s.words(i) + s.places(torch.arange(6))), **layers), (tokens(2, 6),)


def tied_weights() -> Built:
    words, head = nn.Embedding(11, 8), nn.Linear(8, 11, bias=False)
    head.weight = words.weight
    return Apply(lambda s, i: s.head(s.l(s.words(i)).relu()), words=words, l=nn.Linear(8, 8), head=head), (
        tokens(2, 4),
    )


def called_twice() -> Built:
    return Apply(lambda s, x: s.l(s.l(x).sigmoid()), l=nn.Linear(6, 6)), (draws(3, 6),)


def several_outputs() -> Built:
    def run(s, x):
        y = s.l(x)
        return {"logits": y, "loss": y.square().mean(), "best": y.argmax(-1)}

    return Apply(run, l=nn.Linear(6, 5)), (draws(3, 6),)


def two_inputs() -> Built:
    return Apply(lambda s, x, y: s.a(x) * s.b(y).sigmoid(), a=nn.Linear(4, 5), b=nn.Linear(6, 5)), (
        draws(3, 4),
        draws(3, 6),
    )


def own_loss() -> Built:
    return Apply(lambda s, x, y: functional.mse_loss(s.l(x), y), l=nn.Linear(4, 2)), (
        draws(3, 4),
        draws(3, 2),
    )


def gathered() -> Built:
    """A row of each example, chosen by a length that counts from the end where it is negative."""

    def run(s, x, i):
        return s.l(x[torch.arange(3), i])

    return Apply(run, l=nn.Linear(6, 5)), (draws(3, 4, 6), torch.tensor([-1, 2, 0]))


def picked_probabilities() -> Built:
    def run(s, x, i):
        return -s.l(x).log_softmax(-1).gather(1, i[:, None]).mean()

    return Apply(run, l=nn.Linear(6, 5)), (draws(3, 6), tokens(3, high=5))


def gated() -> Built:
    def run(s, x):
        one, other = s.l(x).chunk(2, -1)
        return s.h(functional.silu(one) * other)

    return Apply(run, l=nn.Linear(6, 16), h=nn.Linear(8, 5)), (draws(3, 6),)


def scalars_and_slices() -> Built:
    return Apply(lambda s, x: s.l(x[:, 1:-1, ::2] * 2 - 0.5).mean(1), l=nn.Linear(3, 5)), (draws(2, 6, 6),)


def contraction() -> Built:
    return Apply(lambda s, x, y: torch.einsum("bij,bkj->bik", s.l(x), y), l=nn.Linear(6, 6)), (
        draws(2, 3, 6),
        draws(2, 4, 6),
    )


def logarithms() -> Built:
    """No numbers for inputs that are negative, as drawn ones are: its examples are taken."""
    return Apply(lambda s, x: s.l(x.log()), l=nn.Linear(4, 3)), (torch.rand(2, 4) + 0.5,)


def half() -> Built:
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 5)).half(), (draws(3, 6).half(),)


MODELS = {
    each.__name__: each
    for each in (
        multilayer, last_token, ignored_labels, self_attention, causal_attention, masked_attention,
        encoder_layer, rotary,
        convolutions, depthwise, residual, convolution_in_one_dimension, average_pool, batch_norm, layer_norm,
        group_norm, root_mean_square_norm, dropout, embeddings, tied_weights, called_twice, several_outputs,
        two_inputs, own_loss, gathered, picked_probabilities, gated, scalars_and_slices, contraction,
        logarithms, half,
    )
}  # fmt: skip

NOT_TRAINED = {"several_outputs", "half", "scalars_and_slices"}
"""Those that return several tensors, are too coarse for a gradient, or whose maximum is not imported."""
