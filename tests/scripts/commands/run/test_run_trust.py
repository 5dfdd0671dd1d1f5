"""`tessel run` runs no code that a plan names and the user does not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

pytest.importorskip("torch")

from planned_models import ENCODER_DECODER
from saved_plans import save_planned

from tessel.loading import load_plan
from tessel.tuned_plan import save_plan
from tuner.errors import TunerError
from tuner.plan import ModelPlan
from tuner.programs.compiled_stages import ProgramSpec, check_spec, load_programs, reference_step
from tuner.programs.torch_programs import TorchProgramSpec, provide_programs

pytestmark = [pytest.mark.tvm, pytest.mark.torch]


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_planned(ENCODER_DECODER, "decoder.0", tmp_path_factory.mktemp("plan") / "plan.json")


TOUCHES = "from pathlib import Path\nPath({marker!r}).touch()\ndef build(): pass\n"


@pytest.mark.parametrize(
    ("stages", "is_named"),
    [
        ("compiled", False),
        *(pytest.param(each, True, marks=pytest.mark.slow) for each in ("compiled", "torch")),
    ],
)
def test_code_that_a_plan_names_is_run_only_where_the_user_names_it_too(
    stages: str, is_named: bool, plan: Path, tessel: Callable[..., object], tmp_path: Path
) -> None:
    path, code, marker = tmp_path / "plan.json", tmp_path / "theirs.py", tmp_path / "marker"
    code.write_text(TOUCHES.format(marker=str(marker)))
    save_plan(msgspec.structs.replace(load_plan(plan), model=f"{code}:build"), path)
    options = ("run", path, "--stages", stages, "--device", "cpu", "--overheads", "none")
    done = tessel(*options)
    assert done.status == 2
    message = " ".join(done.stderr.split())
    assert f"this plan names the Python code '{code}:build'" in message
    assert "--trust-model" in message
    done = tessel(*options, "--model", "other.py:build")
    assert done.status == 2
    assert "was tuned for" in " ".join(done.stderr.split())
    assert tessel("run", path, "--csv", tmp_path / "orders.csv").status == 0
    for command in (("draw", path, "--out", tmp_path / "page.html"), ("compare", path)):
        assert tessel(*command).status == 0
    assert not marker.exists()
    if is_named:
        done = tessel(*options, "--model", f"{code}:build")
        assert done.status in (1, 2)  # the code runs, and returns no model
        assert marker.exists()


def test_a_plan_is_not_trusted_by_those_who_run_it_without_the_command(plan: Path) -> None:
    tuned = ModelPlan(**{name: getattr(load_plan(plan), name) for name in ModelPlan.__struct_fields__})
    spec = ProgramSpec(plan=tuned)
    of_torch = msgspec.json.encode(TorchProgramSpec(plan=tuned)).decode()
    runs = (
        lambda: check_spec(spec),
        lambda: load_programs(spec, [0]),
        lambda: reference_step(spec, 1),
        lambda: provide_programs(of_torch, [0]),
    )
    for run in runs:
        with pytest.raises(TunerError, match="names the Python code 'planned_models:encoder_decoder'"):
            run()
