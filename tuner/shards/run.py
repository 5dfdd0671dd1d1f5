"""Run all shards of a function in one process, a segment at a time: what ranks do, without the ranks.

For checks: collectives are done by numpy, in the order of the shards.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from tuner.errors import TunerError
from tuner.frontend.model import Run
from tuner.shards.interface import Collective, ShardedFunction
from tuner.shards.layouts import join_shards, reduce_terms, take_shard
from tuner.stages.interface import StageFunction


def run_shards(
    function: ShardedFunction, tensors: Sequence[Mapping[str, np.ndarray]], run: Run
) -> list[dict[str, np.ndarray]]:
    """Return each shard's outputs by name.

    Args:
        tensors: each shard's inputs by name, as they lie.

    Raises:
        TunerError: a segment reads what nobody makes.
    """
    known = [
        {offset.name: np.asarray(offset.values[rank], offset.dtype) for offset in function.offsets}
        | dict(given)
        for rank, given in enumerate(tensors)
    ]
    for segment, collectives in zip(function.segments, function.rounds, strict=True):
        for rank, part in enumerate(segment):
            known[rank].update(_run(part, known[rank], run))
        for collective in collectives:
            _reduce(collective, known)
    return [{name: each[source] for name, source in function.sources.items()} for each in known]


def run_as_whole(function: ShardedFunction, inputs: Sequence[np.ndarray], run: Run) -> list[np.ndarray]:
    """Return what the whole function returns, by its shards: inputs are divided, outputs joined.

    Args:
        inputs: whole, in the function's order.
        run: executes a module of a segment.
    """
    given = {info.name: array for info, array in zip(function.inputs, inputs, strict=True)}
    parts = [
        {name: take_shard(array, function.layouts[name], rank) for name, array in given.items()}
        for rank in range(function.num_shards)
    ]
    made = run_shards(function, parts, run)
    return [
        join_shards([part[info.name] for part in made], function.layouts[info.name])
        for info in function.outputs
    ]


def _run(function: StageFunction, known: Mapping[str, np.ndarray], run: Run) -> dict[str, np.ndarray]:
    missing = [info.name for info in function.inputs if info.name not in known]
    if missing:
        raise TunerError(f"a segment of a shard reads {missing}, which nobody makes; shard the stage again")
    results = run(function.module, [known[info.name] for info in function.inputs])
    return {info.name: np.asarray(value) for info, value in zip(function.outputs, results, strict=True)}


def _reduce(collective: Collective, known: Sequence[dict[str, np.ndarray]]) -> None:
    whole = reduce_terms([each[collective.source] for each in known], collective.kind)
    for each in known:
        each[collective.result.name] = whole
