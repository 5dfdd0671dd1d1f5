"""Parts of a partition as `--json` has them.

Checked in tests/scripts/documents/test_documents_printed.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from scripts.documents.tuning import PrintedPart
    from tuner.plan import PartitionPlan


def printed_parts(parts: Sequence[PartitionPlan]) -> tuple[PrintedPart, ...]:
    """Return the parts, most time first."""
    from scripts.documents.tuning import NextBest, PrintedPart

    return tuple(
        PrintedPart(
            operators=part.operators,
            backend=part.backend,
            latency_us=part.figure.latency_us,
            measured=part.figure.source == "measured",
            source=part.figure.source,
            occurrences=part.occurrences,
            runner_up=None
            if part.runner_up is None
            else NextBest(backend=part.runner_up[0], latency_us=part.runner_up[1]),
            record_ids=part.figure.record_ids,
            layers=part.layers,
            inputs=part.inputs,
            outputs=part.outputs,
        )
        for part in parts
    )
