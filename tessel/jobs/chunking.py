"""`tessel.chunk`: the sizes of a prompt's chunks with which a serving pipeline is through with it first.

`ChunkOptions` are the options of the command `tessel chunk`, with its names and defaults. Checked in
tests/tessel/jobs/test_chunking.py.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tessel.errors import DocumentError, ScheduleError, UsageError, shown
from tessel.jobs import jit_fallback
from tessel.jobs.inputs.arguments import check_counts
from tessel.jobs.inputs.keywords import options_of, with_signature
from tessel.jobs.inputs.limits import check_hop_us
from tessel.progress import messages

if TYPE_CHECKING:
    from tessel.batches.chunk_law import FittedLaw
    from tessel.search.batches.chunks import FoundChunks

MAX_PROMPT = 2**27
"""Tokens of a prompt."""

MAX_MULTIPLES = 2**16
"""Multiples of a prompt: so many places to cut it."""

MAX_STAGES = 256


@dataclass(frozen=True, kw_only=True)
class ChunkOptions:
    """A serving pipeline, and what a chunk takes on one of its stages.

    Attributes:
        devices: stages, one on each; as many as there are factors if None.
        law: microseconds of a launch, of a token, and of a pair of tokens: `a,b,c` of
            `a + b·n + c·n·(p + n/2)` for n tokens after p.
        times: a CSV of measured chunks that gives the law, in its place.
        stage_factors: time of each stage over the law's, `1,1,1,1.1`; all 1 if None.
        multiple: of tokens, that every chunk but the last is of.
        max_chunk: tokens of a chunk.
        max_wait_us: microseconds of a chunk on the slowest stage.
        hop_us: microseconds from a stage to the next.
        decode_us: of a decode step that runs on each stage after every chunk.
    """

    devices: int | None = None
    law: str | Sequence[float] | None = None
    times: str | os.PathLike[str] | None = None
    stage_factors: str | Sequence[float] | None = None
    multiple: int = 64
    max_chunk: int | None = None
    max_wait_us: float | None = None
    hop_us: float = 0.0
    decode_us: float = 0.0

    def check(self) -> None:
        """Refuse values that are wrong by themselves, before anything is read.

        Raises:
            UsageError: there is one.
        """
        check_counts(self, ("devices", "multiple", "max_chunk"))
        check_hop_us(self.hop_us)
        if not 0 <= self.decode_us < 1e9:
            raise UsageError(f"--decode-us is {self.decode_us:g}; give microseconds of at least 0")
        if self.max_wait_us is not None and not 0 < self.max_wait_us < math.inf:
            raise UsageError(f"--max-wait-us is {self.max_wait_us:g}; give microseconds above 0")
        if (self.law is None) == (self.times is None):
            raise UsageError(
                "a chunk's time comes from --law a,b,c or from --times, a table of chunks; give one of them"
            )
        if self.devices is None and self.stage_factors is None:
            raise UsageError("--devices is missing; say how many stages the pipeline has")
        if self.max_chunk is not None and self.max_chunk < self.multiple:
            raise UsageError(
                f"--max-chunk is {self.max_chunk}, and chunks are multiples of {self.multiple}; give at "
                "least as much, or a smaller --multiple"
            )

    def factors(self) -> tuple[float, ...]:
        """Return the time of each stage over the law's.

        Raises:
            UsageError: one is no positive number, or there are not as many as devices.
        """
        if self.stage_factors is None:
            factors = (1.0,) * (self.devices or 1)
        else:
            factors = _numbers("--stage-factors", self.stage_factors)
        if self.devices is not None and len(factors) != self.devices:
            raise UsageError(f"--stage-factors has {len(factors)} for {self.devices} devices; give one each")
        if not all(1e-6 <= each <= 1e6 for each in factors):
            raise UsageError(
                f"--stage-factors {shown(self.stage_factors)} has one that is no time; give them about 1"
            )
        if len(factors) > MAX_STAGES:
            raise UsageError(f"--devices is {len(factors)}; give at most {MAX_STAGES}")
        return factors

    def fitted_law(self) -> FittedLaw:
        """Return the law, and how far measured chunks are from it, 0 where it was given.

        Raises:
            UsageError: the law is none.
            DocumentError: the table cannot be read, or determines no law.
        """
        from tessel.batches.chunk_law import ChunkLaw, FittedLaw, fit_chunk_law

        if self.times is not None:
            from tessel.profiles.chunk_table import read_chunk_table

            try:
                return fit_chunk_law(read_chunk_table(self.times))
            except DocumentError:
                raise
            except ScheduleError as error:
                raise DocumentError(f"{shown(self.times)}: {error}") from error
        assert self.law is not None
        figures = _numbers("--law", self.law)
        if len(figures) != 3:
            raise UsageError(
                f"--law has {len(figures)} numbers; give microseconds of a launch, of a token and of a pair"
            )
        try:
            law = ChunkLaw(launch_us=figures[0], token_us=figures[1], pair_us=figures[2])
        except ScheduleError as error:
            raise UsageError(str(error)) from error
        return FittedLaw(law, 0.0, 0.0)


def chunk(prompt: int, /, **options: Any) -> FoundChunks:
    """Find the sizes of a prompt's chunks with which a pipeline of stages is through with it first.

        >>> import tessel
        >>> found = tessel.chunk(4096, devices=2, law=(100, 10, 0.01), multiple=512)
        >>> found.chunks, found.optimal
        ((1024, 1024, 1024, 1024), True)

    Args:
        prompt: tokens.
        options: those of the command `tessel chunk`, as `devices=4, law=(3000, 60, 8e-4)`; see
            `ChunkOptions`. `progress=False` shows nothing.

    Raises:
        UsageError: there is no such option, or a value is none, or one is missing.
        DocumentError: measured chunks cannot be read, or determine no law.
        InfeasibleError: no chunks keep the limits.
    """
    with messages.verbosity(quiet=not options.pop("progress", True)):
        return chunk_with(prompt, options_of(ChunkOptions, options))[0]


def chunk_with(prompt: int, options: ChunkOptions) -> tuple[FoundChunks, FittedLaw]:
    """Return the chunks that these options ask for, and the law that they are by; see `chunk`."""
    options.check()
    if not 1 <= prompt <= MAX_PROMPT:
        raise UsageError(f"the prompt has {prompt} tokens; give 1 to {MAX_PROMPT}")
    if prompt > options.multiple * MAX_MULTIPLES:
        raise UsageError(
            f"a prompt of {prompt} tokens can be cut at over {MAX_MULTIPLES} places; give a larger --multiple"
        )
    factors, fitted = options.factors(), options.fitted_law()
    jit_fallback.compile_if_needed()
    from tessel.search.batches.chunks import Prefill, find_chunks

    found = find_chunks(
        Prefill(
            prompt=prompt,
            law=fitted.law,
            factors=factors,
            multiple=options.multiple,
            max_chunk=options.max_chunk,
            max_wait_us=options.max_wait_us,
            hop_us=options.hop_us,
            decode_us=options.decode_us,
        )
    )
    return found, fitted


def _numbers(option: str, given: str | Sequence[float]) -> tuple[float, ...]:
    parts = given.split(",") if isinstance(given, str) else list(given)
    try:
        return tuple(float(each) for each in parts)
    except (TypeError, ValueError) as error:
        raise UsageError(f"{option} {shown(given)} is no list of numbers; write them as 1,2,3") from error


with_signature(chunk, ChunkOptions)
