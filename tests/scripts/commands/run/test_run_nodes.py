"""`tessel run` under torchrun on two nodes: one table, exact gradients, a lost node named within seconds."""

from __future__ import annotations

import json
import re
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")

from document_schemas import check_printed
from random_schedules import draw_schedule
from shared_modules import ROOT
from two_nodes import (
    Node,
    cut_the_cable,
    endpoint_of,
    start_both,
    two_agents,
    two_namespaces,
    wait_until,
    why_no_namespaces,
)

from tessel.documents import save_document
from tessel.shapes import make_shape

Nodes = tuple[Node, Node]

pytestmark = [
    pytest.mark.torch,
    pytest.mark.slow,
    pytest.mark.skipif(not Path("/proc").is_dir(), reason="processes are looked up in /proc"),
]

SECONDS = 20.0
"""A lost node is named within these: silence of 5 s, and what a busy machine adds."""

_NAMESPACES = pytest.param(
    two_namespaces, marks=pytest.mark.skipif(bool(why := why_no_namespaces()), reason=why), id="namespaces"
)


@pytest.fixture(params=[_NAMESPACES, pytest.param(two_agents, id="loopback")])
def nodes(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Nodes]:
    with request.param(tmp_path) as both:
        yield both


@pytest.fixture
def namespaces(tmp_path: Path) -> Iterator[Nodes]:
    if why:
        pytest.skip(why)
    with two_namespaces(tmp_path) as both:
        yield both


@pytest.fixture
def schedule(tmp_path: Path) -> Callable[[int], Path]:
    """Return a function that saves a schedule of an m shape for so many devices."""

    def save(devices: int) -> Path:
        path = tmp_path / "m.json"
        drawn = draw_schedule(make_shape("mshape", devices), 4, np.random.default_rng(0))
        save_document(path, drawn.to_json())
        return path

    return save


def test_a_plan_runs_on_two_nodes_and_is_exact(
    nodes: Nodes, schedule: Callable[[int], Path], tmp_path: Path
) -> None:
    trace, own = tmp_path / "trace.json", ROOT / "examples" / "vocabulary_parallel.py"
    start_both(
        nodes,
        ("run", schedule(4), "--stages", f"{own}:stages", "--repeats", 2, "--trace", trace, "--json"),
        ranks=2,
    )
    first, second = (node.wait(300) for node in nodes)
    assert (first.status, second.status) == (0, 0), first.stderr + second.stderr
    assert second.stdout == ""
    report = check_printed(["run"], first.stdout)
    assert report["is_right"]
    assert report["max_gradient_error"] < 1e-5
    assert report["nodes"] == 2
    assert 0 < report["clock_error_ms"] < 50
    events = [event for event in json.loads(trace.read_bytes())["traceEvents"] if event.get("cat") == "real"]
    assert len({event["tid"] for event in events}) == 4


def test_a_node_that_is_killed_is_named_by_the_other(nodes: Nodes, schedule: Callable[[int], Path]) -> None:
    require_named(nodes, 1, schedule(4))


def test_the_node_that_holds_the_store_is_named_too(
    namespaces: Nodes, schedule: Callable[[int], Path]
) -> None:
    """Its end also ends the other node's torchrun, which tells its processes to end before they know why."""
    require_named(namespaces, 0, schedule(4))


def require_named(nodes: Nodes, lost: int, path: Path) -> None:
    """Kill a node in the middle of a step, and see the other name it."""
    start_both(nodes, ("run", path, "--step", "300ms", "--repeats", 20), ranks=2)
    wait_until(lambda: all(nodes[rank // 2].is_in_a_step(rank) for rank in range(4)))
    nodes[lost].kill()
    killed_s = time.monotonic()
    ended = nodes[1 - lost].wait(120)
    said = lines_of(ended.stderr)
    assert ended.status == 1
    assert len(said) == 1, ended.stderr
    address = nodes[lost].address if nodes[0].address.startswith("192") else "127.0.0.1"
    assert f"node {lost} ({address})" in said[0]
    assert f"ranks {2 * lost} and {2 * lost + 1} (stages" in said[0]
    assert " is lost" in said[0]
    assert time.monotonic() - killed_s < SECONDS


def test_nodes_whose_network_is_cut_both_end(namespaces: Nodes, schedule: Callable[[int], Path]) -> None:
    start_both(namespaces, ("run", schedule(2), "--step", "300ms", "--repeats", 20), ranks=1)
    wait_until(lambda: all(node.is_in_a_step(node.number) for node in namespaces))
    cut_the_cable()
    cut_s = time.monotonic()
    wait_until(lambda: all(lines_of(read_errors(node)) for node in namespaces), seconds=60)
    assert time.monotonic() - cut_s < SECONDS
    for node in namespaces:
        other = 1 - node.number
        assert f"node {other} ({namespaces[other].address}) with rank {other} (stages" in read_errors(node)


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (signal.SIGKILL, "was ended by signal 9 (SIGKILL)"),
        (signal.SIGSTOP, "has been stopped for"),
    ],
)
def test_a_rank_that_dies_or_is_stopped_is_named_on_every_node(
    number: signal.Signals, words: str, namespaces: Nodes, schedule: Callable[[int], Path]
) -> None:
    start_both(namespaces, ("run", schedule(2), "--step", "300ms", "--repeats", 20), ranks=1)
    wait_until(lambda: all(node.is_in_a_step(node.number) for node in namespaces))
    namespaces[1].rank_process(1).send_signal(number)
    for node in namespaces:
        ended = node.wait(120)
        assert ended.status == 1
        (said,) = lines_of(ended.stderr)
        assert re.search(
            rf"rank 1 \(stages .*\) on node 1 \({namespaces[1].address}\) {re.escape(words)}", said
        )


def test_a_rank_that_hangs_is_named_when_the_time_is_over(
    namespaces: Nodes, schedule: Callable[[int], Path]
) -> None:
    start_both(namespaces, ("run", schedule(2), "--step", "60s", "--timeout", "15s"), ranks=1)
    for node in namespaces:
        (said,) = lines_of(node.wait(200).stderr)
        assert re.search(r"time-out of 15 s when rank \d \(stages .*\) on node \d \(192.*\) was ", said)


def test_another_plan_or_another_version_on_one_node_is_refused(
    namespaces: Nodes, schedule: Callable[[int], Path], tmp_path: Path
) -> None:
    path = schedule(2)
    other = tmp_path / "other.json"
    other.write_bytes(path.read_bytes() + b"\n")
    metadata = tmp_path / "elsewhere" / "tessel_tuner-9.9.dist-info" / "METADATA"
    metadata.parent.mkdir(parents=True)
    metadata.write_text("Metadata-Version: 2.1\nName: tessel-tuner\nVersion: 9.9\n")
    for given, extra_path, words in (
        (other, "", "was given another plan than rank 0 on node 0"),
        (path, str(metadata.parents[1]), "has tessel-tuner 9.9, but rank 0 on node 0"),
    ):
        arguments = ("run", str(path), "--step", "1ms", "--repeats", "1")
        namespaces[0].start(arguments, endpoint=endpoint_of(namespaces), ranks=1)
        arguments = ("run", str(given), *arguments[2:])
        namespaces[1].start(arguments, endpoint=endpoint_of(namespaces), ranks=1, extra_path=extra_path)
        for node in namespaces:
            ended = node.wait(200)
            assert ended.status == 1
            (said,) = lines_of(ended.stderr)
            assert f"rank 1 on node 1 ({namespaces[1].address}) {words}" in said


def test_a_node_that_cannot_start_ends_the_others(namespaces: Nodes, schedule: Callable[[int], Path]) -> None:
    path = schedule(2)
    arguments = ("--step", "1ms", "--repeats", "1")
    namespaces[0].start(("run", str(path), *arguments), endpoint=endpoint_of(namespaces), ranks=1)
    namespaces[1].start(("run", "missing.json", *arguments), endpoint=endpoint_of(namespaces), ranks=1)
    (said,) = lines_of(namespaces[0].wait(200).stderr)
    assert f"on node 1 ({namespaces[1].address}) could not go on: missing.json cannot be read" in said


def lines_of(stderr: str) -> list[str]:
    """Return what `tessel` said, among what torchrun printed."""
    return [line for line in stderr.splitlines() if line.startswith("tessel: ")]


def read_errors(node: Node) -> str:
    return (node.folder / "stderr").read_text()
