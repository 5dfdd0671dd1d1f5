"""Public architectures with random weights: what is imported gives what torch gives."""

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from benchmarks.architectures.__main__ import LIMIT, as_table, is_equal
from benchmarks.architectures.check import Outcome, check
from benchmarks.architectures.models import ARCHITECTURES

pytestmark = [pytest.mark.tvm, pytest.mark.torch]

QUICK = ("gpt2", "qwen3", "bert-mask", "olmoe", "unet", "graph-network")
"""Those that run by default: of each kind of fault that once stood in a way, one."""


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in QUICK else pytest.mark.slow) for name in ARCHITECTURES]
)
def test_an_architecture_is_torchs(name: str) -> None:
    outcome = check(name, ARCHITECTURES[name])
    assert is_equal(outcome), f"{name}: {outcome.reason or outcome.error}"


def test_the_table_tells_errors_and_refusals() -> None:
    outcomes = [
        Outcome(name="one", parameters=1234, operators=56, error=LIMIT / 10),
        Outcome(name="other", parameters=7, reason="operator nonzero.default | is refused"),
    ]
    table = as_table(outcomes)
    assert "1 of 2 are equal" in table
    assert "| one | 1,234 | 56 | 1e-06 |" in table
    assert "| other | 7 |  | operator nonzero.default / is refused |" in table
