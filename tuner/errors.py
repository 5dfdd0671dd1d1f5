"""Errors of the tuner."""


class TunerError(Exception):
    """Say that a model could not be imported, partitioned, cut, built or measured."""


class UnknownNameError(TunerError):
    """Say that a name is none of those that exist; the message lists them."""


class ModelFileError(TunerError):
    """Say that a model file cannot be read, or is not what its name says; the message names the file."""


class UnsupportedOperatorError(TunerError):
    """Name the operator that an importer, a backend or automatic differentiation cannot handle."""


class MissingGradientError(UnsupportedOperatorError):
    """Name the operator that has no gradient.

    Attributes:
        operator: what it is called in tables.
        variable: name of what it computes.
    """

    def __init__(self, message: str, *, operator: str, variable: str) -> None:
        super().__init__(message)
        self.operator = operator
        self.variable = variable


class WrongImportError(TunerError):
    """Say that an imported model gives other values than its own program, and which operator is the first.

    Attributes:
        operator: its name in the program that was imported; empty where none differs alone.
        place: what it is and where it stands in the user's source, for messages; empty likewise.
    """

    def __init__(self, message: str, *, operator: str = "", place: str = "") -> None:
        super().__init__(message)
        self.operator = operator
        self.place = place


class NotComparableError(TunerError):
    """Say why an imported model is not compared with its file, as the end of a sentence."""


class UnpriceableError(TunerError):
    """Name the operator that no backend at hand can run, with each backend's reason."""
