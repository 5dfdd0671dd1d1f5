"""Shard a stage: its forward and its backward functions, from the layouts of its weights.

A tensor that the forward saves stays on the shards as it lies there, and its backward functions take it so.
Boundary tensors and the gradients of what comes in are whole on every shard; a weight's gradient lies as the
weight does. The gradient of a weight that is whole on every shard is whole there too: it is computed by each,
and not summed. Checked in tests/tuner/shards/test_stage.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from tuner.errors import TunerError
from tuner.plan import TensorInfo
from tuner.shards.interface import ShardedFunction, ShardedStage, shard_bytes
from tuner.shards.layouts import Layout, Replicated
from tuner.shards.propagate import shard_function
from tuner.shards.tensor_parallel import tensor_parallel_layouts
from tuner.shards.vocabulary import has_words, vocabulary_layouts
from tuner.stages.interface import Stage, StageFunction, gradient_name


def shard_stage(stage: Stage, weights: Mapping[str, Layout], num_shards: int) -> ShardedStage:
    """Write a stage's functions for shards.

    Args:
        stage: the whole stage.
        weights: layouts of weights by name; those of other stages do not count, and weights that are not
            named are whole on every shard.
        num_shards: at least 2.

    Raises:
        UnsupportedOperatorError: no rule shards an operator that a split weight leads to.
    """
    layouts: dict[str, Layout] = {name: weights[name] for name in stage.parameters if name in weights}
    whole: dict[str, Layout] = {info.name: Replicated() for info in (*stage.outputs, *stage.sent)}
    whole |= {gradient_name(info.name): Replicated() for info in stage.inputs}
    whole |= {gradient_name(name): layouts.get(name, Replicated()) for name in stage.parameters}

    def sharded(function: StageFunction | None) -> ShardedFunction | None:
        if function is None:
            return None
        found = shard_function(function, layouts, num_shards, wanted=whole)
        layouts.update(found.layouts)
        return found

    forward = sharded(stage.forward)
    assert forward is not None
    backward, first = sharded(stage.backward), sharded(stage.backward_input)
    second = sharded(stage.backward_weight)
    described = {info.name: info for info in stage.forward.inputs}
    own = [described[name] for name in stage.parameters]
    return ShardedStage(
        forward=forward,
        backward=backward,
        backward_input=first,
        backward_weight=second,
        layouts=layouts,
        weight_bytes=_bytes(own, layouts, num_shards),
        saved_bytes=_bytes(stage.saved, layouts, num_shards),
        saved_for_weight_bytes=_bytes(stage.saved_for_weight, layouts, num_shards),
    )


def shard_ends(stages: Sequence[Stage]) -> dict[str, ShardedStage]:
    """Divide the first and the last stage by vocabulary, over as many devices as there are stages between.

    Raises:
        TunerError: they look up no words, or an operator between has no rule; names it.
    """
    num_shards = len(stages) - 2
    return shard_stages(stages, {0: num_shards, len(stages) - 1: num_shards})


def shard_stages(stages: Sequence[Stage], counts: Mapping[int, int]) -> dict[str, ShardedStage]:
    """Divide stages: tables of words by words, feed-forward layers and attention as Megatron-LM does.

    Args:
        stages: of one model, in order.
        counts: over how many devices each of those to be divided is, by number.

    Raises:
        TunerError: no stage has anything to divide, or an operator on the way has no rule; names it.
    """
    found: dict[str, ShardedStage] = {}
    are_divided = False
    for num_shards in sorted(set(counts.values())):
        own = [stages[number] for number, count in sorted(counts.items()) if count == num_shards]
        words: Mapping[str, Layout] = vocabulary_layouts(own, num_shards) if has_words(own) else {}
        for stage in own:
            layouts = tensor_parallel_layouts(stage, words, num_shards)
            are_divided = are_divided or not layouts.keys().isdisjoint(stage.parameters)
            found[stage.name] = shard_stage(stage, layouts, num_shards)
    if counts and not are_divided:
        names = " and ".join("+".join(stages[number].layers) for number in sorted(counts))
        raise TunerError(
            f"{names} look up no words, and have no feed-forward layer or attention that divides over "
            f"{' or '.join(map(str, sorted(set(counts.values()))))} devices; put them on one device each"
        )
    return found


def _bytes(tensors: Iterable[TensorInfo], layouts: Mapping[str, Layout], num_shards: int) -> tuple[int, ...]:
    """Sum what tensors take on each shard."""
    by_tensor = [shard_bytes(info, layouts.get(info.name, Replicated()), num_shards) for info in tensors]
    return tuple(sum(each[rank] for each in by_tensor) for rank in range(num_shards))
