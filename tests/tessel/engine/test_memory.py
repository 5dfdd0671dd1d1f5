"""What a rank's process holds is predicted from its stages' plans, by hand as a person counts it."""

from __future__ import annotations

import platform
import subprocess
import sys

import msgspec
import pytest

from tessel.engine.actions import actions_from_csv
from tessel.engine.memory import predict_held_bytes
from tessel.engine.ranks.held_memory import peak_bytes, reset_peak, resident_bytes
from tuner.plan import StageMemory

PAGE = 4096

STAGE = StageMemory(
    weights={"w": 10 * PAGE},
    inputs={},
    received={"x": PAGE},
    sent={"y": PAGE},
    received_gradients={"y.grad": PAGE},
    sent_gradients={"x.grad": PAGE},
    saved={"x": PAGE, "h": 2 * PAGE},
    saved_for_weight={"x": PAGE, "y.grad": PAGE},
    storages={"forward": (2 * PAGE, 2 * PAGE, PAGE), "backward": (10 * PAGE, PAGE, 2 * PAGE)},
    outputs={"forward": frozenset({"h", "y"}), "backward": frozenset({"w.grad", "x.grad"})},
)


def pages(orders: str, stage: StageMemory = STAGE) -> float:
    (actions,) = actions_from_csv(orders)
    return predict_held_bytes([actions], {0: stage}) / PAGE


def test_a_hand_worked_rank_holds_what_a_person_counts() -> None:
    """Weights 10. In the backward: gradient 10, given y.grad 1 and x 1; and from the pool

    one of 10 (the gradient as it is made), two of 2 (h, and what both functions work in), and of single
    pages y, which is still being sent, and x.grad.
    """
    assert pages("0F0,0B0\n") == 10 + 10 + 2 + (10 + 2 * 2 + 2)


def test_each_micro_batch_in_flight_adds_what_it_keeps_and_sends() -> None:
    one, two, three = (
        pages(",".join([*(f"0F{m}" for m in range(num)), *(f"0B{m}" for m in range(num))]) + "\n")
        for num in (1, 2, 3)
    )
    # x and h of each, its y, which is still being sent, and its y.grad, which may have come before its turn;
    # and x.grad, which is sent likewise.
    assert two - one == three - two == 1 + 2 + 1 + 1 + 1


def test_a_stage_that_recomputes_keeps_less() -> None:
    orders = ",".join([*(f"0F{m}" for m in range(6)), *(f"0B{m}" for m in range(6))]) + "\n"
    again = msgspec.structs.replace(STAGE, recomputes=True)
    assert pages(orders) - pages(orders, again) >= 2 * 4


def test_what_neighbouring_ranks_send_is_held_from_when_its_receive_is_posted() -> None:
    """Eight forwards in turn, of which the first may find the x of all; a ninth is posted after it."""
    forward_only = msgspec.structs.replace(
        STAGE,
        saved={},
        saved_for_weight={},
        sent={},
        storages={"forward": ()},
        outputs={"forward": frozenset()},
    )

    def held(num: int) -> float:
        (actions,) = actions_from_csv(",".join(f"0F{m}" for m in range(num)) + "\n")
        return predict_held_bytes([actions], {0: forward_only}) / PAGE

    assert [held(num) - held(1) for num in (2, 8, 9)] == [1, 7, 7]


def test_the_peak_of_a_process_is_counted_anew() -> None:
    if not reset_peak():
        pytest.skip("this system does not count the largest resident set anew")
    before = resident_bytes()
    large = bytearray(b"1") * (64 << 20)
    assert before is not None
    assert (peak_bytes() or 0) - before > 60 << 20
    del large
    reset_peak()
    assert (peak_bytes() or 0) - before < 30 << 20


@pytest.mark.parametrize("is_kept", [False, True])
def test_freed_tensors_leave_gaps_unless_large_ones_have_pages_of_their_own(is_kept: bool) -> None:
    """In a process of its own, since the size stays fixed: 15 of 16 tensors of 4 MiB are freed."""
    if resident_bytes() is None or platform.libc_ver()[0] != "glibc":
        pytest.skip("this system does not say, or has another C library")
    code = (
        "import numpy as np\n"
        "from tessel.engine.ranks.held_memory import mmap_large_tensors, resident_bytes\n"
        f"assert not {is_kept} or mmap_large_tensors()\n"
        "large = np.ones(2 << 20)\n"
        "del large\n"
        "before = resident_bytes()\n"
        "tensors = [np.ones(1 << 19) for _ in range(16)]\n"
        "del tensors[:-1]\n"
        "print(resident_bytes() - before)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    held = int(done.stdout)
    assert (held < 10 << 20) if is_kept else (held > 50 << 20)
