"""What backends have in common whose kernels are written here, in TVM, for a CPU's vectors."""

from __future__ import annotations

from tuner.target import Target


class CpuKernels:
    """The part of `tuner.backends.protocol.Backend` that does not depend on which kernels they are."""

    settings = ""

    def versions(self) -> tuple[tuple[str, str], ...]:
        """Return nothing: TVM's own version is in every environment."""
        return ()

    def unavailable_reason(self, target: Target) -> str | None:
        """Say that its kernels are written for a CPU's vectors."""
        return None if target.kind == "cpu" else "its kernels are for a CPU"
