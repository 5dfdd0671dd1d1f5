"""Labels say stage, micro-batch and kind, or they are none."""

from __future__ import annotations

import pytest

from tessel.placement import BlockKind
from tessel.profiles.traces.labels import Label, parse_label

F, B = BlockKind.FORWARD, BlockKind.BACKWARD
INPUT, W = BlockKind.BACKWARD_INPUT, BlockKind.BACKWARD_WEIGHT


@pytest.mark.parametrize(
    ("name", "label"),
    [
        ("PP:2B5", Label(B, 2, 5)),
        ("12W0", Label(W, 12, 0)),
        ("PP:0I11", Label(INPUT, 0, 11)),
        (":PP:0F3, op_id = 12", Label(F, 0, 3)),
        ("Forward 3", Label(F, None, 3)),
        ("Backward 0", Label(B, None, 0)),
        ("stage 2 forward mb 5", Label(F, 2, 5)),
        ("Stage=1/bwd/microbatch=7", Label(B, 1, 7)),
        ("mb3 backward_input stage1", Label(INPUT, 1, 3)),
        ("stage_0_fwd_micro_batch_12", Label(F, 0, 12)),
        ("block7 backward", Label(B, layer="block7")),
        ("model.layers.3.forward", Label(F, layer="model.layers.3")),
        ("recompute block7", Label(BlockKind.RECOMPUTE, layer="block7")),
        ("head wgrad mb 2", Label(W, None, 2, "head")),
    ],
)
def test_names_of_work_are_understood(name: str, label: Label) -> None:
    assert parse_label(name) == label


@pytest.mark.parametrize(
    "name",
    [
        "PP:0SEND_F3",
        "PP:1RECV_B0",
        "PP:0UNSHARD",
        "PP:0REDUCE_GRAD",
        "gloo:send",
        "nccl:all_reduce",
        "forward_recv mb 2",
        "ProfilerStep#2",
        "Optimizer.step#Adam.step",
        "## forward ##",
        "aten::mm",
        "",
        "9" * 40 + "F1",
        "x" * 100_000,
    ],
)
def test_other_names_are_no_work(name: str) -> None:
    assert parse_label(name) is None
