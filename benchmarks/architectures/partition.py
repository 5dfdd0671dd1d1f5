"""Partition an architecture, lower what a search chooses, and compare it with torch.

What a model measures is left out: prices are given (`given_prices`).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from benchmarks.architectures.finding import Finding, compared, limit_of
from benchmarks.architectures.given_prices import MIXED, partition_by, run_partitioned
from tuner.frontend.model import Model
from tuner.tuning.partition_model import prepared_module


def check_partitions(
    model: Model,
    inputs: Sequence[np.ndarray],
    expected: Sequence[np.ndarray],
    preferences: Sequence[str] = (MIXED,),
) -> Finding:
    """Compare a model's partitions with torch; return the worst.

    Args:
        model: what is partitioned.
        inputs: of its function.
        expected: what torch gives for them.
        preferences: backends that are preferred, one a partition, or `MIXED`.
    """
    arguments = [*inputs, *(model.parameters[name] for name in model.parameter_names)]
    limit = limit_of(model)
    errors = [0.0]
    for preferred in preferences:
        try:
            module = partition_by(prepared_module(model), preferred).module
            found = compared(run_partitioned(module, arguments), expected, limit)
        except Exception as error:  # foreign code; whatever it raises is the result
            return Finding.of_error(error, f"{preferred}: ")
        if found.outcome != "equal":
            return Finding(outcome=found.outcome, reason=f"{preferred}: {found.reason}")
        errors.append(found.error or 0.0)
    return Finding(outcome="equal", error=max(errors))
