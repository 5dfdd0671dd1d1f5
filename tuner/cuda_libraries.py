"""CUDA's runtime library, found where NVIDIA's packages put it, before TVM looks for it.

TVM reaches a GPU by a library that needs `libcudart.so.13`. A CUDA build of torch brings it, in a folder that
the system's loader does not search; so it is loaded here, where there is a driver and the loader finds no
other. Nothing here imports TVM. Checked in tests/tuner/test_cuda_libraries.py.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterable
from pathlib import Path

RUNTIME = "libcudart.so.13"

_DRIVER = "libcuda.so.1"


def load_cuda_runtime(folders: Iterable[str] | None = None) -> Path | None:
    """Load the runtime library of a package where only packages have it; return it, or None.

    Args:
        folders: where packages are installed; Python's own path if None.
    """
    if not _is_loadable(_DRIVER) or _is_loadable(RUNTIME):
        return None
    for folder in sys.path if folders is None else folders:
        for path in sorted(Path(folder or ".").glob(f"nvidia/cu1*/lib/{RUNTIME}")):
            if _is_loadable(str(path)):
                return path
    return None


def _is_loadable(name: str) -> bool:
    """Load a library, for all that is loaded after it, and say whether that went well."""
    try:
        ctypes.CDLL(name, ctypes.RTLD_GLOBAL)
    except OSError:
        return False
    return True
