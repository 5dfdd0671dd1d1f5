"""Machines that hold tasks and end none: what they hold is late when the longest of it must have ended.

A machine does one task at a time, so that between two ends lies at most the longest that it holds. It may
work for somebody else meanwhile, as it says itself; that time does not count. Checked in
tests/tuner/fleet/test_held_tasks.py.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping


class HeldTasks:
    """Which tasks each machine holds, and since when it has ended none."""

    def __init__(self) -> None:
        self._held: dict[str, tuple[frozenset[str], float]] = {}

    def late(
        self,
        held: Mapping[str, Collection[str]],
        limit_s: Mapping[str, float],
        *,
        elsewhere: Collection[str],
        now: float,
    ) -> tuple[str, ...]:
        """Return the machines that should have ended a task and have not.

        Args:
            held: keys of the tasks that each machine holds now, by its address.
            limit_s: by key, how long each of one's own tasks takes at most.
            elsewhere: machines that say that they work for somebody else.
            now: seconds, rising from call to call.
        """
        late = []
        known, self._held = self._held, {}
        for address, keys in held.items():
            before, since = known.get(address, (frozenset(), now))
            own = [limit_s[key] for key in keys if key in limit_s]
            if not own or before - set(keys) or address in elsewhere:
                since = now
            self._held[address] = frozenset(keys), since
            if own and now - since > max(own):
                late.append(address)
        return tuple(late)
