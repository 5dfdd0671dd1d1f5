"""What was measured, where, and with which versions; nothing else.

The package owns three facts: a `Workload` (what was run, without any compiler's types), an `Environment`
(on what it was run) and a `Measurement` (what came out). A store keeps them; nothing here knows how a
latency is produced or used.
"""

from records.environment import Environment
from records.errors import RecordError
from records.measurement import Measurement, Status
from records.workload import Operator, Tensor, Workload

__all__ = ["Environment", "Measurement", "Operator", "RecordError", "Status", "Tensor", "Workload"]
