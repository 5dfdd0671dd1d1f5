"""What groups of features are worth: errors of models that lack them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from benchmarks.typed_kernels.baselines import roofline_us
from cost_model.gpu.typed.features import FeatureTable, feature_table
from cost_model.gpu.typed.training import Array, Cell, Training

_GROUPS = {
    "nothing": (),
    "tiles and waves": ("64x", "128x"),
    "roofline ratios": ("log_compute", "log_memory", "log_bytes_over_l2"),
    "what the cache holds": ("log_uncached",),
    "the analytic latency as a feature": ("log_analytic",),
    "extents": ("log_rows", "log_columns", "log_inner", "log_skew"),
    "data types": ("dtype_",),
    "the device": ("log_ridge", "multiprocessors", "log_bandwidth", "log_flops_a"),
}


@dataclass(frozen=True)
class _Without(Training):
    """Training whose features of some names are constant."""

    names: tuple[str, ...] = ()

    @cached_property
    def seen(self) -> tuple[tuple[Array, FeatureTable], ...]:
        """Each cell's analytic latencies and features, those of some names blanked."""
        return tuple((base, self._blanked(table)) for base, table in Training(self.cells, self.seed).seen)

    def _blanked(self, table: FeatureTable) -> FeatureTable:
        values = table.values.copy()
        values[:, [name.startswith(self.names) for name in table.names]] = 0
        return table._replace(values=values)


class _Plain(Cell):
    """A cell whose forests correct a roofline, with 3 us of a call, instead of the analytic latency."""

    def seen_by(self, known: Sequence[Cell] | None = None) -> tuple[Array, FeatureTable]:
        base = roofline_us(self.kernels, self.sheet) + 3
        return base, feature_table(self.kernels, self.sheet, base)


def ablations(cells: Sequence[Cell]) -> Iterator[tuple[str, str, str]]:
    """Yield the mean error of cells, in per cent, on new extents and on new generations of devices."""
    for name, names in _GROUPS.items():
        yield name, *_errors(_Without(tuple(cells), names=names) if names else Training(tuple(cells)))
    plain = tuple(_Plain(cell.sheet, cell.name, cell.kernels, cell.latency_us) for cell in cells)
    yield "the analytic latency (a roofline instead)", *_errors(Training(plain))


def _errors(training: Training) -> tuple[str, str]:
    extents, generations = training.errors_on_new_extents(), training.errors_on_new_generations()
    shown = []
    for errors, cells in ((extents, training.cells), (generations, training.cells)):
        each = [
            100 * float(np.mean(np.abs(np.exp(found) - 1)))
            for found, cell in zip(errors, cells, strict=True)
            if len(found) and cell.name == "bfloat16"
        ]
        shown.append(f"{np.mean(each):.1f}")
    return shown[0], shown[1]
