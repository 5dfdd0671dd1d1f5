"""Modules are read as they were written, by this version of TVM or by an older one."""

import json

import pytest
import tvm
from tvm.relax import op

from tests.samples.partition_samples import partition_module
from tuner.graph.structure import Structure
from tuner.measuring import module_json
from tuner.measuring.module_json import json_of, module_of

pytestmark = pytest.mark.tvm


def test_a_module_is_read_as_it_was_written(monkeypatch: pytest.MonkeyPatch) -> None:
    module = partition_module("blas", [(4, 4), (4, 4)], lambda x, w: op.matmul(x, w))
    text = json_of(module)
    upgraded: list[str] = []
    load = tvm.ir.load_json
    monkeypatch.setattr(tvm.ir, "load_json", lambda text: upgraded.append(text) or load(text))
    assert Structure(module_of(text)) == Structure(module)
    assert upgraded == []  # a text of this version needs none
    older = json.loads(text)
    older["metadata"]["tvm_version"] = "0.26.0"
    assert Structure(module_of(json.dumps(older))) == Structure(module)
    assert len(upgraded) == 1
    assert module_json._VERSION in text
