"""The environment of a measurement: device, threads, driver, and versions of the software involved.

Two environments are interchangeable for an exact look-up only where every field is equal. What is not
modelled (current clock frequency, other load) shows in the spread of a measurement's samples instead.
"""

from __future__ import annotations

import hashlib

import msgspec

from records.backend_names import current_versions, kept_versions


class Environment(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The machine and software that a measurement belongs to.

    Attributes:
        device_kind: `cpu` or `cuda`.
        device_model: the processor's or GPU's own name.
        num_cores: cores (CPU) or multiprocessors (GPU) of the device.
        num_threads: threads that the measured program was allowed; 1 for a GPU.
        driver: the GPU driver's version, or the operating system's kernel release for a CPU.
        versions: (distribution, version) pairs of what compiles and runs programs, sorted by name. Kernels
            that belong to a backend itself have a version too (`nhwc-kernels`).
    """

    device_kind: str
    device_model: str
    num_cores: int
    num_threads: int
    driver: str
    versions: tuple[tuple[str, str], ...]

    @property
    def fingerprint(self) -> str:
        """Name the environment by 32 hexadecimal digits."""
        return hashlib.blake2b(self.to_json(), digest_size=16).hexdigest()

    def to_json(self) -> bytes:
        """Return the text that is stored and hashed; see `records.backend_names`."""
        return msgspec.json.encode(self.as_kept(), order="sorted")

    def as_kept(self) -> Environment:
        """Return the environment with kernels' versions by the names that records keep."""
        versions = kept_versions(self.versions)
        return self if versions is self.versions else msgspec.structs.replace(self, versions=versions)

    def as_current(self) -> Environment:
        """Return the environment with kernels' versions by the current names of their backends."""
        versions = current_versions(self.versions)
        return self if versions is self.versions else msgspec.structs.replace(self, versions=versions)
