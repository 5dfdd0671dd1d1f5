"""Megatron-Core's `--pipeline-model-parallel-layout`, read and written, and the orders that Megatron runs on
it.

A layout names the layers of each stage: `E` the embedding, `t` a transformer layer, `m` a layer of
multi-token prediction, `L` the loss with the output layer. `|` stands between stages; `x*n` repeats a letter
or a bar and `(…)*n` a part without parentheses inside; commas are ignored. Stage `virtual rank x pipeline
size + pipeline rank` is the chunk of that number on that rank: a loop, never a V.

    Et|(tt|)*30L  on 16 ranks     rank 0    E t  and  t t        on rank 15   t t  and  L

Megatron chooses the order itself: 1F1B with one chunk a rank, interleaved 1F1B with several, in which
micro-batches go through a chunk in groups of `microbatch_group_size_per_vp_stage`. Not read: layouts with
encoder layers, which Megatron refuses too. Checked in tests/tessel/exports/test_megatron.py, also against
what Megatron's own parser gives.

Source: Megatron-Core, `pipeline_parallel_layer_layout.py` and `schedules.py`; Narayanan et al., SC 2021.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from tessel.engine.actions import Action, ActionKind, RankActions
from tessel.errors import ScheduleError, shown

MAX_LAYERS = 1 << 16
"""Most layers and stages of a layout that is read; a typing error must not ask for all memory."""

MAX_TEXT = 1 << 20
"""Longest layout that is read; a letter and a bar for each of the most layers are an eighth of it."""

_TOKEN = re.compile(r"[EtmL|()]|\*[0-9]{1,9}")
_NAMES = {"embedding": "E", "decoder": "t", "mtp": "m", "loss": "L"}
"""Megatron's names of layers, as layouts in Python list them."""


@dataclass(frozen=True, slots=True)
class MegatronLayout:
    """The layers of each stage, as letters; valid from birth.

    Attributes:
        stages: the letters of each stage, in the order in which a micro-batch visits them; may be empty.
        pipeline: ranks of the pipeline.

    Raises:
        ScheduleError: Megatron would refuse it; says why.
    """

    stages: tuple[str, ...]
    pipeline: int

    def __post_init__(self) -> None:
        if self.pipeline < 1:
            raise ScheduleError(f"a pipeline of {self.pipeline} ranks runs nothing; give at least 1")
        if len(self.stages) % self.pipeline:
            raise ScheduleError(
                f"the layout has {len(self.stages)} stages, which do not spread evenly over {self.pipeline} "
                "ranks; add or leave out stages, or name another number of ranks"
            )
        _check_ends(self.layers)
        _check_prediction_layers(self)

    @property
    def layers(self) -> str:
        """The letters of all layers, in model order."""
        return "".join(self.stages)

    @property
    def virtual(self) -> int:
        """Chunks of each rank, Megatron's virtual pipeline size."""
        return len(self.stages) // self.pipeline

    @property
    def num_decoder_layers(self) -> int:
        """Transformer layers, Megatron's `--num-layers`."""
        return self.layers.count("t")

    def rank_of(self, stage: int) -> int:
        """Return the rank that holds a stage."""
        return stage % self.pipeline

    def __str__(self) -> str:
        return layout_text(self.stages)


def read_layout(text: str, pipeline: int) -> MegatronLayout:
    """Return the layout of a text such as `Et|(tt|)*30L`.

    Args:
        text: as Megatron takes it; blanks and line ends around it do not count.
        pipeline: ranks of the pipeline.

    Raises:
        ScheduleError: it is no layout, or Megatron would refuse it; says what was found and where.
    """
    stages = tuple(_unrolled(text.strip().replace(",", "")).split("|"))
    if len(stages) > MAX_LAYERS:
        raise _too_many()
    return MegatronLayout(stages, pipeline)


def layout_of_names(stages: Sequence[Sequence[str]], pipeline: int) -> MegatronLayout:
    """Return the layout of stages that list Megatron's names of layers, such as `decoder`, or their letters.

    Raises:
        ScheduleError: a name is none of Megatron's, or Megatron would refuse the layout.
    """
    letters = []
    for number, stage in enumerate(stages):
        for name in stage:
            if name not in _NAMES and name not in _NAMES.values():
                raise ScheduleError(
                    f"stage {number} has the layer {shown(name)!r}, which is none of "
                    f"{', '.join(_NAMES)}; correct the name"
                )
        letters.append("".join(_NAMES.get(name, name) for name in stage))
    return MegatronLayout(tuple(letters), pipeline)


def layout_text(stages: Sequence[str]) -> str:
    """Return the shortest text of stages that repeated letters and equal neighbours allow.

    Two equal stages or more become a group with its bar inside, `(tt|)*30`. No letter is a digit, so that no
    number grows by what follows it.
    """
    runs = [(stage, len(list(same))) for stage, same in groupby(stages[:-1])]
    parts = []
    for stage, count in runs:
        letters = _letters(stage)
        once = f"{letters}|"
        repeated = f"({once})*{count}" if letters else f"|*{count}"
        parts.append(min(once * count, repeated, key=len) if count > 1 else once)
    return "".join([*parts, _letters(stages[-1])])


def megatron_orders(
    layout: MegatronLayout, micro_batches: int, *, group_size: int | None = None
) -> RankActions:
    """Return the actions of each rank in the order in which Megatron runs them.

    Args:
        layout: the stages; those without layers pass on what they are given, and have actions too.
        micro_batches: of one pipeline in a training step.
        group_size: `microbatch_group_size_per_vp_stage`; the pipeline's size unless given.

    Raises:
        ScheduleError: Megatron would refuse these numbers; says which ones it takes.
    """
    if micro_batches < 1:
        raise ScheduleError(f"{micro_batches} micro-batches run nothing; give at least 1")
    if layout.virtual == 1:
        return tuple(_order_1f1b(rank, layout.pipeline, micro_batches) for rank in range(layout.pipeline))
    size = layout.pipeline if group_size is None else group_size
    reason = why_not_group_size(size, layout.pipeline, micro_batches)
    if reason is not None:
        raise ScheduleError(reason)
    return tuple(_interleaved(rank, layout, micro_batches, size) for rank in range(layout.pipeline))


def why_not_group_size(size: int, pipeline: int, micro_batches: int) -> str | None:
    """Return why Megatron refuses a group size with several chunks a rank, or None where it takes it."""
    if not pipeline <= size <= micro_batches:
        return (
            f"groups of {size} micro-batches are not within {pipeline}..{micro_batches}, from the pipeline's "
            "size to the number of micro-batches, which is all that Megatron interleaves; give another "
            "--group-size or more micro-batches"
        )
    rest = micro_batches % size
    if 0 < rest < pipeline:
        return (
            f"{micro_batches} micro-batches in groups of {size} leave a last group of {rest}, fewer than the "
            f"{pipeline} ranks, which Megatron refuses; choose numbers that leave none, or at least "
            f"{pipeline}"
        )
    return None


def group_sizes(pipeline: int, micro_batches: int) -> tuple[int, ...]:
    """Return the group sizes that Megatron takes, ascending."""
    return tuple(
        size
        for size in range(pipeline, micro_batches + 1)
        if why_not_group_size(size, pipeline, micro_batches) is None
    )


def _unrolled(text: str) -> str:
    """Return the text without repetitions: groups first, then single letters and bars."""
    if len(text) > MAX_TEXT:
        raise ScheduleError(
            f"the layout has {len(text)} characters, more than the {MAX_TEXT} that are read; give the layout "
            "of one model"
        )
    tokens = list(_tokens(text))
    return _repeat_letters(list(_repeat_groups(tokens)))


def _tokens(text: str) -> Iterator[str]:
    position = 0
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            raise ScheduleError(
                f"the layout has {shown(text[position : position + 12])!r} at character {position + 1}, "
                f"and a "
                "layout has the letters E t m L, bars between stages, and repetitions such as t*3 and "
                "(tt|)*4; correct it"
            )
        yield match.group()
        position = match.end()


def _repeat_groups(tokens: Sequence[str]) -> Iterator[str]:
    """Yield the tokens with each group as often as it says."""
    position = count = 0
    while position < len(tokens):
        token = tokens[position]
        if token == "(":
            inside, position = _group(tokens, position)
            times = int(tokens[position][1:])
            count += times * len(inside)
            if count > 2 * MAX_LAYERS:
                raise _too_many()
            yield from inside * times
        elif token == ")":
            raise ScheduleError("the layout closes a parenthesis that it never opened; leave it out")
        else:
            yield token
        position += 1


def _group(tokens: Sequence[str], position: int) -> tuple[list[str], int]:
    """Return what stands in the parentheses that open here, and the place of their repetition."""
    try:
        end = tokens.index(")", position)
    except ValueError:
        raise ScheduleError("the layout opens a parenthesis that it never closes; close it") from None
    inside = list(tokens[position + 1 : end])
    if "(" in inside:
        raise ScheduleError(
            "the layout has parentheses inside parentheses, which Megatron cannot read; write the inner "
            "ones out"
        )
    if not inside or not tokens[end + 1 : end + 2] or not tokens[end + 1].startswith("*"):
        raise ScheduleError(
            f"the layout has ({''.join(inside)}) without a number of repetitions, or with nothing in it; "
            "write (tt|)*4, or leave the parentheses out"
        )
    return inside, end + 1


def _repeat_letters(tokens: Sequence[str]) -> str:
    """Return the letters and bars with each as often as it says."""
    parts: list[str] = []
    count = 0
    for position, token in enumerate(tokens):
        if not token.startswith("*"):
            parts.append(token)
            count += 1
            continue
        if not position or tokens[position - 1].startswith("*"):
            raise ScheduleError(
                f"the layout repeats nothing with {token!r}; write it after a letter, a bar or a parenthesis"
            )
        count += int(token[1:])
        if count > 2 * MAX_LAYERS:
            raise _too_many()
        parts[-1] *= int(token[1:])
    return "".join(parts)


def _too_many() -> ScheduleError:
    return ScheduleError(
        f"the layout has more than {MAX_LAYERS} layers or stages; correct a number of repetitions"
    )


def _check_ends(layers: str) -> None:
    for letter, name in (("E", "embedding"), ("L", "loss")):
        if layers.count(letter) != 1:
            raise ScheduleError(
                f"the layout has {letter} {layers.count(letter)} times, and a model has one {name}; give one"
            )
    if not layers.startswith("E") or not layers.endswith("L"):
        raise ScheduleError(
            "the layout does not begin with E and end with L; the embedding comes first and the loss last"
        )


def _check_prediction_layers(layout: MegatronLayout) -> None:
    """Refuse layers of multi-token prediction where Megatron does not build them."""
    layers = layout.layers
    if "m" not in layers:
        return
    if "t" in layers[layers.index("m") :]:
        raise ScheduleError(
            "the layout has a t behind an m, and prediction layers come last; move the m back"
        )
    holding = [number for number, stage in enumerate(layout.stages) if "m" in stage]
    last_chunk = len(layout.stages) - layout.pipeline
    if len(holding) > 1:
        raise ScheduleError(
            f"the layout has m in stages {holding}, and Megatron builds all of them in one stage; move them "
            "together"
        )
    if holding[0] < last_chunk:
        raise ScheduleError(
            f"the layout has m in stage {holding[0]}, chunk {holding[0] // layout.pipeline} of rank "
            f"{layout.rank_of(holding[0])}, and Megatron builds them in a rank's last chunk only; move it to "
            f"stage {last_chunk} or later"
        )


def _letters(stage: str) -> str:
    """Return a stage with runs of four letters or more as repetitions, which are shorter then."""
    runs = [(letter, len(list(same))) for letter, same in groupby(stage)]
    return "".join(f"{letter}*{count}" if count > 3 else letter * count for letter, count in runs)


def orders_of_turns(
    turns: Sequence[tuple[int, int]], rank: int, *, pipeline: int, chunks: int, group_size: int
) -> tuple[Action, ...]:
    """Return what a rank runs where forwards take these turns, and backwards the same from the last chunk on.

    Args:
        turns: chunk and micro-batch of each forward; backwards take the chunks the other way round.
        chunks: of each rank; one runs 1F1B.
        group_size: micro-batches that go through a chunk before the next chunk's turn.
    """
    warm_up = pipeline - rank - 1
    if chunks > 1:
        warm_up = 2 * warm_up + (chunks - 1) * group_size
    forwards = [Action(rank + pipeline * chunk, ActionKind.FORWARD, number) for chunk, number in turns]
    backwards = [
        Action(rank + pipeline * (chunks - 1 - chunk), ActionKind.BACKWARD, number) for chunk, number in turns
    ]
    return _alternated(forwards, backwards, min(warm_up, len(turns)))


def _order_1f1b(rank: int, pipeline: int, micro_batches: int) -> tuple[Action, ...]:
    turns = [(0, number) for number in range(micro_batches)]
    return orders_of_turns(turns, rank, pipeline=pipeline, chunks=1, group_size=micro_batches)


def _interleaved(
    rank: int, layout: MegatronLayout, micro_batches: int, group_size: int
) -> tuple[Action, ...]:
    turns = [
        (chunk, micro_batch)
        for first in range(0, micro_batches, group_size)
        for chunk in range(layout.virtual)
        for micro_batch in range(first, min(first + group_size, micro_batches))
    ]
    return orders_of_turns(
        turns, rank, pipeline=layout.pipeline, chunks=layout.virtual, group_size=group_size
    )


def _alternated(forwards: Sequence[Action], backwards: Sequence[Action], warm_up: int) -> tuple[Action, ...]:
    """Return so many forwards, then one of each in turn, then the backwards that are left."""
    steady = [
        action
        for pair in zip(forwards[warm_up:], backwards[: len(forwards) - warm_up], strict=True)
        for action in pair
    ]
    return (*forwards[:warm_up], *steady, *backwards[len(forwards) - warm_up :])
