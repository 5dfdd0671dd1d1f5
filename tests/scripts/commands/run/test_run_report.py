"""What `tessel run` says of a machine with fewer cores than ranks, and of small ranks."""

from __future__ import annotations

import pytest

from scripts.commands.run.report import note_of_other_device, print_run
from tessel.engine.results_check import ResultsCheck
from tessel.engine.run import RankMemory, RunFigures, RunReport, StagePrograms
from tessel.handwritten.one_f_one_b import ONE_F_ONE_B
from tessel.jobs.running.programs import Programs
from tessel.jobs.running.subject import Subject
from tessel.shapes import vshape
from tuner.backends.environment import environment_of
from tuner.targets.resolution import resolve_target


def print_report(*, are_sleeping: bool = False, memory: tuple[RankMemory, ...] = ()) -> None:
    subject = Subject("two stages", ONE_F_ONE_B.build(vshape(2), micro_batches=2), 1000.0, None)
    figures = RunFigures(real_ms=2.0, simulated_ms=1.0, with_overheads_ms=None, real_ms_by_step=(2.0,))
    report = RunReport(
        figures={"searched": figures},
        check=ResultsCheck(),
        ranks_per_core=2.0,
        ranks_per_gpu=0,
        events={},
        memory=memory,
    )
    programs = Programs(StagePrograms("own:stages"), None, 1000.0, are_sleeping=are_sleeping)
    print_run(subject, programs, report)


@pytest.mark.parametrize("are_sleeping", [False, True])
def test_shared_cores_are_named_unless_ranks_only_sleep(
    are_sleeping: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    print_report(are_sleeping=are_sleeping)
    assert ("2.0 threads a core here" in capsys.readouterr().out) == (not are_sleeping)


def test_a_plan_of_another_device_is_told_whose_latencies_are_simulated() -> None:
    here = environment_of(resolve_target("cpu")).device_model
    note = note_of_other_device("Another CPU", "cpu")
    assert note is not None
    assert f"tuned on Another CPU, and this machine has {here}" in note
    assert note_of_other_device(here, "cpu") is None


@pytest.mark.parametrize(("predicted_mib", "is_told"), [(2, True), (200, False)])
def test_small_ranks_are_told_what_else_they_hold(
    predicted_mib: int, is_told: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    memory = tuple(
        RankMemory(predicted_bytes=predicted_mib << 20, held_bytes=(predicted_mib + 5) << 20)
        for _ in range(2)
    )
    print_report(memory=memory)
    printed = capsys.readouterr().out
    assert "held/predicted" in printed
    assert ("some MiB of code and of buffers" in printed) == is_told
