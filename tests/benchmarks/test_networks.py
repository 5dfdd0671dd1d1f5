"""A contender that cannot run ends the benchmark with a remedy: a dash in the table would hide it."""

from __future__ import annotations

import argparse
import tomllib
from pathlib import Path

import pytest

pytest.importorskip("torch")

import torch

from benchmarks.networks import contenders

pytestmark = pytest.mark.torch

ROOT = Path(__file__).parents[2]


def arguments(*without: str) -> argparse.Namespace:
    return argparse.Namespace(out="out/networks.json", without=list(without))


def test_a_contender_that_cannot_run_is_an_error_with_a_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: object) -> contenders.Run:
        raise ModuleNotFoundError("No module named 'onnxscript'")

    module, inputs = torch.nn.ReLU(), (torch.zeros(2),)
    monkeypatch.setattr(contenders, "_onnxruntime", missing)
    monkeypatch.setattr(contenders, "_inductor", lambda *_, freezing: contenders.eager(module, inputs))
    with pytest.raises(SystemExit, match=r"onnxruntime alone cannot run here \(No module .*make bench"):
        contenders.other_contenders(module, inputs, "relu", arguments())
    found = contenders.other_contenders(module, inputs, "relu", arguments("onnxruntime alone"))
    assert list(found) == ["torch eager", "torch.compile", "torch.compile frozen"]


def test_the_extra_brings_what_contenders_need_and_the_constraints_pin_it() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert any(each.startswith("onnxscript") for each in extras["bench"])
    assert {"torch", "onnxruntime"} <= set(extras["bench"][0].partition("[")[2].rstrip("]").split(","))
    assert "\nonnxscript==" in (ROOT / "constraints.txt").read_text()
    assert ".[bench]" in (ROOT / "Makefile").read_text()
