"""Layers of convolutional networks, in addition to those of `layers`.

Batch normalisation is one operator for inference, which rules can fuse into a convolution, and is written out
for training, as TVM has no gradient for it. Checked against torch in tests/tuner/frontend/test_zoo_vision.py.
"""

from __future__ import annotations

from tvm import relax
from tvm.relax.frontend import nn

from tuner.frontend.emission import Layer, emit
from tuner.frontend.layers import scalar

_EPSILON = 1e-5


class Convolution(Layer):
    """A square filter over images, layout NCHW, without bias, padded so that stride 1 keeps the extents."""

    def __init__(
        self, num_inputs: int, num_outputs: int, *, kernel: int, stride: int = 1, groups: int = 1
    ) -> None:
        self.weight = nn.Parameter((num_outputs, num_inputs // groups, kernel, kernel))
        self.stride = stride
        self.padding = kernel // 2
        self.groups = groups

    def forward(self, x: nn.Tensor) -> nn.Tensor:
        """Return shape (batch, outputs, ⌈height / stride⌉, ⌈width / stride⌉)."""
        return nn.op.conv2d(x, self.weight, None, self.stride, self.padding, 1, self.groups)


class BatchNorm(Layer):
    """Normalise each channel, by running statistics or by the batch's own.

    For training, running statistics are neither parameters nor updated: they do not reach the loss.
    """

    def __init__(self, num_channels: int, *, training: bool) -> None:
        self.weight = nn.Parameter((num_channels,))
        self.bias = nn.Parameter((num_channels,))
        self.training = training
        if not training:
            self.running_mean = nn.Parameter((num_channels,))
            self.running_var = nn.Parameter((num_channels,))

    def forward(self, x: nn.Tensor) -> nn.Tensor:
        """Return the shape of x."""
        return self._by_batch(x) if self.training else self._by_running_statistics(x)

    def _by_running_statistics(self, x: nn.Tensor) -> nn.Tensor:
        parameters = (self.weight, self.bias, self.running_mean, self.running_var)
        results = relax.op.nn.batch_norm(
            x._expr, *(parameter._expr for parameter in parameters), axis=1, epsilon=_EPSILON, training=False
        )
        results = relax.BlockBuilder.current().emit(results, "batch_norm")
        return emit(relax.TupleGetItem(results, 0), "normed")

    def _by_batch(self, x: nn.Tensor) -> nn.Tensor:
        axes, num_channels = [0, 2, 3], self.weight.shape[0]
        mean = emit(relax.op.mean(x._expr, axis=axes, keepdims=True), "mean")
        variance = emit(relax.op.variance(x._expr, axis=axes, keepdims=True), "variance")
        deviation = nn.op.sqrt(nn.op.add(variance, scalar(_EPSILON)))
        normed = nn.op.divide(nn.op.subtract(x, mean), deviation)
        weight, bias = (nn.op.reshape(item, (1, num_channels, 1, 1)) for item in (self.weight, self.bias))
        return nn.op.add(nn.op.multiply(normed, weight), bias)


class NormedConvolution(Layer):
    """Convolution, batch normalisation, and an activation where one is asked for."""

    def __init__(
        self,
        num_inputs: int,
        num_outputs: int,
        *,
        kernel: int,
        training: bool,
        stride: int = 1,
        groups: int = 1,
        activation: str | None = "relu",
    ) -> None:
        self.conv = Convolution(num_inputs, num_outputs, kernel=kernel, stride=stride, groups=groups)
        self.norm = BatchNorm(num_outputs, training=training)
        self.activation = activation

    def forward(self, x: nn.Tensor) -> nn.Tensor:
        """Return shape (batch, outputs, ⌈height / stride⌉, ⌈width / stride⌉)."""
        x = self.norm(self.conv(x))
        match self.activation:
            case "relu":
                return nn.op.relu(x)
            case "relu6":
                # Not `relax.nn.relu6`, which has no gradient.
                return nn.op.minimum(nn.op.relu(x), scalar(6.0))
        return x


def max_pool(x: nn.Tensor, *, kernel: int, stride: int) -> nn.Tensor:
    """Return the largest of each square, over images padded by half of its extent."""
    return emit(relax.op.nn.max_pool2d(x._expr, [kernel, kernel], [stride, stride], kernel // 2), "max_pool")


def average(x: nn.Tensor) -> nn.Tensor:
    """Return each channel's mean over the image, shape (batch, channels)."""
    return emit(relax.op.mean(x._expr, axis=[2, 3]), "average")
