"""Orders whose forwards and backwards run together, against a simulation of cells that shares no code."""

from __future__ import annotations

import math

import numpy as np
import pytest
from layer_plans import cluster, profile

import tessel
from tessel.checking.case import Case, simulate, timed
from tessel.checking.overlap import overlapped, pairs_of_cells
from tessel.checking.sources import Pricing, case_of_csv
from tessel.engine.actions import RankCells, actions_from_csv, cells_from_csv
from tessel.errors import UsageError
from tessel.planning.cluster import OPTIMIZERS
from tessel.planning.job import Job

SHARED = "0F0,0F1,(0F2;0B0)OVERLAP_F_B,0B1,0B2\n1F0,1B0,1F1,(1F2;1B1)OVERLAP_F_B,1B2\n"


def case_of(text: str, *, priced: bool = False) -> Case:
    pricing = None
    if priced:
        job = Job(cluster=cluster(2), optimizer=OPTIMIZERS["adam"])
        pricing = Pricing(profile=profile(halves=False), job=job)
    return case_of_csv("x.csv", actions_from_csv(text), pricing)


def one_f_one_b(ranks: int, micro_batches: int, rng: np.random.Generator) -> str:
    """Return the cells of 1F1B, some of whose forwards share a cell with the backward behind them."""
    rows = []
    for rank in range(ranks):
        warm_up = min(ranks - rank, micro_batches)
        order = [f"{rank}F{number}" for number in range(warm_up)]
        for number in range(micro_batches):
            forward = number + warm_up
            if forward < micro_batches and rng.random() < 0.5:
                order.append(f"({rank}F{forward};{rank}B{number})OVERLAP_F_B")
            else:
                order.append(f"{rank}B{number}")
                order += [f"{rank}F{forward}"] if forward < micro_batches else []
        rows.append(",".join(order))
    return "\n".join(rows) + "\n"


def simulated(cells: RankCells, spans: dict[str, list[int]], factor: float) -> int:
    """Run cell by cell, each as soon as the last of its rank and what its actions read are done."""
    last = len(spans["F"]) - 1
    done: dict[tuple[str, int, int], int] = {}
    free, place = [0] * len(cells), [0] * len(cells)
    while any(place[rank] < len(own) for rank, own in enumerate(cells)):
        before = list(place)
        for rank, own in enumerate(cells):
            while place[rank] < len(own):
                reads = [
                    need
                    for action in own[place[rank]]
                    for need in needs(str(action.kind), action.stage, action.micro_batch, last)
                ]
                if not all(need in done for need in reads):
                    break
                takes = [spans[str(action.kind)][action.stage] for action in own[place[rank]]]
                length = max(*takes, math.ceil(factor * sum(takes))) if len(takes) > 1 else takes[0]
                free[rank] = max([free[rank], *(done[need] for need in reads)]) + length
                for action in own[place[rank]]:
                    done[str(action.kind), action.stage, action.micro_batch] = free[rank]
                place[rank] += 1
        assert place != before, "nothing waits for ever here"
    return max(free)


def needs(kind: str, stage: int, micro_batch: int, last: int) -> list[tuple[str, int, int]]:
    if kind == "F":
        return [("F", stage - 1, micro_batch)] if stage else []
    return [("F", stage, micro_batch), *([("B", stage + 1, micro_batch)] if stage < last else [])]


@pytest.mark.parametrize("seed", range(12))
def test_pairs_take_what_a_run_of_their_cells_takes(seed: int) -> None:
    rng = np.random.default_rng(seed)
    ranks = 2 + seed % 3
    text = one_f_one_b(ranks, 3 + seed % 4, rng)
    case = case_of(text)
    factor = (0.4, 0.6, 0.8, 1.0)[seed % 4]
    cells = cells_from_csv(text)
    spans = {"F": [1] * ranks, "B": [2] * ranks}
    found = overlapped(case, pairs_of_cells(cells), factor)
    assert found.length == simulated(cells, spans, factor)
    assert found.num_apart == 0
    assert found.num_pairs == text.count("OVERLAP")


def test_a_small_order_by_hand() -> None:
    """Rank 1 is done with 1F1 at 5; its pair waits for 0F2, which begins with 0B0 at 4 and ends at 6."""
    found = overlapped(case_of(SHARED), pairs_of_cells(cells_from_csv(SHARED)), 0.5)
    assert timed(case_of(SHARED)).makespan == 12
    assert found.length == 12  # the pairs wait for each other as long as they save
    short = "0F0,(0F1;0B0)OVERLAP_F_B,0B1\n"
    assert timed(case_of(short)).makespan == 6
    assert overlapped(case_of(short), pairs_of_cells(cells_from_csv(short)), 0.6).length == 5


def test_what_waits_for_itself_runs_apart() -> None:
    same = "0F0,0F1,0B0,0B1\n1F0,1B0,(1F1;1B1)OVERLAP_F_B\n"
    found = overlapped(case_of(same), pairs_of_cells(cells_from_csv(same)), 0.5)
    assert (found.num_pairs, found.num_apart) == (0, 1)
    assert found.length == timed(case_of(same)).makespan
    # 0F2 and 0B1 in one cell: 1B1 stands behind 1F2, which waits for 0F2.
    across = "0F0,0F1,0B0,(0F2;0B1)OVERLAP_F_B,0B2\n1F0,1B0,1F1,1F2,1B1,1B2\n"
    found = overlapped(case_of(across), pairs_of_cells(cells_from_csv(across)), 0.5)
    assert (found.num_pairs, found.num_apart) == (0, 1)
    assert found.length == timed(case_of(across)).makespan


def test_a_profile_gives_the_step() -> None:
    priced = case_of(SHARED, priced=True)
    pairs = pairs_of_cells(cells_from_csv(SHARED))
    lengths = [overlapped(priced, pairs, factor).length for factor in (0.5, 0.75, 1.0)]
    assert lengths == sorted(lengths)
    assert lengths[0] < lengths[2]
    assert overlapped(priced, (), 0.5).length == pytest.approx(simulate(priced).length)


def test_check_says_it(tmp_path) -> None:
    path = str(_written(tmp_path, "0F0,(0F1;0B0)OVERLAP_F_B,0B1\n"))
    found = tessel.check(path, overlap_factor=0.6, work=0.01, progress=False)
    assert found.overlapped is not None
    assert found.overlapped.length == 5
    assert found.found is not None
    assert found.found.length == 6
    with pytest.raises(UsageError, match=r"overlap-factor is 0, and a pair takes a share of its sum"):
        tessel.check(path, overlap_factor=0.0)
    plain = str(_written(tmp_path, "0F0,0B0\n"))
    with pytest.raises(UsageError, match="has no OVERLAP_F_B cell; leave it out"):
        tessel.check(plain, overlap_factor=0.6)


def _written(folder, text: str):
    path = folder / "orders.csv"
    path.write_text(text)
    return path
