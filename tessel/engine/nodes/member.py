"""Rank of this process, where `torchrun` started it, and the network interface over which ranks talk.

`torchrun` tells each process by its environment. Ranks talk over the interface from which the place where
they meet is reached: loopback where that is this machine's own loopback, and only that. What the user gives
(`GLOO_SOCKET_IFNAME`) holds. Checked in tests/tessel/engine/nodes/test_member.py.

Source: the variables that `torchrun` sets, in the documentation of PyTorch's Torch Distributed Elastic.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping

import msgspec
import psutil

from tessel.engine.errors import EngineError

INTERFACE = "GLOO_SOCKET_IFNAME"
"""The variable in which gloo, and the user, name the interface that ranks talk over."""


class Member(msgspec.Struct, frozen=True, kw_only=True):
    """One process of those that `torchrun` started on all nodes.

    Attributes:
        rank: which rank it runs.
        world_size: ranks on all nodes.
        local_rank: its number on this node.
        local_world_size: ranks on this node.
        host: where the ranks meet.
        port: likewise.
        attempt: names the run and how often it was started again, so that no two attempts meet.
        agent_holds_store: whether the agent of node 0 holds the store in which ranks meet; else rank 0 does.
    """

    rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    node: int
    num_nodes: int
    host: str
    port: int
    attempt: str
    agent_holds_store: bool


class Route(msgspec.Struct, frozen=True):
    """How this process reaches where the ranks meet: its own address, and the interface that has it."""

    address: str
    interface: str


def find_member(environment: Mapping[str, str]) -> Member | None:
    """Return which rank `torchrun` wants this process to be; None where it did not start the process.

    Raises:
        EngineError: a variable is missing, or is no number.
    """
    if "TORCHELASTIC_RUN_ID" not in environment:
        return None
    try:
        return Member(
            rank=int(environment["RANK"]),
            world_size=int(environment["WORLD_SIZE"]),
            local_rank=int(environment["LOCAL_RANK"]),
            local_world_size=int(environment["LOCAL_WORLD_SIZE"]),
            node=int(environment["GROUP_RANK"]),
            num_nodes=int(environment["GROUP_WORLD_SIZE"]),
            host=environment["MASTER_ADDR"],
            port=int(environment["MASTER_PORT"]),
            attempt="{TORCHELASTIC_RUN_ID}/{TORCHELASTIC_RESTART_COUNT}".format_map(environment),
            agent_holds_store=environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
        )
    except (KeyError, ValueError) as error:
        raise EngineError(
            f"torchrun started this process, but its environment does not say which rank it is ({error}); "
            "start `tessel run` by torchrun itself, or without TORCHELASTIC_RUN_ID"
        ) from error


def require_all_devices(member: Member, num_devices: int) -> None:
    """Refuse another number of ranks than devices.

    Raises:
        EngineError: there are more or fewer.
    """
    if member.world_size != num_devices:
        raise EngineError(
            f"torchrun started {member.world_size} ranks, but the schedule has {num_devices} devices, one "
            f"rank each; give --nnodes and --nproc-per-node whose product is {num_devices}"
        )


def find_route(member: Member, environment: Mapping[str, str]) -> Route:
    """Return this process's address towards where the ranks meet, and the interface that ranks talk over.

    Raises:
        EngineError: there is no way there.
    """
    try:
        family, kind, protocol, _, place = socket.getaddrinfo(
            member.host, member.port, type=socket.SOCK_DGRAM
        )[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.connect(place)  # Nothing is sent: this only asks which way a packet would go.
            address = str(probe.getsockname()[0])
    except OSError as error:
        raise EngineError(
            f"{member.host}, where the ranks meet, cannot be reached from node {member.node} ({error}); give "
            "an address to --rdzv-endpoint that every node reaches"
        ) from error
    given = environment.get(INTERFACE)
    return Route(address, given or _interface_of(address))


def _interface_of(address: str) -> str:
    for name, addresses in psutil.net_if_addrs().items():
        if any(each.address.partition("%")[0] == address for each in addresses):
            return str(name)
    raise EngineError(
        f"no network interface here has the address {address}, over which the ranks would talk; name the "
        f"interface in {INTERFACE}"
    )
