"""Gather a training set for the cost model: kernels of the zoo's models, over shapes and backends.

Each network is loaded at several batch sizes; every distinct candidate of its forward, and of its joint
backward where it trains, is a sample to be. They are measured in an order shuffled by a seed, so that a
budget cut short still covers every network. Resumable: what the records hold is not measured again. Which
workloads belong to which network is told beside, because a held-out network is the honest test. Checked in
tests/tuner/test_collect.py.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from tuner.backends.protocol import IRModule
from tuner.candidate import HOST
from tuner.errors import TunerError
from tuner.frontend import load_model
from tuner.graph import DataflowGraph
from tuner.measure import MeasureRequest
from tuner.partition import find_candidates
from tuner.price_measured import workload_of_candidate
from tuner.rewrite import extract_module
from tuner.rules import gather_specs
from tuner.session import Session, TuningProgress
from tuner.stages import build_stages

DEFAULT_NETWORKS = (
    "mlp",
    "gpt2:tiny",
    "bert:tiny",
    "mt5:tiny",
    "flava:tiny",
    "resnet:tiny",
    "mobilenet:tiny",
)

DEFAULT_BATCHES = (1, 2, 4)

_CHUNK = 16
"""Programs measured between two looks at the clock: a few seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Collected:
    """What a collection came to.

    Attributes:
        num_found: distinct (workload, backend) pairs of all networks.
        num_done: those that the records now hold.
        num_new: those measured by this run.
        networks: fingerprints of each network's workloads.
    """

    num_found: int
    num_done: int
    num_new: int
    networks: dict[str, tuple[str, ...]]


def collect(
    session: Session,
    *,
    networks: Sequence[str] = DEFAULT_NETWORKS,
    batches: Sequence[int] = DEFAULT_BATCHES,
    max_samples: int | None = None,
    time_limit_s: float | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Collected:
    """Measure candidates of the networks until all are done or a budget is spent.

    Args:
        session: what measures.
        networks: models as `load_model` names them.
        batches: batch sizes at which each is loaded.
        max_samples: most programs to measure in this run; None for all.
        time_limit_s: longest to go on; None for no limit.
        clock: seconds, monotonic.

    Raises:
        UnknownNameError: there is no such model.
    """
    deadline = None if time_limit_s is None else clock() + time_limit_s
    requests: dict[tuple[str, str], MeasureRequest] = {}
    members: dict[str, dict[str, None]] = {name: {} for name in networks}
    for name, batch in itertools.product(networks, batches):
        session.on_progress(TuningProgress(text=f"listing kernels of {name} at batch {batch}"))
        for request in _requests(session, name, batch):
            requests.setdefault((request.workload.fingerprint, request.backend), request)
            members[name][request.workload.fingerprint] = None
    order = list(requests.values())
    np.random.default_rng(session.seed).shuffle(order)
    num_new, num_done = _measure(session, order, max_samples=max_samples, deadline=deadline, clock=clock)
    return Collected(
        num_found=len(order),
        num_done=num_done,
        num_new=num_new,
        networks={name: tuple(found) for name, found in members.items()},
    )


def _measure(
    session: Session,
    order: Sequence[MeasureRequest],
    *,
    max_samples: int | None,
    deadline: float | None,
    clock: Callable[[], float],
) -> tuple[int, int]:
    measurer = session.measurer
    start = measurer.new_measurements
    num_done = 0
    for first in range(0, len(order), _CHUNK):
        num_new = measurer.new_measurements - start
        if (max_samples is not None and num_new >= max_samples) or (
            deadline is not None and clock() >= deadline
        ):
            break
        chunk = order[first : first + _CHUNK]
        measurer.measure_many(chunk)
        num_done += len(chunk)
        session.on_progress(TuningProgress(text=f"{num_new} measured", completed=num_done, total=len(order)))
    return measurer.new_measurements - start, num_done


def _requests(session: Session, name: str, batch: int) -> Iterator[MeasureRequest]:
    """Yield every candidate of a network's functions as a program to measure."""
    backends = {backend.name: backend for backend in session.backends}
    specs = gather_specs(session.backends, session.target)
    for module in _modules(name, batch):
        graph = DataflowGraph.from_function(module)
        for candidate in find_candidates(graph, specs).candidates:
            if candidate.backend == HOST:
                continue
            yield MeasureRequest(
                workload=workload_of_candidate(graph, candidate),
                module=extract_module(graph, candidate.sub_graph, candidate.backend),
                backend=candidate.backend,
                settings=backends[candidate.backend].settings,
                check=True,
            )


def _modules(name: str, batch: int) -> Iterator[IRModule]:
    """Yield a network's forward, and its joint backward where it can be trained."""
    model = load_model(name, batch=batch, training=False)
    yield model.module
    try:
        (stage,) = build_stages(load_model(name, batch=batch, training=True), ())
    except TunerError:
        return  # A network without a loss, or with an operator without a gradient, has its forward alone.
    if stage.backward is not None:
        yield stage.backward.module
