"""Fingerprint of a comparison with the user's module: code, weights, examples, and the import.

Checked in tests/tuner/frontend/torch/test_reference.py.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tuner.frontend.model import Model
from tuner.frontend.torch.reference.user_module import UserModule
from tuner.graph.structure import Structure

_CHUNK = 1 << 24
"""Bytes of a tensor that are hashed at a time."""


def fingerprint_of(user: UserModule, model: Model) -> str:
    """Name the module's code and weights, its exported graph, and what was imported."""
    digest = hashlib.sha256(torch.__version__.encode())
    digest.update(Structure(model.module).fingerprint.encode())
    digest.update(str(user.program.graph_module.code).encode())
    for path in _sources(user.module):
        digest.update(path.read_bytes())
    for name, example in sorted(user.examples_by_name.items()):
        digest.update(f"{name} {example.dtype} {example.shape}".encode())
        _hash_array(digest, example)
    hashed: set[int] = set()
    for name, array in [*sorted(model.parameters.items()), *sorted(user.tensors.items())]:
        address = array.__array_interface__["data"][0]
        digest.update(f"{name} {array.dtype} {array.shape}".encode())
        if address not in hashed:  # The import shares the memory of most tensors.
            hashed.add(address)
            _hash_array(digest, array)
    return digest.hexdigest()[:32]


def _sources(module: torch.nn.Module) -> list[Path]:
    """Return the files of the user's own that the module's forwards are written in."""
    torchs = Path(str(torch.__file__)).parent
    codes = (getattr(type(each).forward, "__code__", None) for each in module.modules())
    found = {Path(code.co_filename) for code in codes if code is not None}
    return sorted(path for path in found if torchs not in path.parents and path.is_file())


def _hash_array(digest: Any, array: np.ndarray) -> None:
    content = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    for start in range(0, len(content), _CHUNK):
        digest.update(content[start : start + _CHUNK].tobytes())
