"""Name the rank or node that ended a run, judged from what all supervisors said.

One rank's end makes others fail too, and a lost node says nothing at all. Every supervisor judges by itself
from the same facts, so no rank is needed as a judge that could itself be lost:

    a rank was killed, or raised          that rank, by the order in which the store heard of failures
    others only lost a connection         whoever falls silent meanwhile: all of a node's ranks, or some
    the store does not answer             node 0, where it is

A rank that fails because a peer is gone says so by its error (a closed connection); such errors name nobody
until it is known that no rank is silent. Checked in tests/tessel/engine/nodes/test_failure_cause.py.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from tessel.engine.nodes.heartbeat import FailureKind, PeerState

_WEIGHT: dict[FailureKind, int] = {
    "killed": 0,
    "stopped": 1,
    "raised": 2,
    "timed out": 3,
    "ended": 4,
    "lost a peer": 5,
}
"""What is more likely to be a cause than a consequence, first."""

_OF_PEERS = (
    "connection closed by peer",
    "connection reset",
    "broken pipe",
    "connection refused",
    "connection was likely closed",
    "no route to host",
    "network is unreachable",
    "read error",
    "write error",
)
"""What gloo says when the other end of a connection is gone."""


_ACCOMPLICE = 0.7
"""Share of the silence after which a rank is named with another: those of one node end up to a beat apart."""


class FailureCause(msgspec.Struct, frozen=True):
    """Who ended the run: the ranks at fault, and a sentence without its stop."""

    ranks: tuple[int, ...]
    message: str


def lost_a_peer(log_end: str) -> bool:
    """Whether the end of a log says that a connection to another rank was lost."""
    last = log_end.rpartition(" | ")[2].lower()
    return any(words in last for words in _OF_PEERS)


def find_failure_cause(
    peers: PeerState,
    ranks_by_stage: Sequence[Sequence[int]],
    *,
    silence_s: float,
    failing_s: float | None,
) -> FailureCause | None:
    """Return who ended the run; None while it goes on, or as long as that cannot be told.

    Args:
        peers: what is known now.
        ranks_by_stage: the ranks of each stage.
        silence_s: silence after which a supervisor counts as lost.
        failing_s: seconds since a first failure was seen; None where none was.
    """
    if peers.store_silent_s >= silence_s or (peers.store_error and peers.store_silent_s >= silence_s / 4):
        return _of_store(peers, ranks_by_stage)
    silent = [
        rank
        for rank, beat in enumerate(peers.beats)
        if peers.silent_s[rank] >= _ACCOMPLICE * silence_s and beat.failure is None and not beat.has_left
    ]
    if any(peers.silent_s[rank] >= silence_s for rank in silent):
        return FailureCause(tuple(silent), _of_silent(silent, peers, ranks_by_stage))
    failures = [(rank, beat.failure) for rank, beat in enumerate(peers.beats) if beat.failure is not None]
    if not failures or failing_s is None:
        return None
    unheard = any(
        beat.failure is None and not beat.has_left and peers.silent_s[rank] >= failing_s
        for rank, beat in enumerate(peers.beats)
    )
    first, failure = min(failures, key=lambda each: (_WEIGHT[each[1].kind], each[1].order))
    if unheard or (failure.kind in ("lost a peer", "ended") and failing_s < 2 * silence_s):
        return None
    log = f"; the end of its log: {failure.log_end}" if failure.log_end else ""
    return FailureCause((first,), f"{_who(first, peers, ranks_by_stage)} {failure.what}{log}")


def find_late(peers: PeerState, ranks_by_stage: Sequence[Sequence[int]]) -> str:
    """Return a rank that is not merely waiting for others, or else the first, and what it does, in words."""
    rank = min(range(len(peers.beats)), key=lambda rank: (peers.beats[rank].is_waiting, rank))
    return f"{_who(rank, peers, ranks_by_stage)} was {peers.beats[rank].what}"


def _of_store(peers: PeerState, ranks_by_stage: Sequence[Sequence[int]]) -> FailureCause:
    first = peers.beats[0].identity
    held = tuple(
        rank
        for rank, beat in enumerate(peers.beats)
        if first is None or beat.identity is None or beat.identity.node == first.node
    )
    place = "node 0" if first is None else f"{first.place} with {_ranks(held, ranks_by_stage)}"
    reason = f" ({peers.store_error})" if peers.store_error else ""
    return FailureCause(
        held,
        f"{place} is lost: the store in which the ranks meet has not answered for "
        f"{peers.store_silent_s:.0f} s{reason}; see what ended that node, or the network to it",
    )


def _of_silent(silent: Sequence[int], peers: PeerState, ranks_by_stage: Sequence[Sequence[int]]) -> str:
    place_of = {rank: _place(rank, peers) for rank in range(len(peers.beats))}
    parts = []
    for place in dict.fromkeys(place_of[rank] for rank in silent):
        own = [rank for rank in silent if place_of[rank] == place]
        who = _ranks(own, ranks_by_stage)
        is_whole = own == [rank for rank, other in place_of.items() if other == place]
        what = f"{place} with {who} is lost" if is_whole else f"{who} on {place} is lost"
        parts.append(f"{what} (rank {own[0]} was last seen {peers.beats[own[0]].what})")
    longest = max(peers.silent_s[rank] for rank in silent)
    return (
        f"{'; '.join(parts)}: nothing was heard of it for {longest:.0f} s; see what ended it, or the network "
        "to it"
    )


def _place(rank: int, peers: PeerState) -> str:
    identity = peers.beats[rank].identity
    return "a node that was not heard of" if identity is None else identity.place


def _ranks(ranks: Sequence[int], ranks_by_stage: Sequence[Sequence[int]]) -> str:
    stages = [stage for stage, held in enumerate(ranks_by_stage) if set(held) & set(ranks)]
    of_stages = f" ({_counted('stage', stages)})" if stages else ""
    return f"{_counted('rank', ranks)}{of_stages}"


def _who(rank: int, peers: PeerState, ranks_by_stage: Sequence[Sequence[int]]) -> str:
    return f"{_ranks((rank,), ranks_by_stage)} on {_place(rank, peers)}"


def _counted(noun: str, numbers: Sequence[int]) -> str:
    if len(numbers) == 1:
        return f"{noun} {numbers[0]}"
    *most, last = map(str, numbers)
    return f"{noun}s {', '.join(most)} and {last}"
