"""Options of a plan that is made from a model's `config.json` and the name of a GPU.

Checked in tests/tessel/jobs/test_described_model.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tessel.errors import UsageError
from tessel.jobs.inputs.arguments import check_choice, check_counts

if TYPE_CHECKING:
    from tessel.architectures.gpu_sheets import GpuSheet
    from tessel.planning.layout import TowerName
    from tessel.profiles.profile import Profile

DTYPES = ("bf16", "fp8")
DISPATCHES = ("nccl", "deepep")
TOWERS = ("first", "own", "bubbles", "auto")
GPUS = ("a100", "h100", "h200", "b200", "gb200", "b300", "gb300", "l40s", "rtx pro 6000", "mi300x", "mi355x")
"""As the data sheets' own table, whose module loads more than a completion may; checked in
tests/scripts/commands/test_plan.py."""

DEFAULT_SEQ = 4096
"""Tokens of a sequence, or as many as the model takes."""


@dataclass(frozen=True, kw_only=True)
class ConfigOptions:
    """What a config does not say.

    Attributes:
        gpu: whose data sheet says what a device can do: one of `GPUS`.
        seq: tokens of a sequence; `DEFAULT_SEQ`, or the most that the model takes, if None.
        dtype: of products: one of `DTYPES`.
        mfu: share of the peak at which layers run, in place of a roofline of their kernels.
        efficiency: share of the peak that products reach; the data sheet's if None.
        imbalance: rows of the fullest device's experts over the mean.
        recompute: parts of layers that run their forward again, by Megatron-Core's names.
        overlap_tensor: whether exchanges of tensor parallelism run beside products.
        dispatch: how tokens go to experts: `nccl`, or `deepep`, once to each node.
        pictures: that a sequence holds, for a model with a tower; 0 plans the language model alone.
        picture_tokens: that the language model reads of each; as many as the config says if None.
        frozen_tower: whether the tower is not trained, but for its projector.
        tower: where the tower runs that is in front of the language model: one of `TOWERS`.
    """

    gpu: str | None = None
    seq: int | None = None
    dtype: str = "bf16"
    mfu: float | None = None
    efficiency: float | None = None
    imbalance: float = 1.0
    recompute: str | Sequence[str] | None = None
    overlap_tensor: bool = False
    dispatch: str = "deepep"
    pictures: int = 0
    picture_tokens: int | None = None
    frozen_tower: bool = False
    tower: str = "first"

    def check_config(self) -> None:
        """Refuse values that are wrong by themselves.

        Raises:
            UsageError: there is one.
        """
        check_counts(self, ("seq", "picture_tokens"))
        if self.pictures < 0:
            raise UsageError(
                f"--pictures is {self.pictures}; give the pictures of a sequence, 0 for text alone"
            )
        check_choice("--dtype", self.dtype, DTYPES)
        check_choice("--dispatch", self.dispatch, DISPATCHES)
        check_choice("--tower", self.tower, TOWERS)
        for name in ("mfu", "efficiency"):
            value = getattr(self, name)
            if value is not None and not 0 < value <= 1:
                raise UsageError(f"--{name} is {value:g}; give a share of the peak, above 0 and at most 1")
        sheet = self.sheet()
        if sheet is not None and self.dtype == "fp8" and not sheet.fp8_tflops:
            raise UsageError(f"--dtype fp8: {sheet.name} has no products in fp8; give --dtype bf16")

    def sheet(self) -> GpuSheet | None:
        """Return the data sheet of the GPU; None where none is named.

        Raises:
            UsageError: none has that name.
        """
        from tessel.architectures.gpu_sheets import find_sheet

        return None if self.gpu is None else find_sheet(self.gpu)

    def towers(self, profile: Profile) -> tuple[TowerName, ...]:
        """Return where the tower of a profile may run.

        Raises:
            UsageError: it has none, and one is to run elsewhere than first.
        """
        from tessel.profiles.towers import tower_layers

        if self.tower == "first":
            return ("first",)
        if not tower_layers(profile):
            raise UsageError(
                f"--tower {self.tower}: no first layers of {profile.name} are a tower's by their names, such "
                "as vision.layers.0; give --pictures with a config.json, or leave it out"
            )
        every: tuple[TowerName, ...] = ("first", "own", "bubbles")
        return tuple(each for each in every if self.tower in (each, "auto"))

    @property
    def recomputed(self) -> frozenset[str]:
        """The parts of layers that run their forward again."""
        given = self.recompute.split(",") if isinstance(self.recompute, str) else self.recompute or ()
        return frozenset(part.strip() for part in given if part.strip())
