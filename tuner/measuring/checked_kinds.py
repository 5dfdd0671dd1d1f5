"""Kinds of programs that were checked: one of each kind is, and a wrong one stands for all of its kind.

Checked in tests/tuner/measuring/test_measurer.py.
"""

from __future__ import annotations

from records import Status
from tuner.measuring.messages import WRONG_NUMBERS, Failed, Reply
from tuner.measuring.request import MeasureRequest


class CheckedKinds:
    """Remembers each kind that is being checked, or was, and why one is wrong."""

    def __init__(self) -> None:
        self._fault_by_kind: dict[str, str] = {}

    def claim(self, request: MeasureRequest) -> bool:
        """Say whether the program is the one of its kind that is checked; then no other is."""
        if not request.check or request.kind in self._fault_by_kind:
            return False
        self._fault_by_kind[request.kind] = ""
        return True

    def note(self, request: MeasureRequest, reply: Reply) -> None:
        """Take notice of how building and checking the program of a kind ended."""
        if not isinstance(reply, Failed):
            return
        if reply.message.startswith(WRONG_NUMBERS):
            self._fault_by_kind[request.kind] = reply.message
        else:  # it says nothing of the kind, so that another program is checked
            del self._fault_by_kind[request.kind]

    def outcome(self, request: MeasureRequest, reply: Reply) -> Reply:
        """Return the reply, or the failure of the kind where its checked program gave wrong numbers."""
        fault = self._fault_by_kind.get(request.kind, "") if request.check else ""
        return Failed(Status.ERROR, fault) if fault else reply
