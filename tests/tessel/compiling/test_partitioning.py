"""The library's call of a partition: its options are the command's own, and so is what it finds."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any, get_type_hints

import pytest

pytest.importorskip("tvm")

import tessel
from scripts.commands.partition import PartitionOptions as CommandOptions
from tessel.compiling.partitioning import PartitionKeywords
from tuner.tuning.search.options import PartitionOptions

pytestmark = pytest.mark.tvm

RENAMED = {"database": "tvm_database"}
OF_THE_OUTPUT = {"picture", "width", "style", "explain", "json"}


def test_keywords_are_the_options_of_the_command() -> None:
    of_library = {each.name: each.default for each in fields(PartitionOptions)}
    assert get_type_hints(PartitionKeywords).keys() == of_library.keys()
    of_command = {RENAMED.get(each.name, each.name): each.default for each in fields(CommandOptions)}
    assert of_command.keys() - OF_THE_OUTPUT == of_library.keys()
    lists = {"assign"}
    assert {name: of_command[name] for name in of_library.keys() - lists} == {
        name: default for name, default in of_library.items() if name not in lists
    }


def test_one_text_stands_for_a_list_of_texts() -> None:
    options = PartitionOptions(backends="tvm, blas", assign="softmax=tvm,torch")
    assert (options.backends, options.assign) == (("tvm", "blas"), ("softmax=tvm,torch",))


@pytest.mark.slow  # as tessel.compile, in test_program.py
def test_a_torch_module_is_partitioned_and_stays_as_it_was(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")

    class Scaled(torch.nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(8, 4)

        def forward(self, data: Any, *, scale: Any = None) -> Any:
            return torch.relu(self.linear(data))

    module, said = Scaled(), []
    found = tessel.partition(
        module,
        (torch.ones(2, 8),),
        backends=["tvm"],
        threads=1,
        records=str(tmp_path / "records.db"),
        on_progress=said.append,
    )
    assert [part.backend for part in found.partition] == ["tvm"]
    assert found.import_error is not None
    assert found.import_error < 1e-5
    assert any("measuring" in text for text in said)
    assert module.training
    assert not module._forward_hooks


@pytest.mark.parametrize(
    ("source", "options", "message"),
    [
        ("mlp:tiny", {"jobs": 0}, "jobs is 0; it is at least 1"),
        ("mlp:tiny", {"example_inputs": 1}, "mlp:tiny has inputs of its own"),
        (3, {}, "model is a int; give a torch module"),
        ("mlp:tiny", {"thread": 1}, "unexpected keyword argument 'thread'"),
    ],
)
def test_what_cannot_be_is_refused_by_name(
    source: Any, options: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        tessel.partition(source, records=str(tmp_path / "records.db"), **options)
