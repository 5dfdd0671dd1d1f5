"""Tables of what was tuned, printed: partitions, end-to-end latencies, stages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from scripts.terminal import console
from tessel.jobs.shown import tables
from tessel.jobs.shown.sections import Sections

if TYPE_CHECKING:
    from tuner.plan import ModelPlan, PartitionPlan, StagePlan
    from tuner.tuning.partition_model import PartitionedModel


def print_partitions(title: str, partition: Sequence[PartitionPlan]) -> None:
    """Print each backend's share of distinct sub-graphs, and the most expensive of them."""
    out = Sections()
    tables.add_partitions(out, title, partition)
    console.print_sections(out)


def print_end_to_end(title: str, found: ModelPlan | PartitionedModel) -> None:
    """Print the mix of backends against each single one, and how far the sum of parts is off."""
    out = Sections()
    tables.add_end_to_end(out, title, found)
    console.print_sections(out)


def print_stages(stages: Sequence[StagePlan]) -> None:
    """Print each stage's latencies and memory."""
    out = Sections()
    tables.add_stages(out, stages)
    console.print_sections(out)
