"""The line of source that an operator comes from."""

from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

from tuner.frontend.torch.source import place_of, source_of  # noqa: E402 - after the skip

pytestmark = pytest.mark.torch

TRACE = f"""
  File "/home/someone/model.py", line 7, in forward
    return self.norm(x)
  File "/usr/lib/python3/site-packages/layers/norm.py", line 31, in forward
    return torch.mean(x, -1)
  File "{torch.__file__}", line 1, in mean
    return _mean(x)
"""


def node(trace: str | None, layer: str = ""):
    stack = {"k": (layer, "Norm")} if layer else None
    meta = {"stack_trace": trace, "nn_module_stack": stack}
    return SimpleNamespace(target=torch.ops.aten.mean.dim, name="mean_3", meta=meta)


def test_the_innermost_line_that_is_not_torchs_is_named() -> None:
    assert source_of(node(TRACE)) == "`return torch.mean(x, -1)` at layers/norm.py:31"
    place = "operator mean.dim (`return torch.mean(x, -1)` at layers/norm.py:31, layer h.0.norm)"
    assert place_of(node(TRACE, "h.0.norm@1")) == place


def test_without_a_trace_the_layer_or_the_node_is_named() -> None:
    assert place_of(node(None, "head")) == "operator mean.dim (layer head)"
    assert place_of(node(None)) == "operator mean.dim (mean_3)"


def test_a_frame_without_code_is_a_place() -> None:
    assert source_of(node('  File "/a/b.py", line 3, in forward')) == "/a/b.py:3"


def test_long_code_is_cut() -> None:
    assert source_of(node(f'  File "/a/b.py", line 3, in f\n    {"x" * 300}\n')).count("x") == 80
