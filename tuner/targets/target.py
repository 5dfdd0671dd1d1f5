"""The target as seen by other modules: canonical text, device kind and what measurements need.

`cpu`, `cuda` and a TVM tag (`nvidia/nvidia-h200`) are what a user writes; `Target` is what they become. TVM's
own target object is built from `tvm_json` where TVM is imported (`tuner.lowering.lower`), so that this module
runs without it.
"""

from __future__ import annotations

import msgspec


class Target(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A device that programs are built for and measured on.

    Attributes:
        name: what the user wrote.
        kind: `cpu` or `cuda`.
        tvm_json: TVM's target as canonical JSON: sorted keys, exact micro-architecture, number of cores.
        num_threads: threads each measurement may use on a CPU; 1 for a GPU.
    """

    name: str
    kind: str
    tvm_json: str
    num_threads: int

    @property
    def text(self) -> str:
        """The canonical text that records are kept under (threads live in their environment)."""
        return self.tvm_json
