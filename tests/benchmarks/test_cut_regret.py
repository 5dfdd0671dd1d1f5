"""The cut that predictions are judged by is the best one."""

import itertools
import random

from benchmarks.gpu_cost_model.cut_regret import best_cut, slowest


def test_the_cut_is_as_good_as_the_best_of_all() -> None:
    rng = random.Random(0)
    for _ in range(200):
        latencies = [rng.choice((0.0, 1.0, rng.uniform(0.1, 9))) for _ in range(rng.randint(1, 8))]
        count = rng.randint(1, len(latencies))
        cuts = itertools.combinations(range(1, len(latencies)), count - 1)
        best = min(slowest(latencies, cut) for cut in cuts)
        found = best_cut(latencies, count)
        assert len(found) < count
        assert abs(slowest(latencies, found) - best) < 1e-9
