"""Documents of `tessel targets` and `backends`."""

from __future__ import annotations

from typing import Self

import msgspec

from cost_model.gpu.devices import GpuDevice
from tuner.backends.availability import Availability
from tuner.lowering.gpu_code import GpuCode


class Device(msgspec.Struct, frozen=True, kw_only=True):
    """Whether a kind of target can be measured here, and which device that is, or why not."""

    measurable: bool
    detail: str


class TargetsListed(msgspec.Struct, frozen=True, kw_only=True):
    """What `tessel targets` lists: what is here, and the names that programs can be built for.

    Attributes:
        here: `cpu` and `cuda`, and whether they can be measured.
        targets: all names.
        gpus: what data sheets say of those that are GPUs with a known one.
    """

    here: dict[str, Device]
    targets: tuple[str, ...]
    gpus: dict[str, GpuDevice] = {}


class CompiledFor(msgspec.Struct, frozen=True, kw_only=True):
    """What a model's kernels take on one GPU target.

    Attributes:
        runs: whether all of them compile, and stay within what the device allows.
        why_not: what is wrong; null where nothing is.
        kernels: how many there are.
        code_bytes: of their machine code.
        most_registers: of a thread, over all kernels.
        most_shared_bytes: of a block, over all kernels.
        spilled_bytes: of a thread, over all kernels.
    """

    runs: bool
    why_not: str | None = None
    kernels: int = 0
    code_bytes: int = 0
    most_registers: int = 0
    most_shared_bytes: int = 0
    spilled_bytes: int = 0

    @classmethod
    def of(cls, code: GpuCode) -> Self:
        """Return what there is to say of a model's machine code."""
        kernels = code.kernels
        return cls(
            runs=not code.excesses,
            why_not="; ".join(code.excesses) or None,
            kernels=len(kernels),
            code_bytes=code.code_bytes,
            most_registers=max((kernel.registers for kernel in kernels), default=0),
            most_shared_bytes=max(
                (kernel.shared_bytes + kernel.dynamic_shared_bytes for kernel in kernels), default=0
            ),
            spilled_bytes=max((kernel.spilled_bytes for kernel in kernels), default=0),
        )

    def line(self) -> str:
        """Return it as one line."""
        if self.why_not is not None:
            return self.why_not
        return (
            f"{self.kernels} kernels, {self.code_bytes / 1024:.0f} KiB of machine code, at most "
            f"{self.most_registers} registers a thread and {self.most_shared_bytes / 1024:.1f} KiB of shared "
            f"memory a block, {self.spilled_bytes} bytes spilled"
        )


class ModelCompiled(msgspec.Struct, frozen=True, kw_only=True):
    """What `tessel targets --compile MODEL` prints: whether the model's kernels run on each GPU target."""

    model: str
    targets: dict[str, CompiledFor]


class BackendsListed(msgspec.Struct, frozen=True, kw_only=True):
    """What `tessel backends` lists for a target.

    Attributes:
        target: as it was given.
        measuring_obstacle: why programs for it cannot be measured here; null where they can.
        backends: what each needs, and whether that is here.
    """

    target: str
    measuring_obstacle: str | None
    backends: tuple[Availability, ...]
