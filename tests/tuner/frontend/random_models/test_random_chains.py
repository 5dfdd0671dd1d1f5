"""Random chains are one network a seed, of every kind of layer, and can be trained."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import tvm_ffi

from tuner.frontend import Model
from tuner.frontend.random_models.convolutions import random_convolutions
from tuner.frontend.random_models.products import random_products
from tuner.stages import build_stages

pytestmark = pytest.mark.tvm


def _groups(seed: int) -> list[tuple[int, int]]:
    """Return (groups, channels) of each convolution."""
    (block,) = random_convolutions(seed, training=False).module["main"].body.blocks
    calls = [binding.value for binding in block.bindings]
    convolutions = [
        call for call in calls if getattr(getattr(call, "op", None), "name", "") == "relax.nn.conv2d"
    ]
    return [(int(call.attrs.groups), int(call.args[0].ty.shape[1])) for call in convolutions]


@pytest.mark.parametrize("draw", [random_convolutions, random_products])
def test_a_seed_is_one_chain(draw: Callable[..., Model]) -> None:
    first, again, other = (draw(seed, training=False).module for seed in (3, 3, 4))
    assert tvm_ffi.structural_equal(first, again)
    assert not tvm_ffi.structural_equal(first, other)


def test_chains_hold_dense_grouped_and_depthwise_filters() -> None:
    found = [pair for seed in range(12) for pair in _groups(seed)]
    assert len(found) == 36
    assert any(groups == 1 for groups, _ in found)
    assert any(groups == channels for groups, channels in found)
    assert any(1 < groups < channels for groups, channels in found)


@pytest.mark.parametrize("draw", [random_convolutions, random_products])
def test_gradients_of_every_layer_are_part_of_it(draw: Callable[..., Model]) -> None:
    for seed in range(3):
        (stage,) = build_stages(draw(seed, training=True), ())
        assert stage.backward is not None
