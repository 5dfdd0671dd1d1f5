"""Find the sizes of a prompt's chunks with which a pipeline of stages is through with it first.

    equal sizes    later chunks take longer, and every stage waits for the longest
    equal times    c0 ······· c1 ······ c2 ····· c3 ····     none waits, but launches and ramps count

Fewer chunks have fewer launches, more of them shorter ramps. For each number of chunks the least longest
chunk is found exactly (`least_cap`); where all stages take equally long, no chunks of that number are better,
and the answer is proven. Where stages differ, chunks are made of a linear program's times
(`tessel.search.batches.chunk_relaxation`), ends are moved, and a gap is left to its bound, or to that of a
path past all chunks which goes down the stages at the longest:

    bound(K) = max over stages x ≤ y of  min(f_x, f_y)·(all work − longest) + (f_x + … + f_y)·longest + ramps

A short prompt is cut in every way. The rules of serving frameworks are candidates, so that no answer is
longer than theirs. Checked in tests/tessel/search/batches/test_chunks.py.

Source: that the sizes of slices be searched for by their measured times is from Li et al., "TeraPipe:
Token-Level Pipeline Parallelism for Training Large-Scale Language Models" (ICML 2021, section 3.3), where one
longest slice is tried after another; the dynamic rule is SGLang's (`tessel.search.batches.chunk_rules`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from tessel.batches.batch import Batch, IntArray, MicroBatchClass
from tessel.batches.chunk_law import ChunkLaw
from tessel.errors import InfeasibleError
from tessel.placement import Placement
from tessel.schedule.schedule import Schedule
from tessel.search.batches.chunk_relaxation import relaxed_bound
from tessel.search.batches.chunk_rules import SMOOTHINGS, dynamic_chunks, equal_chunks, sizes_to_try
from tessel.search.batches.chunk_times import (
    PrefillArrays,
    best_of_all,
    ends_of,
    improve_chunks,
    keeps_chunk_limits,
    law_array,
    least_cap,
    prefill_us,
)
from tessel.search.batches.replay import FloatArray
from tessel.shapes import vshape

MAX_CUTS = 14
"""Places at which a prompt is cut in every way: 16 thousand, in some milliseconds."""

MAX_COUNTS = 200
"""Numbers of chunks that are tried; all others have the bound that equal times give."""

NUM_IMPROVED = 6
"""Candidates whose ends are moved."""

MAX_MOVED = 200
"""Chunks whose ends are moved; a pass looks at each twice, and times all."""

NUM_SIZES = 256
"""Sizes that the rules are tried with."""

SAME = 1e-9
"""Share of a time below which two are the same."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prefill:
    """A prompt, and the pipeline that it goes through.

    Attributes:
        prompt: tokens, at least 1.
        law: what a chunk takes on a stage.
        factors: by stage: its time over the law's.
        multiple: of which every chunk but the last is one.
        max_chunk: tokens of a chunk, at least a multiple; None for no limit.
        max_wait_us: that a chunk may take on any stage, as decode steps wait for it; None for no limit.
        hop_us: from a stage to the next.
        decode_us: of a decode step on a stage of factor 1, which follows every chunk but the last; 0 for
            none. Its requests are taken to be in as many groups as stages, so that no step waits for a token.
    """

    prompt: int
    law: ChunkLaw
    factors: tuple[float, ...]
    multiple: int = 64
    max_chunk: int | None = None
    max_wait_us: float | None = None
    hop_us: float = 0.0
    decode_us: float = 0.0

    @property
    def largest(self) -> int:
        """Tokens of the largest chunk."""
        return self.prompt if self.max_chunk is None else min(self.max_chunk, self.prompt)

    def arrays(self) -> PrefillArrays:
        """Return it as compiled functions take it."""
        longest = float("inf") if self.max_wait_us is None else self.max_wait_us / max(self.factors)
        return PrefillArrays(
            self.prompt,
            self.multiple,
            self.largest,
            longest,
            np.array(self.factors),
            law_array(self.law),
            self.hop_us,
            self.decode_us,
        )

    def time_us(self, chunks: tuple[int, ...]) -> float:
        """Return when the last stage is through with chunks of these sizes."""
        return float(prefill_us(self.arrays(), ends_of(chunks), len(chunks)))


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleChunks:
    """The best that a rule of serving frameworks gives.

    Attributes:
        rule: "equal" or "dynamic".
        initial: tokens of its first chunk.
        smoothing: of the dynamic rule; None for equal chunks.
        chunks: tokens of each.
        time_us: until the last stage is through.
    """

    rule: str
    initial: int
    smoothing: float | None
    chunks: tuple[int, ...]
    time_us: float


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundChunks:
    """Chunks of a prompt.

    Attributes:
        prefill: what they are of.
        chunks: tokens of each.
        time_us: predicted, until the last stage is through.
        lower_bound_us: no chunks within the limits take less.
        rules: the best of each rule; a rule is missing where it keeps no limit.
    """

    prefill: Prefill
    chunks: tuple[int, ...]
    time_us: float
    lower_bound_us: float
    rules: tuple[RuleChunks, ...]
    found_by: str

    @property
    def optimal(self) -> bool:
        """Whether nothing is shorter."""
        return self.time_us <= self.lower_bound_us * (1 + SAME)

    @property
    def gap(self) -> float:
        """How far the time may be from the least one, as a share of the bound."""
        return max(0.0, self.time_us / self.lower_bound_us - 1)

    @property
    def longest_wait_us(self) -> float:
        """What the longest chunk takes on the slowest stage."""
        ends = ends_of(self.chunks).tolist()
        times = [self.prefill.law.us(end - size, size) for end, size in zip(ends, self.chunks, strict=True)]
        return max(times) * max(self.prefill.factors)


def find_chunks(prefill: Prefill) -> FoundChunks:
    """Return the best chunks found, and how far they may be from the best.

    Raises:
        InfeasibleError: no chunks keep the limits; says what the smallest one takes.
    """
    arrays = prefill.arrays()
    cuts = -(-prefill.prompt // prefill.multiple) - 1
    buffer = np.zeros(cuts + 1, dtype=np.int64)
    if not np.isfinite(least_cap(arrays, cuts + 1, buffer)):
        raise _nothing_fits(prefill)
    rules = tuple(_best_rules(prefill, arrays))
    if cuts <= MAX_CUTS:
        best = float(best_of_all(arrays, cuts, buffer))
        ends = buffer[: int(np.flatnonzero(buffer == prefill.prompt)[0]) + 1]
        return _found(prefill, ends, best, best, rules, "every way to cut")
    by_rule = [(each.time_us, ends_of(each.chunks), f"{each.rule} chunks") for each in rules]
    counted, bound = _of_each_count(prefill, arrays, cuts + 1, min(each.time_us for each in rules))
    found = [*by_rule, *counted]
    if len(set(prefill.factors)) > 1 and not prefill.decode_us:
        relaxed = _Relaxed(prefill, arrays, found)
        bound = max(bound, relaxed.bound_us(cuts + 1))
    for time_us, ends, _ in sorted(found, key=lambda each: each[0])[:NUM_IMPROVED]:
        if time_us > bound * (1 + SAME) and len(ends) <= MAX_MOVED:
            moved = ends.copy()
            found.append((float(improve_chunks(arrays, moved, len(moved))), moved, "moved ends"))
    time_us, ends, found_by = min(found, key=lambda each: each[0])
    is_met = abs(bound - time_us) <= SAME * time_us
    return _found(prefill, ends, time_us, time_us if is_met else bound, rules, found_by)


def chunk_schedule(found: FoundChunks) -> Schedule:
    """Return chunks and decode steps as a schedule in steps of a microsecond, to draw and to save.

    Times are rounded to whole steps, by less than one a block.
    """
    prefill = found.prefill
    stages = len(prefill.factors)
    lag = round(prefill.hop_us)
    placement = vshape(stages, infer=True, lag=lag) if stages > 1 else vshape(stages, infer=True)
    classes, sequence = _classes(found, placement)
    batch = Batch(classes=tuple(classes), sequence=tuple(sequence))
    free = [0] * stages
    starts = {}
    for micro_batch, own in enumerate(sequence):
        arrival = 0
        for stage, span in enumerate(classes[own].spans):
            starts[stage, micro_batch] = max(free[stage], arrival)
            free[stage] = starts[stage, micro_batch] + span
            arrival = free[stage] + lag
    return Schedule.of(
        placement, starts, micro_batches=len(sequence), batch=batch, found_by=f"chunks: {found.found_by}"
    )


def _classes(found: FoundChunks, placement: Placement) -> tuple[list[MicroBatchClass], list[int]]:
    """Return a class of each distinct chunk and of decode steps, and which of them runs when."""
    prefill = found.prefill
    lags = tuple(edge.lag for edge in placement.edges)

    def named(name: str, time_us: float) -> MicroBatchClass:
        spans = tuple(max(round(factor * time_us), 1) for factor in prefill.factors)
        return MicroBatchClass(name=name, spans=spans, memory=(0,) * len(spans), lags=lags)

    classes: list[MicroBatchClass] = []
    sequence: list[int] = []
    for chunk, (before, end) in enumerate(pairwise((0, *ends_of(found.chunks).tolist()))):
        sequence.append(len(classes))
        classes.append(named(f"{before}-{end - 1}", prefill.law.us(before, end - before)))
        if prefill.decode_us and chunk < len(found.chunks) - 1:
            sequence.append(-1)
    if -1 in sequence:
        classes.append(named("decode", prefill.decode_us))
    return classes, [len(classes) - 1 if each < 0 else each for each in sequence]


def _found(
    prefill: Prefill,
    ends: IntArray,
    time_us: float,
    bound: float,
    rules: tuple[RuleChunks, ...],
    found_by: str,
) -> FoundChunks:
    return FoundChunks(
        prefill=prefill,
        chunks=tuple(np.diff(ends, prepend=0).tolist()),
        time_us=float(time_us),
        lower_bound_us=float(bound),
        rules=rules,
        found_by=found_by,
    )


def _best_rules(prefill: Prefill, arrays: PrefillArrays) -> Iterator[RuleChunks]:
    """Yield the best of each rule that keeps the limits, over its sizes and smoothings."""
    law, prompt, multiple = prefill.law, prefill.prompt, prefill.multiple
    best: dict[str, RuleChunks] = {}
    for smoothing in (None, *SMOOTHINGS):
        rule = "equal" if smoothing is None else "dynamic"
        for size in sizes_to_try(prefill.largest, multiple, number=NUM_SIZES):
            chunks = (
                equal_chunks(prompt, size)
                if smoothing is None
                else dynamic_chunks(law, prompt, initial=size, smoothing=smoothing, multiple=multiple)
            )
            ends = ends_of(chunks)
            if not keeps_chunk_limits(arrays, ends, len(ends)):
                continue
            time_us = float(prefill_us(arrays, ends, len(ends)))
            if rule not in best or time_us < best[rule].time_us:
                best[rule] = RuleChunks(
                    rule=rule, initial=size, smoothing=smoothing, chunks=chunks, time_us=time_us
                )
    yield from best.values()


def _of_each_count(
    prefill: Prefill, arrays: PrefillArrays, most: int, best: float
) -> tuple[list[tuple[float, IntArray, str]], float]:
    """Return the chunks of each number that may be best, and the bound over all numbers."""
    counts = np.arange(1, most + 1)
    work = counts * prefill.law.launch_us + prefill.law.tokens_us(prefill.prompt)
    bounds = _bounds(prefill, counts, work / counts)
    found = []
    ends = np.zeros(most, dtype=np.int64)
    for tried, place in enumerate(np.argsort(bounds, kind="stable").tolist()):
        if bounds[place] >= best or tried == MAX_COUNTS:
            break
        longest = least_cap(arrays, place + 1, ends)
        if not np.isfinite(longest):
            bounds[place] = np.inf
            continue
        bounds[place] = _bounds(prefill, counts[place : place + 1], np.array([longest]))[0]
        own = ends[: int(np.flatnonzero(ends == prefill.prompt)[0]) + 1].copy()
        found.append((float(prefill_us(arrays, own, len(own))), own, "equal times"))
        best = min(best, found[-1][0])
    return found, float(bounds.min())


class _Relaxed:
    """Chunks whose times are those of a linear program, made of whole multiples.

    Args:
        prefill: the prompt.
        arrays: the same as numbers.
        found: time, ends and method of chunks; those that are made are added.
    """

    def __init__(
        self, prefill: Prefill, arrays: PrefillArrays, found: list[tuple[float, IntArray, str]]
    ) -> None:
        self._prefill, self._arrays, self._found = prefill, arrays, found
        self._best = min(each for each, _, _ in found)

    def bound_us(self, most: int) -> float:
        """Return the bound over all numbers of chunks that may be better than what was found."""
        counts = np.arange(1, most + 1)
        work = counts * self._prefill.law.launch_us + self._prefill.law.tokens_us(self._prefill.prompt)
        open_counts = counts[_bounds(self._prefill, counts, work / counts) < self._best]
        if not len(open_counts):
            return self._best
        return relaxed_bound(
            self._prefill.factors,
            counts=(int(open_counts[0]), int(open_counts[-1])),
            launch_us=self._prefill.law.launch_us,
            tokens_us=self._prefill.law.tokens_us(self._prefill.prompt),
            hop_us=self._prefill.hop_us,
            longest_us=self._arrays.longest_us,
            best_us=self._add,
        )

    def _add(self, times: FloatArray) -> float:
        """Add the chunks that take about so long, where they keep the limits; return the best time so far."""
        prefill, law = self._prefill, self._prefill.law
        spent = np.cumsum(np.maximum(times - law.launch_us, 0.0))
        if spent[-1] == 0:
            return self._best
        share = spent / spent[-1] * law.tokens_us(prefill.prompt)
        square = law.pair_us / 2
        tokens = (
            share / law.token_us
            if square == 0
            else (np.sqrt(law.token_us**2 + 4 * square * share) - law.token_us) / (2 * square)
        )
        whole = np.round(tokens / prefill.multiple).astype(np.int64) * prefill.multiple
        ends = np.unique(np.append(whole[(whole > 0) & (whole < prefill.prompt)], prefill.prompt))
        if keeps_chunk_limits(self._arrays, ends, len(ends)):
            took = improve_chunks(self._arrays, ends, len(ends)) if len(ends) <= MAX_MOVED else None
            time_us = float(prefill_us(self._arrays, ends, len(ends)) if took is None else took)
            self._found.append((time_us, ends, "a linear program's times"))
            self._best = min(self._best, time_us)
        return self._best


def _bounds(prefill: Prefill, counts: IntArray, longest: FloatArray) -> FloatArray:
    """Return the least time of any chunks by their number, given the least longest chunk; see the module."""
    factors, law = np.array(prefill.factors), prefill.law
    heads = np.concatenate([[0.0], np.cumsum(factors)])
    work = counts * law.launch_us + law.tokens_us(prefill.prompt) + (counts - 1) * prefill.decode_us
    down = np.maximum(longest, np.where(counts > 1, prefill.decode_us, 0.0))
    smallest = min(prefill.multiple, prefill.prompt)
    left = prefill.prompt % prefill.multiple or smallest
    first, last = law.us(0, smallest), law.us(prefill.prompt - left, left)
    best = np.zeros(len(counts))
    for begin in range(len(factors)):
        for end in range(begin, len(factors)):
            least = min(factors[begin], factors[end])
            path = least * work + (heads[end + 1] - heads[begin] - least) * down
            best = np.maximum(best, path + heads[begin] * first + (heads[-1] - heads[end + 1]) * last)
    bounds: FloatArray = best + (len(factors) - 1) * prefill.hop_us
    return bounds


def _nothing_fits(prefill: Prefill) -> InfeasibleError:
    size = min(prefill.multiple, prefill.prompt)
    takes = prefill.law.us(prefill.prompt - size, size) * max(prefill.factors)
    return InfeasibleError(
        f"a chunk of {size} tokens at the end of {prefill.prompt} takes {takes:.0f} us on the slowest stage, "
        f"and a decode step may wait {prefill.max_wait_us or 0:.0f}; let it wait longer, or cut more"
    )
