"""Who ended a run is told from what all supervisors said: causes before consequences, silence after words."""

from __future__ import annotations

import msgspec
import pytest

from tessel.engine.nodes.failure_cause import find_failure_cause, find_late, lost_a_peer
from tessel.engine.nodes.heartbeat import Beat, FailureKind, PeerState, RankFailure
from tessel.engine.nodes.identity import Identity, why_not

STAGES = ((0, 1, 2, 3), (0,), (1,), (2,), (3,))
NAMES = ("192.0.2.1", "192.0.2.2")


def identity(rank: int) -> Identity:
    return Identity(
        rank=rank,
        node=rank // 2,
        address=NAMES[rank // 2],
        local_rank=rank % 2,
        versions={"tessel-tuner": "1"},
        plan_digest="a",
        options_digest="b",
    )


def failed(kind: FailureKind, order: int) -> RankFailure:
    return RankFailure(kind=kind, what=f"was {kind}", log_end="last words", order=order)


def peers(
    failures: dict[int, RankFailure] | None = None, silent_s: dict[int, float] | None = None, **store: object
) -> PeerState:
    beats = [
        Beat(number=7, identity=identity(rank), what=f"running {rank}F1", failure=(failures or {}).get(rank))
        for rank in range(4)
    ]
    return PeerState(
        beats=tuple(beats),
        silent_s=tuple((silent_s or {}).get(rank, 0.2) for rank in range(4)),
        **({"store_silent_s": 0.2} | store),
    )


def cause_of(found: PeerState, failing_s: float | None) -> str | None:
    cause = find_failure_cause(found, STAGES, silence_s=5.0, failing_s=failing_s)
    return None if cause is None else cause.message


def test_nobody_is_blamed_while_all_are_heard() -> None:
    assert cause_of(peers(), None) is None
    assert cause_of(peers(silent_s={2: 4.9}), None) is None


def test_a_node_whose_ranks_are_all_silent_is_lost_and_one_rank_alone_is_not_its_node() -> None:
    node = cause_of(peers(silent_s={2: 5.1, 3: 4.8}), None)
    assert node is not None
    assert node.startswith(
        "node 1 (192.0.2.2) with ranks 2 and 3 (stages 0, 3 and 4) is lost (rank 2 was last"
    )
    rank = cause_of(peers(silent_s={3: 5.1}), None)
    assert rank is not None
    assert rank.startswith("rank 3 (stages 0 and 4) on node 1 (192.0.2.2) is lost")


def test_what_was_killed_comes_before_what_only_lost_a_peer_whichever_was_heard_first() -> None:
    found = peers({0: failed("lost a peer", 1), 2: failed("killed", 3), 1: failed("raised", 2)})
    said = cause_of(found, 1.0)
    assert said is not None
    assert said.startswith(
        "rank 2 (stages 0 and 3) on node 1 (192.0.2.2) was killed; the end of its log: last"
    )
    first = cause_of(peers({1: failed("raised", 2), 3: failed("raised", 1)}), 1.0)
    assert first is not None
    assert first.startswith("rank 3")


def test_ranks_that_lost_a_peer_wait_to_hear_who_is_silent() -> None:
    lost = {0: failed("lost a peer", 1), 1: failed("lost a peer", 2)}
    assert cause_of(peers(lost, {2: 3.0, 3: 3.0}), 3.0) is None
    said = cause_of(peers(lost, {2: 5.2, 3: 5.3}), 5.2)
    assert said is not None
    assert said.startswith("node 1 ")
    # All are heard, and still the connection is gone: the network between two of them.
    assert cause_of(peers(lost), 9.0) is None
    assert (cause_of(peers(lost), 10.1) or "").startswith("rank 0 (stages 0 and 1)")


def test_a_failure_is_judged_only_when_all_others_were_heard_after_it() -> None:
    raised = {0: failed("raised", 1)}
    assert cause_of(peers(raised, {2: 0.9}), 0.5) is None
    assert cause_of(peers(raised, {2: 0.4}), 0.5) is not None


def test_a_store_that_does_not_answer_is_node_0() -> None:
    assert cause_of(peers(store_silent_s=1.0, store_error="connection reset"), None) is None
    said = cause_of(peers(store_silent_s=1.5, store_error="connection reset"), None)
    assert said is not None
    assert said.startswith("node 0 (192.0.2.1) with ranks 0 and 1 (stages 0, 1 and 2) is lost: the store")
    assert cause_of(peers(store_silent_s=1.5), None) is None
    assert cause_of(peers(store_silent_s=5.1), None) is not None


def test_the_rank_that_hangs_is_the_one_that_does_not_wait() -> None:
    found = peers()
    beats = tuple(
        msgspec.structs.replace(beat, is_waiting=rank != 2) for rank, beat in enumerate(found.beats)
    )
    late = find_late(msgspec.structs.replace(found, beats=beats), STAGES)
    assert late == "rank 2 (stages 0 and 3) on node 1 (192.0.2.2) was running 2F1"


def test_what_gloo_says_of_a_lost_connection_is_known() -> None:
    said = "RuntimeError: [pair.cc:542] Connection closed by peer [192.0.2.2]:41000"
    assert lost_a_peer(f"about to fail | {said}")
    assert not lost_a_peer(f"{said} | ValueError: no such layer")


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({}, ""),
        ({"plan_digest": "c"}, "rank 2 on node 1 (192.0.2.2) was given another plan than rank 0 on node 0"),
        ({"options_digest": "c"}, "rank 2 on node 1 (192.0.2.2) was started with other options than rank 0"),
        (
            {"versions": {"tessel-tuner": "2"}, "plan_digest": "c"},
            "rank 2 on node 1 (192.0.2.2) has tessel-tuner 2, but rank 0 on node 0 (192.0.2.1) has",
        ),
        ({"versions": {}}, "has tessel-tuner missing"),
    ],
)
def test_ranks_that_were_told_different_things_are_refused(changed: dict[str, object], words: str) -> None:
    others = [identity(rank) for rank in range(4)]
    others[2] = msgspec.structs.replace(others[2], **changed)
    reason = why_not(others)
    assert words in reason
    assert bool(reason) == bool(changed)
