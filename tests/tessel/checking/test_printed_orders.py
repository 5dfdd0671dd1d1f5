"""Orders as DeepSpeed and Megatron print them, against what the packages make where they are installed."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

import tessel
from tessel.checking.file_kinds import kind_of_file
from tessel.checking.printed_orders import csv_of_printed
from tessel.engine.actions import actions_from_csv
from tessel.errors import ScheduleError, UsageError
from tessel.exports.megatron import MegatronLayout, megatron_orders

FRAMEWORKS = Path(__file__).parents[3] / "out" / "frameworks" / "bin" / "python"

DEEPSPEED = """\
[[LoadMicroBatch(buffer_id=0), ForwardPass(buffer_id=0)], [],\
 [SendActivation(buffer_id=0), ForwardPass(buffer_id=1)], [RecvGrad(buffer_id=0), BackwardPass(buffer_id=0)],\
 [LoadMicroBatch(buffer_id=0), ForwardPass(buffer_id=0)], [BackwardPass(buffer_id=1)], [],\
 [BackwardPass(buffer_id=0), ReduceTiedGrads(), ReduceGrads(), OptimizerStep()]]
[[], [RecvActivation(buffer_id=0), ForwardPass(buffer_id=0)], [BackwardPass(buffer_id=0)],\
 [ForwardPass(buffer_id=1)], [BackwardPass(buffer_id=1)], [ForwardPass(buffer_id=0)],\
 [BackwardPass(buffer_id=0)], []]
"""
TABLE = "[(0, 0), (1, 0), (0, 1), (1, 1), (2, 0), (3, 0), (2, 1), (3, 1)]\n"
CHUNKS = """\
[1, 1, 2, 2, 1, -2, 1, -2, 2, -1, 2, -1, -2, -2, -1, -1]
[1, 1, 2, -2, 2, -2, 1, -1, 1, -1, 2, -2, 2, -2, -1, -1]
"""
"""As `convert_schedule_table_to_order` prints them: of two ranks and two chunks."""


def test_instructions_of_deepspeed_are_orders() -> None:
    assert csv_of_printed(DEEPSPEED) == "0F0,0F1,0B0,0F2,0B1,0B2\n1F0,1B0,1F1,1B1,1F2,1B2\n"


def test_a_table_of_megatron_is_the_orders_of_its_ranks() -> None:
    layout = MegatronLayout(("Et", "t", "t", "tL"), 2)
    expected = megatron_orders(layout, 4, group_size=2)
    assert actions_from_csv(csv_of_printed(TABLE, devices=2)) == expected
    assert actions_from_csv(csv_of_printed(CHUNKS)) == expected
    assert actions_from_csv(csv_of_printed("[(0, 0), (1, 0), (2, 0)]", devices=3)) == megatron_orders(
        MegatronLayout(("Et", "t", "tL"), 3), 3
    )


def test_checks_take_them(tmp_path: Path) -> None:
    path = tmp_path / "printed.txt"
    path.write_text(DEEPSPEED)
    assert kind_of_file(str(path)) == "orders"
    found = tessel.check(path, work=1, progress=False).found
    assert found is not None
    assert len(found.schedule.start_by_block()) == 12
    assert found.schedule.makespan == 12  # 1F1B: (micro-batches + ranks - 1) x 3
    path.write_text(TABLE)
    assert kind_of_file(str(path)) == "table"
    with pytest.raises(UsageError, match="--devices is missing"):
        tessel.check(path, work=1, progress=False)
    assert not tessel.check(path, devices=2, work=1, progress=False).deadlock


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[[BackwardPass(buffer_id=0), ForwardPass(buffer_id=0)]]\n", "before any forward into that buffer"),
        ("[(0, 0), (0, 0)]", "have each of theirs once"),
        ("[(0, 0), (1, 1)]", "have each of theirs once"),
    ],
)
def test_orders_that_cannot_be_are_refused(text: str, problem: str) -> None:
    with pytest.raises(ScheduleError, match=problem):
        csv_of_printed(text, devices=2)


MAKE = """
import json, sys, warnings
warnings.simplefilter("ignore")
from deepspeed.runtime.pipe.schedule import TrainSchedule
print("DEEPSPEED", json.dumps("".join(f"{list(TrainSchedule(5, 3, rank).steps())}\\n" for rank in range(3))))
from megatron.core.pipeline_parallel.schedules import get_schedule_table
from megatron.core.transformer.cuda_graphs import convert_schedule_table_to_order
table = get_schedule_table(6, 2, 3)
print("TABLE", json.dumps(repr(table)))
orders = [convert_schedule_table_to_order((3 - rank - 1) * 2 + 3, 2, table) for rank in range(3)]
print("CHUNKS", json.dumps("".join(f"{order}\\n" for order in orders)))
"""


@pytest.mark.slow
@pytest.mark.skipif(not FRAMEWORKS.exists(), reason="`make frameworks` has installed no frameworks")
def test_what_the_packages_print_is_read() -> None:
    output = subprocess.run(
        [str(FRAMEWORKS), "-c", MAKE], capture_output=True, text=True, check=True, timeout=200
    ).stdout
    printed = {
        line.partition(" ")[0]: json.loads(line.partition(" ")[2])
        for line in output.splitlines()
        if line.startswith(("DEEPSPEED ", "TABLE ", "CHUNKS "))
    }
    chain = MegatronLayout(("Et", "t", "tL"), 3)
    assert actions_from_csv(csv_of_printed(printed["DEEPSPEED"])) == megatron_orders(chain, 5)
    expected = megatron_orders(MegatronLayout(("Et", *["t"] * 4, "tL"), 3), 6, group_size=3)
    assert actions_from_csv(csv_of_printed(printed["TABLE"], devices=3)) == expected
    assert actions_from_csv(csv_of_printed(printed["CHUNKS"])) == expected
