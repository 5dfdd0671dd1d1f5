"""Modules as text, for the processes that build them.

Checked in tests/tuner/measuring/test_module_json.py.
"""

from __future__ import annotations

from typing import cast

import tvm
from tvm_ffi.serialization import from_json_graph_str

from tuner.graph.relax_types import IRModule

_VERSION = f'"tvm_version":"{tvm.__version__}"'
"""What TVM of this version ends a text with, before brackets."""


def json_of(module: IRModule) -> str:
    """Return a module as TVM writes it down."""
    return str(tvm.ir.save_json(module))


def module_of(text: str) -> IRModule:
    """Return a module that TVM wrote down.

    `tvm.ir.load_json` takes texts of older versions, for which it decodes every text in Python, and encodes
    it again: that takes several times as long as reading one of its own.
    """
    is_own = text.endswith(_VERSION + "}}")
    return cast(IRModule, from_json_graph_str(text) if is_own else tvm.ir.load_json(text))
