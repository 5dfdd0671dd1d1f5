"""Two nodes on this machine, each with a torchrun agent: in network namespaces, or on loopback alone."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
from shared_modules import PYTHONPATH, ROOT

from tessel.engine.ranks.progress import read_standing

ADDRESSES = ("192.0.2.1", "192.0.2.2")
"""Of the two namespaces; RFC 5737 keeps these addresses for examples, so no network has them."""

_PORT = "29517"


@dataclass(frozen=True)
class Ended:
    """How a node's agent ended, and what its processes printed."""

    status: int
    stdout: str
    stderr: str


class Node:
    """One node: where its commands run, and the agent that runs there."""

    def __init__(self, number: int, folder: Path, *, prefix: Sequence[str], address: str) -> None:
        self.number = number
        self.folder = folder
        self.address = address
        self._prefix = list(prefix)
        self._agent: subprocess.Popen[str] | None = None

    def start(self, arguments: Sequence[str], *, endpoint: str, ranks: int, extra_path: str = "") -> None:
        """Start torchrun with `tessel ARGUMENTS` on each of its processes."""
        self.folder.mkdir(exist_ok=True)
        agent = [
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--nnodes",
            "2",
            "--nproc-per-node",
            str(ranks),
        ]
        agent += ["--rdzv-backend", "c10d", "--rdzv-endpoint", endpoint, "--rdzv-id", "tessel"]
        # An address of a namespace is not the host name's, by which an agent knows that it holds the store.
        agent += ["--rdzv-conf", f"is_host={int(self.number == 0)}"]
        agent += ["--local-addr", self.address, "-m", "scripts", *arguments]
        environment = {name: value for name, value in os.environ.items() if name != "GLOO_SOCKET_IFNAME"}
        path = os.pathsep.join(filter(None, (extra_path, PYTHONPATH, str(ROOT / "examples"))))
        environment |= {"PYTHONPATH": path, "OMP_NUM_THREADS": "1", "TMPDIR": str(self.folder)}
        # An editable install leaves metadata in this folder, which would come before `extra_path`.
        environment["PYTHONSAFEPATH"] = "1"
        with self._out("out").open("w") as out, self._out("err").open("w") as err:
            self._agent = subprocess.Popen(
                self._prefix + agent, env=environment, stdout=out, stderr=err, text=True, cwd=ROOT
            )

    def wait(self, timeout_s: float) -> Ended:
        """Wait until the agent has ended."""
        assert self._agent is not None
        status = self._agent.wait(timeout_s)
        return Ended(status, self._out("out").read_text(), self._out("err").read_text())

    def kill(self) -> None:
        """End all processes of the node at once, as when the machine is lost."""
        if self._agent is None:
            return
        with suppress(psutil.NoSuchProcess):
            agent = psutil.Process(self._agent.pid)
            for process in (agent, *agent.children(recursive=True)):
                with suppress(psutil.NoSuchProcess):
                    process.kill()
        self._agent.wait()

    def rank_process(self, rank: int) -> psutil.Process:
        """Return the process that computes."""
        (progress,) = self.folder.glob(f"tessel-run-*/progress-{rank}")
        return psutil.Process(int(progress.read_bytes().split(b" ")[0]))

    def is_in_a_step(self, rank: int) -> bool:
        """Whether the rank has begun to run its actions."""
        return any(
            read_standing(job, rank).what.startswith(("running", "waiting for what"))
            for job in self.folder.glob("tessel-run-*")
        )

    def _out(self, name: str) -> Path:
        return self.folder / f"std{name}"


def why_no_namespaces() -> str:
    """Return why two network namespaces cannot be made here; empty text where they can."""
    if shutil.which("ip") is None:
        return "`ip` is not installed (iproute2)"
    name = f"tessel-try-{os.getpid()}"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True, check=False)
    if made.returncode:
        return f"network namespaces are not allowed here: {made.stderr.strip()}"
    subprocess.run(["ip", "netns", "del", name], check=True)
    return ""


@contextmanager
def two_namespaces(folder: Path) -> Iterator[tuple[Node, Node]]:
    """Make two network namespaces, joined by a cable, and remove them afterwards."""
    names = [f"tessel-{os.getpid()}-{number}" for number in range(2)]
    ends = [f"tsl{os.getpid() % 100000}{side}" for side in "ab"]
    nodes: list[Node] = []
    try:
        for name in names:
            _ip("netns", "add", name)
        _ip("link", "add", ends[0], "netns", names[0], "type", "veth", "peer", ends[1], "netns", names[1])
        for name, end, address in zip(names, ends, ADDRESSES, strict=True):
            _ip("-n", name, "address", "add", f"{address}/24", "dev", end)
            _ip("-n", name, "link", "set", end, "up")
            _ip("-n", name, "link", "set", "lo", "up")
        for number, (name, address) in enumerate(zip(names, ADDRESSES, strict=True)):
            prefix = ("ip", "netns", "exec", name)
            nodes.append(Node(number, folder / f"node-{number}", prefix=prefix, address=address))
        yield nodes[0], nodes[1]
    finally:
        for node in nodes:
            node.kill()
        for name in names:
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)


@contextmanager
def two_agents(folder: Path) -> Iterator[tuple[Node, Node]]:
    """Run two agents on this machine's loopback, under two of its addresses."""
    nodes = tuple(
        Node(number, folder / f"node-{number}", prefix=(), address=f"127.0.0.{number + 1}")
        for number in range(2)
    )
    try:
        yield nodes[0], nodes[1]
    finally:
        for node in nodes:
            node.kill()


def cut_the_cable() -> None:
    """Take the network between the two namespaces of this process down."""
    _ip("-n", f"tessel-{os.getpid()}-1", "link", "set", f"tsl{os.getpid() % 100000}b", "down")


def start_both(nodes: tuple[Node, Node], arguments: Sequence[object], *, ranks: int) -> None:
    """Start the same command on both nodes; node 0 holds the place where they meet."""
    for node in nodes:
        node.start([str(each) for each in arguments], endpoint=endpoint_of(nodes), ranks=ranks)


def endpoint_of(nodes: tuple[Node, Node]) -> str:
    """Return where the agents meet."""
    return f"{nodes[0].address}:{_PORT}"


def wait_until(condition: Callable[[], bool], *, seconds: float = 240.0) -> None:
    """Wait for something that processes do."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.05)


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True)
