"""Random stretches of convolutional networks as Relax programs: whatever may meet in one, at small shapes."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from tvm import relax

from tests.samples.partition_samples import Body
from tuner.backends.library_call import shape_of

op = relax.op

_FILTERS = (4, 8, 12, 16, 20, 32, 44, 6)
"""6 fills no vectors: such convolutions are left to TVM."""


class _Writer:
    """Draws operators one by one; the same seed draws the same, so that a first pass finds the parameters."""

    def __init__(self, seed: int, parameters: Sequence[Any] | None = None) -> None:
        self.draw = random.Random(seed)
        self.shapes: list[tuple[int, ...]] = []
        self.given = iter(parameters) if parameters is not None else None
        self.builder = relax.BlockBuilder.current()

    def parameter(self, *shape: int) -> Any:
        self.shapes.append(shape)
        if self.given is not None:
            return next(self.given)
        return relax.Var(f"p{len(self.shapes)}", relax.TensorType(shape, "float32"))

    def emit(self, call: Any) -> Any:
        return self.builder.emit(call)

    def program(self) -> Any:
        """Return the last of some operators, each of which reads what came before."""
        draw = self.draw
        channels = draw.choice((3, 8, 12, 16, 24))
        values = [self.parameter(draw.choice((1, 1, 2)), channels, draw.randint(5, 14), draw.randint(5, 14))]
        values.append(self.convolved(values[0]))
        for _ in range(draw.randint(3, 9)):
            # Mostly what is newest, so that the program is deep.
            value = values[-1] if draw.random() < 0.7 else draw.choice(values)
            make = draw.choice(
                (
                    self.convolved, self.convolved, self.convolved, self.depthwise, self.joined, self.joined,
                    self.summed, self.bounded, self.normalised, self.pooled,
                )
            )  # fmt: skip
            values.append(make(value, values) if make in (self.joined, self.summed) else make(value))
        return values[-1]

    def convolved(self, value: Any) -> Any:
        draw = self.draw
        _, channels, height, width = shape_of(value)
        kernel = draw.choice([size for size in (1, 1, 3, 3, 5) if size <= min(height, width)])
        filters = draw.choice(_FILTERS)
        padding = draw.choice((0, kernel // 2, kernel // 2))
        weights = self.parameter(filters, channels, kernel, kernel)
        result = self.emit(op.nn.conv2d(value, weights, strides=draw.choice((1, 1, 1, 2)), padding=padding))
        return self.followed(result)

    def depthwise(self, value: Any) -> Any:
        draw = self.draw
        channels = shape_of(value)[1]
        weights = self.parameter(channels, 1, 3, 3)
        strides = draw.choice((1, 1, 2))
        return self.followed(
            self.emit(op.nn.conv2d(value, weights, strides=strides, padding=1, groups=channels))
        )

    def followed(self, value: Any) -> Any:
        """Add what kernels of convolutions do besides, some of the time."""
        draw = self.draw
        if draw.random() < 0.5:
            value = self.emit(op.add(value, self.parameter(1, shape_of(value)[1], 1, 1)))
        return self.bounded(value) if draw.random() < 0.5 else value

    def bounded(self, value: Any) -> Any:
        draw = self.draw
        if draw.random() < 0.6:
            return self.emit(op.nn.relu(value))
        lower = draw.choice((0.0, -0.5))
        return self.emit(op.clip(value, lower, draw.choice((0.25, 6.0))))

    def normalised(self, value: Any) -> Any:
        gamma, beta, mean, variance = (self.parameter(shape_of(value)[1]) for _ in range(4))
        spread = self.emit(op.exp(variance))
        found = op.nn.batch_norm(value, gamma, beta, mean, spread, axis=1, training=False)
        return self.emit(relax.TupleGetItem(self.emit(found), 0))

    def pooled(self, value: Any) -> Any:
        if min(shape_of(value)[2:]) < 3:
            return self.emit(op.tanh(value))
        return self.emit(
            self.draw.choice(
                (
                    lambda: op.nn.avg_pool2d(value, (2, 2), (2, 2)),
                    lambda: op.nn.max_pool2d(value, (3, 3), (2, 2), (1, 1)),
                    lambda: op.nn.max_pool2d(value, (3, 3), (1, 1), (1, 1), ceil_mode=True),
                    lambda: op.nn.adaptive_avg_pool2d(value, (1, 1)),
                )
            )()
        )

    def joined(self, value: Any, values: Sequence[Any]) -> Any:
        batch, _, height, width = shape_of(value)
        alike = [
            each for each in values if shape_of(each)[0] == batch and shape_of(each)[2:] == (height, width)
        ]
        chosen = [value, *self.draw.choices(alike, k=self.draw.randint(1, 2))]
        self.draw.shuffle(chosen)
        return self.emit(op.concat(chosen, axis=1))

    def summed(self, value: Any, values: Sequence[Any]) -> Any:
        alike = [each for each in values if shape_of(each) == shape_of(value)]
        return self.emit(op.add(value, self.draw.choice(alike)))


def random_stretch(seed: int) -> tuple[Sequence[Sequence[int]], Body]:
    """Return the shapes of a program's parameters, images first, and what it computes."""
    builder = relax.BlockBuilder()
    with builder.function("main", []):
        first = _Writer(seed)
        with builder.dataflow():
            output = builder.emit_output(first.program())
        builder.emit_func_output(output)
    return first.shapes, lambda *parameters: _Writer(seed, parameters).program()
