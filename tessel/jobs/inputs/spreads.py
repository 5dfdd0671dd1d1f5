"""How durations vary, as a user says it: a stated distribution, or a file of what was measured several times.

Of records (`.jsonl`) each measurement's samples are one kind; of recorded steps (`.csv`, `.csv.gz`,
`.parquet`) each block of a stage is, over its micro-batches, replicas and steps: lengths that differ count.
Checked in tests/tessel/jobs/inputs/test_spreads.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from tessel.batches.spread import FloatArray, Spread
from tessel.errors import UsageError, shown
from tessel.profiles.step_trace import read_step_trace

MIN_SAMPLES = 20
"""Samples below which a file says nothing of a 95th percentile."""

_RECORDS = (".jsonl",)
_STEPS = (".csv", ".gz", ".parquet")


def spread_of(text: str) -> Spread:
    """Return the distribution that a user named.

    Raises:
        UsageError: the text is neither a distribution nor a file of enough samples.
        DocumentError: the file of recorded steps cannot be read.
        RecordFileError: the file of records cannot be read.
    """
    path = Path(text)
    if path.suffix not in (*_RECORDS, *_STEPS):
        return Spread.of(text)
    kinds = _of_records(path) if path.suffix in _RECORDS else _of_steps(path)
    shares = np.concatenate([np.empty(0), *(each / each.mean() for each in kinds)])
    if len(shares) < MIN_SAMPLES:
        raise UsageError(
            f"--spread {shown(text)} holds {len(shares)} samples of what was measured several times, and a "
            f"distribution has {MIN_SAMPLES} at least; measure more, or state one, lognormal:0.1"
        )
    return Spread(kind="measured", size=float(shares.std()), seen=tuple(shares.tolist()), source=path.name)


def _of_records(path: Path) -> Iterator[FloatArray]:
    from records.files.exchange import read_records  # loads SQLAlchemy

    for _, measurement in read_records(path):
        if len(measurement.samples_us) > 1:
            yield np.array(measurement.samples_us)


def _of_steps(path: Path) -> Iterator[FloatArray]:
    spans = read_step_trace(path).spans_s
    by_block = spans.reshape(-1, spans.shape[-1]).T
    yield from (each for each in by_block if len(each) > 1 and each.mean() > 0)
