"""Errors of the records package."""


class RecordError(Exception):
    """Say that stored measurements could not be read, written or trusted."""
