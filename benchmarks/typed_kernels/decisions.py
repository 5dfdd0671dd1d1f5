"""What wrong prices cost where they decide: how a product is divided, and where a chain is cut."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from cost_model.gpu.typed.kernels import Collective, Kernels, Product
from cost_model.gpu.typed.model import TypedModel
from cost_model.gpu.typed.sheets import GpuSheet
from cost_model.gpu.typed.training import Cell

Array = npt.NDArray[np.float64]

_CHAIN, _STAGES, _CHAINS = 24, 4, 300
_DEGREES = (1, 2, 4, 8)


def degree_regrets(model: TypedModel, products: Cell, reductions: Cell) -> list[float]:
    """Return what the predicted best degree of tensor parallelism takes beyond the measured best one.

    A row-parallel product of (rows × columns) is divided along its inner extent, and its result reduced; it
    counts where the product was measured at each degree. Reductions are measured at powers of two.
    """
    measured = _by_extents(products)
    reduced = {
        (int(devices), int(elements)): float(us)
        for devices, elements, us in zip(
            *(reductions.kernels.numbers[name] for name in ("devices", "elements")),
            reductions.latency_us,
            strict=True,
        )
    }
    asked: list[list[tuple[Product, Collective | None]]] = []
    times: list[list[float]] = []
    for rows, columns, inner in measured:
        elements = 1 << round(np.log2(rows * columns))
        whole = [(rows, columns, inner // degree) for degree in _DEGREES]
        if inner % 8 or not all(each in measured for each in whole) or (8, elements) not in reduced:
            continue
        sums = [Collective("all_reduce", degree, elements) if degree > 1 else None for degree in _DEGREES]
        asked.append([(Product(*each), one) for each, one in zip(whole, sums, strict=True)])
        times.append(
            [
                measured[each] + (reduced.get((one.devices, one.elements), np.inf) if one else 0.0)
                for each, one in zip(whole, sums, strict=True)
            ]
        )
    predicted = _predicted(model, products.sheet, asked)
    return [
        100 * (taken[int(np.argmin(said))] / min(taken) - 1)
        for taken, said in zip(times, predicted, strict=True)
    ]


def cut_regrets(measured_us: Array, predicted_us: Array, rng: np.random.Generator) -> list[float]:
    """Return what chains of kernels that are cut by predictions take beyond the best cut, in per cent."""
    regrets = []
    for _ in range(_CHAINS):
        chosen = rng.choice(len(measured_us), _CHAIN)
        taken, said = measured_us[chosen], predicted_us[chosen]
        best = _longest(taken, _best_cut(taken))
        regrets.append(100 * (_longest(taken, _best_cut(said)) / best - 1))
    return regrets


def _predicted(
    model: TypedModel, sheet: GpuSheet, asked: Sequence[Sequence[tuple[Product, Collective | None]]]
) -> list[list[float]]:
    if not asked:
        return []
    products = [product for row in asked for product, _ in row]
    sums = [one for row in asked for _, one in row if one is not None]
    product_us = model.predict(Kernels.of_one_kind(products), sheet).latency_us
    sum_us = iter(model.predict(Kernels.of_one_kind(sums), sheet).latency_us)
    sent = [0.0 if one is None else float(next(sum_us)) for row in asked for _, one in row]
    total = (product_us + np.array(sent)).reshape(len(asked), len(_DEGREES))
    return [[float(value) for value in row] for row in total]


def _by_extents(cell: Cell) -> Mapping[tuple[int, int, int], float]:
    columns = (cell.kernels.numbers[name].tolist() for name in ("rows", "columns", "inner"))
    return {
        (rows, width, inner): us
        for rows, width, inner, us in zip(*columns, cell.latency_us.tolist(), strict=True)
    }


def _best_cut(times: Array) -> list[int]:
    """Return where stages begin so that the longest is shortest: O(stages × kernels²)."""
    sums = np.concatenate([[0.0], np.cumsum(times)])
    count = len(times)
    best = sums.copy()
    starts: list[Array] = []
    for _ in range(_STAGES - 1):
        longest = np.maximum(best[:, None], sums[None, :] - sums[:, None])
        longest[np.tril_indices(count + 1, -1)] = np.inf
        starts.append(longest.argmin(axis=0))
        best = longest.min(axis=0)
    cuts, end = [], count
    for start in reversed(starts):
        end = int(start[end])
        cuts.append(end)
    return cuts[::-1]


def _longest(times: Array, cuts: Sequence[int]) -> float:
    return max(float(part.sum()) for part in np.split(times, cuts))
