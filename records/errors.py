"""Errors of the records package."""


class RecordError(Exception):
    """Say that stored measurements could not be read, written or trusted."""


class RecordFileError(RecordError):
    """Say that a file of records is no such file, is damaged, or was written by a newer version."""
