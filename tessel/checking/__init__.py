"""Assessment of what runs today: deadlocks, memory, distance from the best, and what to change."""

from tessel.checking.case import Case, PricedLayout, Simulated, simulate
from tessel.checking.deadlock import explain_deadlock

__all__ = ["Case", "PricedLayout", "Simulated", "explain_deadlock", "simulate"]
