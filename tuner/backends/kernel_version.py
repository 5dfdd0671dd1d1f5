"""Common parts of the backends with this project's own vectorised TVM kernels for CPUs."""

from __future__ import annotations

from tuner.targets.target import Target


def version_entry(backend: str, version: int) -> tuple[str, str]:
    """Return the entry of an environment that separates the versions of a backend's kernels.

    The version rises by one with each change of what the backend lowers to, so that old records never price
    new kernels; tests/tuner/backends/test_kernel_versions.py fails until it does.
    """
    return f"{backend}-kernels", str(version)


class CpuKernels:
    """The part of `tuner.backends.protocol.Backend` that all backends with kernels of their own share."""

    name: str
    kernels_version: int
    settings = ""

    def versions(self) -> tuple[tuple[str, str], ...]:
        """Return the version of its kernels; TVM's own is in every environment."""
        return (version_entry(self.name, self.kernels_version),)

    def unavailable_reason(self, target: Target) -> str | None:
        """Say that its kernels are written for a CPU's vectors."""
        return None if target.kind == "cpu" else "its kernels are for a CPU"
