"""When a prompt's chunks leave the last stage, and the fewest chunks of which none takes too long.

    stage 0   c0 d c1  d c2 d c3            chunks in their order on every stage, each as early as the stage
    stage 1      c0 d  c1 d  c2 d c3        before and its own last chunk allow; a decode step d after each
                                            chunk but the last, where there are any

Times are microseconds, not rounded. Checked in tests/tessel/search/batches/test_chunks.py against schedules
timed by `tessel.orders` and against every way to cut a prompt.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from tessel.batches.batch import IntArray
from tessel.batches.chunk_law import ChunkLaw
from tessel.search.batches.replay import FloatArray
from tessel.search.jit.compiled import compiled


class PrefillArrays(NamedTuple):
    """A prompt and its pipeline as numbers.

    Attributes:
        prompt: tokens.
        multiple: of which every chunk but the last is one.
        max_chunk: tokens.
        longest_us: that a chunk may take on a stage of factor 1.
        factors: float64, by stage: its time over the law's.
        law: float64: launch, token and pair.
        hop_us: from a stage to the next.
        decode_us: of a decode step on a stage of factor 1; 0 for none.
    """

    prompt: int
    multiple: int
    max_chunk: int
    longest_us: float
    factors: FloatArray
    law: FloatArray
    hop_us: float
    decode_us: float


def law_array(law: ChunkLaw) -> FloatArray:
    """Return a law as the compiled functions take it."""
    return np.array([law.launch_us, law.token_us, law.pair_us])


def ends_of(chunks: Sequence[int]) -> IntArray:
    """Return where each chunk ends, from the sizes."""
    return np.cumsum(np.array(chunks, dtype=np.int64))


@compiled
def chunk_us(law: FloatArray, prefix: int, tokens: int) -> float:
    """Return what a chunk takes; `ChunkLaw.us`, compiled."""
    time_us: float = law[0] + law[1] * tokens + law[2] * tokens * (prefix + tokens / 2)
    return time_us


@compiled
def prefill_us(prefill: PrefillArrays, ends: IntArray, count: int) -> float:
    """Return when the last stage has done the last chunk.

    Args:
        ends: where the chunks end; the first `count` count.
        count: of chunks.
    """
    stages = len(prefill.factors)
    free = np.zeros(stages)
    before = 0
    for chunk in range(count):
        own = chunk_us(prefill.law, before, ends[chunk] - before)
        before = ends[chunk]
        for is_decode in range(2):
            if is_decode == 1 and (prefill.decode_us == 0 or chunk == count - 1):
                continue
            took = prefill.decode_us if is_decode == 1 else own
            arrival = 0.0
            for stage in range(stages):
                free[stage] = max(free[stage], arrival) + prefill.factors[stage] * took
                arrival = free[stage] + prefill.hop_us
    end: float = free[stages - 1]
    return end


@compiled
def capped_chunks(prefill: PrefillArrays, cap_us: float, ends: IntArray) -> int:
    """Cut a prompt into chunks as large as a cap on their time allows; return how many, 0 if one cannot be.

    No other chunks within the cap are fewer: the further one ends, the further the next one can end.
    """
    done, count = 0, 0
    while done < prefill.prompt:
        left = prefill.prompt - done
        low, high = 0, min(left // prefill.multiple, prefill.max_chunk // prefill.multiple)
        while low < high:
            middle = (low + high + 1) // 2
            if chunk_us(prefill.law, done, middle * prefill.multiple) <= cap_us:
                low = middle
            else:
                high = middle - 1
        size = low * prefill.multiple
        if left <= prefill.max_chunk and chunk_us(prefill.law, done, left) <= cap_us:
            size = left
        if size == 0:
            return 0
        done += size
        ends[count] = done
        count += 1
    return count


@compiled
def least_cap(prefill: PrefillArrays, count: int, ends: IntArray) -> float:
    """Return the least time of the longest of at most so many chunks, which `ends` are; inf if none are."""
    found = capped_chunks(prefill, prefill.longest_us, ends)
    if found == 0 or found > count:
        return np.inf
    low, high = 0.0, _longest(prefill, ends, found)
    # Caps between which no chunk's time lies need no more halving; 60 of them are the precision of a float.
    for _ in range(60):
        middle = (low + high) / 2
        found = capped_chunks(prefill, middle, ends)
        if found == 0 or found > count:
            low = middle
        else:
            high = _longest(prefill, ends, found)
        if high - low <= 1e-12 * high:
            break
    capped_chunks(prefill, high, ends)
    return high


@compiled
def _longest(prefill: PrefillArrays, ends: IntArray, count: int) -> float:
    longest, before = 0.0, 0
    for chunk in range(count):
        longest = max(longest, chunk_us(prefill.law, before, ends[chunk] - before))
        before = ends[chunk]
    return longest


@compiled
def keeps_chunk_limits(prefill: PrefillArrays, ends: IntArray, count: int) -> bool:
    """Return whether no chunk is too large or too long."""
    before = 0
    for chunk in range(count):
        size = ends[chunk] - before
        if size < 1 or size > prefill.max_chunk:
            return False
        if chunk_us(prefill.law, before, size) > prefill.longest_us:
            return False
        before = ends[chunk]
    return True


@compiled
def improve_chunks(prefill: PrefillArrays, ends: IntArray, count: int) -> float:
    """Move ends of chunks while that is shorter, by ever smaller multiples; `ends` are changed in place.

    Of equally long ones the one with the more equal chunks is kept, so that a move that needs another one is
    found, too.
    """
    best, spread = prefill_us(prefill, ends, count), _spread(prefill, ends, count)
    step = 64 * prefill.multiple
    while step >= prefill.multiple:
        gained = False
        for chunk in range(count - 1):
            for way in (-step, step):
                ends[chunk] += way
                if keeps_chunk_limits(prefill, ends, count):
                    trial = prefill_us(prefill, ends, count)
                    if trial <= best:
                        even = _spread(prefill, ends, count)
                        if trial < best * (1 - 1e-12) or even < spread * (1 - 1e-12):
                            best, spread, gained = trial, even, True
                            continue
                ends[chunk] -= way
        if not gained:
            step //= 2
    return best


@compiled
def _spread(prefill: PrefillArrays, ends: IntArray, count: int) -> float:
    total, before = 0.0, 0
    for chunk in range(count):
        total += chunk_us(prefill.law, before, ends[chunk] - before) ** 2
        before = ends[chunk]
    return total


@compiled
def best_of_all(prefill: PrefillArrays, cuts: int, ends: IntArray) -> float:
    """Try every way to cut a prompt at `cuts` places; return the least time, inf if none is allowed."""
    trial = np.zeros(cuts + 1, dtype=np.int64)
    best = np.inf
    for ways in range(2**cuts):
        count = 0
        for place in range(cuts):
            if ways >> place & 1:
                trial[count] = (place + 1) * prefill.multiple
                count += 1
        trial[count] = prefill.prompt
        count += 1
        if keeps_chunk_limits(prefill, trial, count):
            took = prefill_us(prefill, trial, count)
            if took < best:
                best = took
                ends[:count] = trial[:count]
    return best
