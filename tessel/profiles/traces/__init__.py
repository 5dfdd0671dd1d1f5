"""Traces of real training steps: ranges with rank, stage, micro-batch, kind, start and duration.

`load_trace` reads them from what profilers write; `profile_of_trace` turns them into a table of timings.
"""

from tessel.profiles.traces.load import load_trace
from tessel.profiles.traces.ranges import Trace, TraceRange
from tessel.profiles.traces.trace_profile import profile_of_trace

__all__ = ["Trace", "TraceRange", "load_trace", "profile_of_trace"]
