"""Errors of the cost model."""

from __future__ import annotations


class CostModelError(Exception):
    """The cost model cannot answer: too few records, no device probe, or a model that does not fit."""


class CostModelFileError(CostModelError):
    """A folder holds no cost model, or one that is damaged or of another version."""
