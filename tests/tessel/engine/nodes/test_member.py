"""torchrun's environment says which rank a process is, and the way to the others says which interface."""

from __future__ import annotations

import msgspec
import pytest

from tessel.engine import EngineError
from tessel.engine.nodes.member import Member, find_member, find_route, require_all_devices

ENVIRONMENT = {
    "TORCHELASTIC_RUN_ID": "job",
    "TORCHELASTIC_RESTART_COUNT": "1",
    "TORCHELASTIC_USE_AGENT_STORE": "True",
    "RANK": "3",
    "WORLD_SIZE": "4",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "2",
    "GROUP_RANK": "1",
    "GROUP_WORLD_SIZE": "2",
    "MASTER_ADDR": "127.0.0.2",
    "MASTER_PORT": "29500",
}


def member() -> Member:
    found = find_member(ENVIRONMENT)
    assert found is not None
    return found


def test_a_process_knows_its_rank_from_torchrun_alone() -> None:
    found = member()
    assert (found.rank, found.world_size, found.local_rank, found.node, found.num_nodes) == (3, 4, 1, 1, 2)
    assert found.attempt == "job/1"
    assert found.agent_holds_store
    assert find_member({"RANK": "3", "WORLD_SIZE": "4"}) is None


@pytest.mark.parametrize("broken", [{"RANK": "first"}, {"MASTER_PORT": ""}])
def test_an_environment_that_makes_no_sense_is_refused(broken: dict[str, str]) -> None:
    with pytest.raises(EngineError, match="does not say which rank"):
        find_member(ENVIRONMENT | broken)


def test_as_many_ranks_as_devices_are_needed() -> None:
    require_all_devices(member(), 4)
    with pytest.raises(EngineError, match="started 4 ranks, but the schedule has 2 devices"):
        require_all_devices(member(), 2)


def test_ranks_that_meet_on_loopback_talk_over_it_alone_unless_told_otherwise() -> None:
    route = find_route(member(), {})
    assert (route.address.split(".")[0], route.interface) == ("127", "lo")
    assert find_route(member(), {"GLOO_SOCKET_IFNAME": "eth7"}).interface == "eth7"


def test_a_meeting_place_that_cannot_be_reached_is_named() -> None:
    lost = msgspec.structs.replace(member(), host="no-such-host.invalid")
    with pytest.raises(EngineError, match=r"no-such-host.invalid, where the ranks meet, cannot be reached"):
        find_route(lost, {})
