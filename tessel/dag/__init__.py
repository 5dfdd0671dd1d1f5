"""Schedules as dependency graphs: those of this package, and instruction streams of one's own."""

from tessel.dag.pipeline_dag import dag_of_pipeline, pipeline_rule
from tessel.dag.schedule_dag import Arc, Dag, Task

__all__ = ["Arc", "Dag", "Task", "dag_of_pipeline", "pipeline_rule"]
