"""Choose how the weights of embedding and head are divided: along the vocabulary.

The words of a model are the rows that its tables are looked up in by the user's inputs. Every weight of the
stages with an axis of that extent is divided along it, so that a head tied to an embedding finds its words
where the embedding has them. Checked in tests/tuner/shards/test_vocabulary.py.

Source: Shoeybi et al., "Megatron-LM" (2019), section 3, divides both tables along the vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import tvm
from tvm import relax

from tuner.errors import TunerError
from tuner.shards.layouts import Layout, split_axis
from tuner.stages.interface import Stage
from tuner.stages.program import operator_name


def vocabulary_layouts(stages: Sequence[Stage], num_shards: int) -> Mapping[str, Layout]:
    """Return layouts of the stages' weights that have an axis of words, by name.

    Args:
        stages: of one model, those to be sharded; the first looks words up.
        num_shards: at least 2.

    Raises:
        TunerError: no stage looks up words that a user gives, or there are fewer words than shards.
    """
    words = _num_words(stages)
    layouts: dict[str, Layout] = {}
    for stage in stages:
        own = set(stage.parameters)
        for info in stage.forward.inputs:
            if info.name in own and words in info.shape:
                layouts[info.name] = split_axis(info.shape.index(words), words, num_shards)
    return layouts


def holds_words(stage: Stage, stages: Sequence[Stage]) -> bool:
    """Whether a stage has a weight with an axis of words, of which all stages of the model are asked."""
    if not has_words(stages):
        return False
    words = _num_words(stages)
    own = set(stage.parameters)
    return any(info.name in own and words in info.shape for info in stage.forward.inputs)


def has_words(stages: Sequence[Stage]) -> bool:
    """Whether some stage looks up a table by what is computed from an input."""
    return any(_looked_up(stage) for stage in stages)


def _num_words(stages: Sequence[Stage]) -> int:
    """Return the rows of the largest table that is looked up by what is computed from an input."""
    rows = [rows for stage in stages for rows in _looked_up(stage)]
    if not rows:
        raise TunerError(
            f"{' and '.join(stage.name for stage in stages)} look up no table by the model's inputs, so "
            "there are no words to divide; choose a chain"
        )
    return max(rows)


def _looked_up(stage: Stage) -> list[int]:
    function = stage.forward.module["main"]
    found = []
    for block in function.body.blocks:
        for binding in block.bindings:
            if operator_name(binding.value) == "take" and isinstance(binding.value, relax.Call):
                table, indices = binding.value.args
                if not isinstance(indices, tvm.ir.expr.Constant) and len(table.ty.shape) > 1:
                    found.append(int(table.ty.shape[int(binding.value.attrs.axis or 0)]))
    return found
