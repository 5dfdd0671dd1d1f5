"""Who computes where, and over what: a function of what is wanted and what is there."""

from __future__ import annotations

import pytest

from tessel.engine import EngineError
from tessel.engine.devices import CPUS, choose_devices


def test_programs_for_cpus_use_no_gpu_that_happens_to_be_there() -> None:
    assert choose_devices("cpu", 4, num_gpus=8, has_nccl=True) == CPUS
    assert (CPUS.kind, CPUS.backend, CPUS.is_tagged, CPUS.ranks_per_gpu) == ("cpu", "gloo", True, 0)


@pytest.mark.parametrize("num_gpus", [4, 8])
def test_ranks_with_gpus_of_their_own_talk_over_nccl_in_order(num_gpus: int) -> None:
    devices = choose_devices("cuda", 4, num_gpus=num_gpus, has_nccl=True)
    assert devices.gpus == (0, 1, 2, 3)
    assert (devices.kind, devices.backend, devices.is_tagged, devices.ranks_per_gpu) == (
        "cuda",
        "nccl",
        False,
        1,
    )


@pytest.mark.parametrize(
    ("num_gpus", "gpus", "shared_by"), [(1, (0, 0, 0, 0, 0), 5), (2, (0, 1, 0, 1, 0), 3)]
)
def test_ranks_that_share_gpus_talk_through_the_host(
    num_gpus: int, gpus: tuple[int, ...], shared_by: int
) -> None:
    devices = choose_devices("cuda", 5, num_gpus=num_gpus, has_nccl=True)
    assert (devices.gpus, devices.backend, devices.is_tagged) == (gpus, "gloo", True)
    assert devices.ranks_per_gpu == shared_by


def test_a_torch_without_nccl_talks_through_the_host() -> None:
    devices = choose_devices("cuda", 2, num_gpus=2, has_nccl=False)
    assert (devices.gpus, devices.backend, devices.is_tagged) == ((0, 1), "gloo", True)


def test_no_gpu_is_refused() -> None:
    with pytest.raises(EngineError, match="no CUDA device: this run is for GPUs"):
        choose_devices("cuda", 2, num_gpus=0, has_nccl=True)
