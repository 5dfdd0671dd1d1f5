"""Pricing by the session's mode; in `active`, only what the decision depends on is measured.

Active pricing solves the partition problem
optimistically (each unmeasured candidate towards the low end of its interval) and measures the unmeasured
candidates of that solution, until the optimistic cost is within `regret` of the best fully measured partition
or the budget is spent. Candidates chosen for their prediction tend to take longer than predicted (winner's
curse); all other predictions are raised by the factor observed on the measured ones. If intervals hold and
errors of different programs are independent, no unmeasured candidates are then likely to improve the answer
by more than the regret. The parts of the result are always measured. Candidates outside the model's training
range are measured before any decision. A backend unknown to the model is assumed, optimistically, to run at
the device's peak until some of its programs are measured; its others are then scaled by the same ratio to
their bounds. Checked in tests/tuner/pricing/test_active.py.

Source: the principle is optimism under uncertainty for combinatorial choices (Chen et al., "Combinatorial
multi-armed bandit", ICML 2013, section 3), with calibrated intervals of a regression in place of counts.
"""

from __future__ import annotations

import functools
import logging
import statistics
from collections.abc import Callable, Collection, Sequence, Set
from typing import TypeAlias

import msgspec

from cost_model.errors import CostModelError
from cost_model.features import Query
from cost_model.kernel_model import KernelModel
from cost_model.roofline import DeviceSpeed, bound_us, roofline_us
from records import Workload
from tuner.backends.protocol import settings_for
from tuner.errors import UnpriceableError
from tuner.graph import DataflowGraph
from tuner.lowering.outline import extract_function
from tuner.measuring.measurer import Measurer
from tuner.partition.candidate import FREE, CandidatePartition
from tuner.partition.find_partition import Partition, find_partition
from tuner.partition.price import Invalid, Price
from tuner.plan import Figure
from tuner.pricing.measured import MeasuredPricer, price_of, workload_of_candidate
from tuner.pricing.protocol import Pricing, is_predicted, is_spent
from tuner.pricing.rules import price_by_rules

logger = logging.getLogger(__name__)

_Solve: TypeAlias = Callable[[Sequence[CandidatePartition], Sequence[Price]], Partition]

_ProgramKey: TypeAlias = tuple[str, str, str]
"""Workload, backend and the settings under which its record is kept."""

_RESEMBLANCE = 1.25
"""How far beyond the extremes of what was measured of a new backend its other programs may lie."""

_MAX_ROUNDS = 50
"""Rounds of active pricing; each measures at least one candidate, and most functions need fewer than ten."""


def price_candidates(
    graph: DataflowGraph,
    candidates: Sequence[CandidatePartition],
    measurer: Measurer,
    pricing: Pricing,
    *,
    launch_penalty_us: float,
    seed: int,
) -> tuple[Price, ...]:
    """Return one price per candidate, in order, measured or predicted as the mode says.

    Raises:
        CostModelError: predictions are asked for, and the records hold too few samples to learn from.
        UnpriceableError: nobody can run an operator; names it.
    """
    pricer = MeasuredPricer(graph, measurer)
    if pricing.mode == "measured":
        return pricer.price(candidates)
    if pricing.mode == "rules":
        return price_by_rules(graph, candidates, measurer)
    model = pricing.current_model(measurer, seed)
    if model is None:
        if pricing.mode == "model":
            raise CostModelError(
                "the records hold too few measurements to predict from; tune a model with --price measured "
                "first, or gather some with `tessel records collect`"
            )
        return pricer.price(candidates)  # There is nothing to learn from yet: these will be it.
    estimates, far = _estimates(graph, candidates, measurer, model, pricing.device_speed(measurer))
    if far:
        logger.warning(
            "%d candidates are out of the range that the cost model was trained on (%s)",
            len(far),
            ", ".join(sorted({name for names in far.values() for name in names})),
        )
    if pricing.mode == "model":
        return tuple(estimates)
    return _price_actively(
        graph,
        candidates,
        estimates,
        pricer.price,
        pricing,
        solve=functools.partial(find_partition, graph, launch_penalty_us=launch_penalty_us),
        unseen={backend.name for backend in measurer.backends} - set(model.manifest.backends),
        far=far,
    )


def _price_actively(
    graph: DataflowGraph,
    candidates: Sequence[CandidatePartition],
    estimates: Sequence[Price],
    measure: Callable[[Sequence[CandidatePartition]], Sequence[Price]],
    pricing: Pricing,
    *,
    solve: _Solve,
    unseen: Set[str] = frozenset(),
    far: Collection[int] = (),
) -> tuple[Price, ...]:
    """Return prices of which the best partition is measured.

    Args:
        estimates: what is known of each, or predicted; one object for all of equal programs.
        measure: measures candidates.
        pricing: the budget, and the regret that is allowed.
        solve: finds the best partition by prices.
        unseen: backends that the model knows nothing of.
        far: positions of candidates that are out of the range that the model was trained on: what it says of
            them decides nothing, so they are measured first.
    """
    prices = list(estimates)
    # Programs whose predictions tell of each other: the model's, and those of each backend it does not know.
    groups = [candidate.backend if candidate.backend in unseen else "" for candidate in candidates]
    position = {candidate: index for index, candidate in enumerate(candidates)}

    def measure_candidates(wanted: Sequence[CandidatePartition]) -> int:
        for candidate, price in zip(wanted, measure(wanted), strict=True):
            prices[position[candidate]] = price
        prices[:] = _corrected(estimates, prices, groups)
        pricing.num_measured += len(wanted)
        return len(wanted)

    def measure_predicted(partition: Partition) -> int:
        return measure_candidates([c for c in partition.chosen if is_predicted(prices[position[c]])])

    left = None if pricing.budget is None else max(0, pricing.budget - pricing.num_measured)
    measure_candidates([candidates[index] for index in sorted(far) if is_predicted(prices[index])][:left])
    # First a fully measured partition, which others must beat. If the measured cost differs little from the
    # optimistic one, refining the next best guess is not worth its measurements.
    best: Partition | None = None
    while best is None or not is_spent(pricing):
        guess = solve(candidates, prices)
        if best is not None and guess.cost_us >= best.cost_us * (1 - pricing.regret / 2):
            break
        if not measure_predicted(guess):
            break
        best = _solve_measured(candidates, prices, solve)
    for _ in range(_MAX_ROUNDS):
        if is_spent(pricing):
            break
        best = solve(candidates, [_measured(price) for price in prices])
        hopeful = _solve_optimistically(candidates, prices, solve, unseen)
        if hopeful.cost_us >= best.cost_us * (1 - pricing.regret) or not measure_predicted(hopeful):
            break
    # What stays unmeasured must not be chosen for its prediction: the answer is measured throughout.
    return tuple(
        Invalid("predicted too slow to be worth measuring") if is_predicted(p) else p for p in prices
    )


def _corrected(estimates: Sequence[Price], prices: Sequence[Price], groups: Sequence[str]) -> list[Price]:
    """Return prices whose predictions are scaled by how much longer the measured ones took than predicted.

    Args:
        estimates: what was predicted before anything was measured; one object for all of equal programs.
        groups: of each, the backend where the model does not know it, else the empty string.
    """
    known: dict[str, dict[int, tuple[float, float]]] = {}
    for estimate, price, group in zip(estimates, prices, groups, strict=True):
        if is_predicted(estimate) and isinstance(price, Figure) and not is_predicted(price):
            known.setdefault(group, {})[id(estimate)] = (estimate.latency_us, price.latency_us)
    corrected: dict[int, Figure] = {}
    for estimate, group in zip(estimates, groups, strict=True):
        if not is_predicted(estimate) or group not in known or id(estimate) in corrected:
            continue
        pairs = list(known[group].values())
        if group:
            corrected[id(estimate)] = _resembling(estimate, [took / bound for bound, took in pairs])
        else:
            predicted_us, measured_us = map(sum, zip(*pairs, strict=True))
            corrected[id(estimate)] = _scaled(estimate, measured_us / predicted_us)
    return [
        corrected.get(id(estimate), price) if is_predicted(price) else price
        for estimate, price in zip(estimates, prices, strict=True)
    ]


def _resembling(estimate: Figure, ratios: Sequence[float]) -> Figure:
    """Return what is expected of a program of a new backend, by what others took of their estimates."""
    latency_us = estimate.latency_us
    return msgspec.structs.replace(
        estimate,
        latency_us=latency_us * statistics.median(ratios),
        interval_us=(latency_us * min(ratios) / _RESEMBLANCE, latency_us * max(ratios) * _RESEMBLANCE),
    )


def _scaled(figure: Figure, factor: float) -> Figure:
    interval_us = figure.interval_us and (figure.interval_us[0] * factor, figure.interval_us[1] * factor)
    return msgspec.structs.replace(figure, latency_us=figure.latency_us * factor, interval_us=interval_us)


def _solve_measured(
    candidates: Sequence[CandidatePartition], prices: Sequence[Price], solve: _Solve
) -> Partition | None:
    """Return the best partition of what was measured; None where something still has no measured part."""
    try:
        return solve(candidates, [_measured(price) for price in prices])
    except UnpriceableError:
        return None


def _solve_optimistically(
    candidates: Sequence[CandidatePartition], prices: Sequence[Price], solve: _Solve, unseen: Set[str]
) -> Partition:
    """Return the partition that is cheapest if things go as well as the intervals together allow.

    Were every part at the low end of its own interval, the sum would lie far below what it ever is: errors of
    n parts that do not depend on each other add up like the square root of n. So the sum of n predicted parts
    gets an interval of its own, narrower by that root; n is that of the answer with full intervals. What is
    not known of a new backend is the same for all its parts, so that they keep their full intervals.
    """
    widest = solve(candidates, [_optimistic(price, 1.0) for price in prices])
    num_predicted = sum(is_predicted(figure) for figure in _figures_of(widest, candidates, prices))
    if num_predicted < 2:
        return widest
    share = num_predicted**-0.5
    return solve(
        candidates,
        [
            _optimistic(price, 1.0 if candidate.backend in unseen else share)
            for candidate, price in zip(candidates, prices, strict=True)
        ],
    )


def _figures_of(
    partition: Partition, candidates: Sequence[CandidatePartition], prices: Sequence[Price]
) -> list[Price]:
    """Return the price of each chosen part, equal prices of equal programs once."""
    price_of_candidate = dict(zip(candidates, prices, strict=True))
    return list(
        {id(price): price for part in partition.chosen if (price := price_of_candidate[part])}.values()
    )


def _measured(price: Price) -> Price:
    return Invalid("not measured") if is_predicted(price) else price


def _optimistic(price: Price, share: float) -> Price:
    """Return a prediction lowered by a share of the way to the low end of its interval."""
    if isinstance(price, Figure) and price.source == "predicted" and price.interval_us is not None:
        lowered_us = price.latency_us - share * (price.latency_us - price.interval_us[0])
        return msgspec.structs.replace(price, latency_us=lowered_us)
    return price


def _estimates(
    graph: DataflowGraph,
    candidates: Sequence[CandidatePartition],
    measurer: Measurer,
    model: KernelModel,
    speed: DeviceSpeed,
) -> tuple[list[Price], dict[int, tuple[str, ...]]]:
    """Price what the records know by measurement, and predict the rest; equal programs are one query.

    Returns:
        The prices, and of each candidate whose prediction is out of the model's range, by position, the names
        of the quantities that are.
    """
    backends = {backend.name: backend for backend in measurer.backends}
    known: dict[_ProgramKey, Price] = {}
    queries: dict[_ProgramKey, Query] = {}
    keys: list[_ProgramKey | None] = []
    for candidate in candidates:
        if candidate.backend == FREE:
            keys.append(None)
            continue
        workload = workload_of_candidate(graph, candidate)
        backend = backends[candidate.backend]
        settings = settings_for(backend, extract_function(graph, candidate.sub_graph, backend.name))
        key = workload.fingerprint, backend.name, settings
        keys.append(key)
        if key in known or key in queries:
            continue
        record = measurer.find(workload, backend.name, settings=settings)
        if record is not None:
            known[key] = price_of(record)
        elif backend.name in model.manifest.backends:
            queries[key] = Query(
                workload=workload,
                backend=backend.name,
                settings=settings,
                num_threads=measurer.target.num_threads,
                speed=speed,
            )
        else:
            known[key] = _unseen_backend(workload, speed)
    outside: dict[_ProgramKey, tuple[str, ...]] = {}
    for key, prediction in zip(queries, model.predict(tuple(queries.values())), strict=True):
        outside[key] = prediction.out_of_range
        known[key] = Figure(
            latency_us=prediction.latency_us,
            source="predicted",
            interval_us=(prediction.low_us, prediction.high_us),
        )
    prices = [Figure(latency_us=0.0, source="derived") if key is None else known[key] for key in keys]
    far = {index: outside[key] for index, key in enumerate(keys) if key is not None and outside.get(key)}
    return prices, far


def _unseen_backend(workload: Workload, speed: DeviceSpeed) -> Figure:
    """Return all that is known of a backend never measured: no faster than its operations at peak speed.

    Traffic slows only what is not in a cache.
    """
    least_us = bound_us(workload.flops, 0, speed)
    typical_us = 10 * roofline_us(workload, speed)
    return Figure(latency_us=typical_us, source="predicted", interval_us=(least_us, 10 * typical_us))
