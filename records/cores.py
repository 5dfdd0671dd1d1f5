"""Number of processor cores this process may use: the one answer for records, training, tuning and runs."""

from __future__ import annotations

import os


def num_usable_cores() -> int:
    """Count the logical cores that this process may run on; at least one.

    A process can be confined to fewer cores than the machine has (`taskset`, a batch system's allotment).
    """
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
