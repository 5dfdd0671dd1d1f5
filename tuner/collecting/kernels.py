"""Gather a training set for the cost model: kernels of the zoo's models, over shapes and backends.

Each network is loaded at several batch sizes and lengths of text; every distinct candidate of its forward,
and of its joint backward where it trains, is a sample to be. Random chains of convolutions and products may
be added, so that a network never seen does not bring an operator, or a kind of it, never seen. They are
measured in an order that a budget may cut short anywhere: networks, batches and lengths take turns, and in
each so do programs that several backends can run (what decisions are made between) and programs that only one
can; within these, a seed shuffles. Resumable: what the records hold is not measured again. Which workloads
belong to which network is told beside, because a held-out network is the honest test. Checked in
tests/tuner/collecting/test_kernels.py.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias, TypeVar, cast

import numpy as np

from cost_model.dataset import GENERIC_PREFIX
from tuner.errors import TunerError
from tuner.frontend import Model, load_model
from tuner.frontend.random_models.convolutions import random_convolutions
from tuner.frontend.random_models.products import random_products
from tuner.graph import DataflowGraph
from tuner.graph.relax_types import IRModule
from tuner.lowering.backend_specs import gather_specs
from tuner.lowering.outline import extract_module
from tuner.measuring.request import MeasureRequest
from tuner.partition.candidate import FREE
from tuner.partition.find_partition import find_candidates
from tuner.pricing.measured import workload_of_candidate
from tuner.stages import build_stages
from tuner.tuning.session import Session, TuningProgress

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

CHAINS = GENERIC_PREFIX + "chains"
"""What the random chains are called among the networks."""

_Item = TypeVar("_Item")
_Key: TypeAlias = tuple[str, str]
"""Workload and backend."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectionSettings:
    """Which programs a collection is made of.

    Attributes:
        networks: models as `load_model` names them.
        batches: batch sizes at which each is loaded.
        lengths: tokens of a text, for networks that read text; each network's own if empty.
        num_chains: random chains of each kind beside the networks; see `random_convolutions`.
        max_gflops: programs of more than so many 10⁹ operations are left out; None for no limit. Without
            tuning, TVM's kernels run at a few GFLOP/s.
    """

    networks: Sequence[str] = DEFAULT_NETWORKS
    batches: Sequence[int] = DEFAULT_BATCHES
    lengths: Sequence[int] = ()
    num_chains: int = 0
    max_gflops: float | None = None


def collect(
    session: Session,
    settings: CollectionSettings = CollectionSettings(),
    *,
    max_samples: int | None = None,
    time_limit_s: float | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Collected:
    """Measure candidates of the networks until all are done or a budget is spent.

    Args:
        settings: which programs.
        max_samples: most programs to measure in this run; None for all.
        time_limit_s: longest to go on; None for no limit.
        clock: seconds, monotonic.

    Raises:
        UnknownNameError: there is no such model.
    """
    deadline = None if time_limit_s is None else clock() + time_limit_s
    members: dict[str, dict[str, None]] = {name: {} for name in settings.networks}
    seen: set[_Key] = set()
    turns: list[list[list[MeasureRequest]]] = []
    rng = np.random.default_rng(session.seed)
    for name, batch in itertools.product(settings.networks, settings.batches):
        session.on_progress(TuningProgress(text=f"listing kernels of {name} at batch {batch}"))
        for length in _lengths_of(name, settings.lengths):
            found = _requests(session, _modules(name, batch, length), seen, members[name])
            turns.append(_in_turn(list(found), rng))
    if settings.num_chains:
        session.on_progress(TuningProgress(text="listing kernels of random chains"))
        found = _requests(session, _chains(settings.num_chains), seen, members.setdefault(CHAINS, {}))
        turns.append(_in_turn(list(found), rng))
    order = [
        request
        for group in _round_robin(turns)
        for request in group
        if settings.max_gflops is None or request.workload.flops <= settings.max_gflops * 1e9
    ]
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


def _lengths_of(name: str, lengths: Sequence[int]) -> tuple[int | None, ...]:
    """Return the lengths at which a network is loaded; None stands for its own.

    A length beyond a network's table of positions is left out, since one list serves all networks.
    """
    names = _token_inputs(load_model(name, training=False)) if lengths else ()
    fitting = tuple(length for length in lengths if names and _takes(name, names, length))
    return fitting or (None,)


def _takes(name: str, inputs: Sequence[str], length: int) -> bool:
    try:
        load_model(name, shapes=dict.fromkeys(inputs, (1, length)), training=False)
    except ValueError:
        return False
    return True


def _token_inputs(model: Model) -> tuple[str, ...]:
    return tuple(
        item.name
        for item in model.inputs
        if item.dtype.startswith("int") and len(item.shape) == 2 and item.name.endswith("input_ids")
    )


def _in_turn(requests: Sequence[MeasureRequest], rng: np.random.Generator) -> list[list[MeasureRequest]]:
    """Group requests by workload, and let those of several backends and of one take turns."""
    by_workload: dict[str, list[MeasureRequest]] = {}
    for request in requests:
        by_workload.setdefault(request.workload.fingerprint, []).append(request)
    groups = list(by_workload.values())
    rng.shuffle(groups)
    several = [group for group in groups if len(group) > 1]
    alone = [group for group in groups if len(group) == 1]
    return _round_robin([several, alone])


def _round_robin(rows: Sequence[Sequence[_Item]]) -> list[_Item]:
    """Return the first of each row, then the second of each, and so on; rows may differ in length."""
    missing = object()
    columns = itertools.zip_longest(*rows, fillvalue=missing)
    return [cast("_Item", item) for column in columns for item in column if item is not missing]


def _requests(
    session: Session,
    modules: Iterable[IRModule],
    seen: set[_Key],
    members: dict[str, None],
) -> Iterator[MeasureRequest]:
    """Yield the candidates of a network's functions that were not seen yet, as programs to measure.

    Args:
        seen: workloads and backends that were yielded before; added to.
        members: fingerprints of the network's workloads, seen or not; added to.
    """
    backends = {backend.name: backend for backend in session.backends}
    specs = gather_specs(session.backends, session.target)
    for module in modules:
        graph = DataflowGraph.from_function(module)
        for candidate in find_candidates(graph, specs).candidates:
            if candidate.backend == FREE:
                continue
            workload = workload_of_candidate(graph, candidate)
            members[workload.fingerprint] = None
            key = workload.fingerprint, candidate.backend
            if key in seen:
                continue
            seen.add(key)
            yield MeasureRequest(
                workload=workload,
                module=extract_module(graph, candidate.sub_graph, candidate.backend),
                backend=candidate.backend,
                settings=backends[candidate.backend].settings,
                check=True,
            )


def _modules(name: str, batch: int, length: int | None) -> Iterator[IRModule]:
    """Yield a network's forward, and its joint backward where it can be trained."""
    model = load_model(name, batch=batch, training=False)
    shapes = {} if length is None else dict.fromkeys(_token_inputs(model), (batch, length))
    yield load_model(name, batch=batch, shapes=shapes, training=False).module if shapes else model.module
    try:
        trained = load_model(name, batch=batch, shapes=shapes, training=True)
        yield from _backward(trained)
    except TunerError:
        return  # A network without a loss, or with an operator without a gradient, has its forward alone.


def _chains(number: int) -> Iterator[IRModule]:
    """Yield forward and joint backward of so many random chains of each kind."""
    for seed, draw in itertools.product(range(number), (random_convolutions, random_products)):
        yield draw(seed, training=False).module
        yield from _backward(draw(seed, training=True))


def _backward(model: Model) -> Iterator[IRModule]:
    (stage,) = build_stages(model, ())
    if stage.backward is not None:
        yield stage.backward.module
