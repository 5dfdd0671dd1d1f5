"""Flags of Megatron-Core beside its layout: kinds of layers, recomputation, and older ways to cut a model.

Checked in tests/tessel/exports/test_megatron_flags.py, also against what Megatron itself builds of them.

Source: Megatron-LM, `megatron/training/arguments.py` and `get_num_layers_to_build`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import groupby, product

from tessel.exports.megatron import MegatronLayout

_NUMBER = re.compile(r"[0-9]+")
_EXPERTS = re.compile(r"moe|expert|sparse", re.IGNORECASE)


def kind_of_layer(name: str) -> str:
    """Return a layer's name without what numbers it."""
    return _NUMBER.sub("#", name)


def moe_layer_freq(blocks: Sequence[str]) -> str | None:
    """Return Megatron's `--moe-layer-freq` of layers of two kinds, of which one has experts; else None.

    Args:
        blocks: names of all transformer layers, in model order.
    """
    kinds = [kind_of_layer(name) for name in blocks]
    sparse = {kind for kind in kinds if _EXPERTS.search(kind)}
    if len(set(kinds)) != 2 or len(sparse) != 1:
        return None
    runs = [
        (int(is_sparse), len(list(same))) for is_sparse, same in groupby(kind in sparse for kind in kinds)
    ]
    return "(" + "+".join(f"[{is_sparse}]*{count}" for is_sparse, count in runs) + ")"


def recompute_flags(recompute: Sequence[bool]) -> list[str]:
    """Return the flags by which Megatron recomputes whole layers: of all stages, where any is to."""
    if not any(recompute):
        return []
    return ["--recompute-granularity full", "--recompute-method uniform", "--recompute-num-layers 1"]


def split_flags(layout: MegatronLayout) -> list[str] | None:
    """Return flags that cut a model as a layout does, for releases that take none; None where there are none.

    Layers are even once the embedding and the loss count as one each, or the first and the last rank have a
    number of their own.
    """
    counts = [stage.count("t") for stage in layout.stages]
    if "m" in layout.layers or "E" not in layout.stages[0] or "L" not in layout.stages[-1]:
        return None
    chunks = [f"--num-virtual-stages-per-pipeline-rank {layout.virtual}"] if layout.virtual > 1 else []
    for embedding, loss in product((0, 1), repeat=2):
        padded = [counts[0] + embedding, *counts[1:]]
        padded[-1] += loss
        if len(set(padded)) == 1 and padded[0]:
            accounted = [
                *(["--account-for-embedding-in-pipeline-split"] if embedding else []),
                *(["--account-for-loss-in-pipeline-split"] if loss else []),
            ]
            return [*accounted, *chunks]
    first, *middle, last = counts  # one stage alone is even
    if layout.virtual > 1 or len(set(middle)) > 1 or not min(counts):
        return None
    flags = [f"--decoder-first-pipeline-num-layers {first}"] if not middle or first != middle[0] else []
    return flags + ([f"--decoder-last-pipeline-num-layers {last}"] if middle and last != middle[0] else [])
