"""Torch's own runtime runs what the check passes, and never ends, or errs, on what it refuses."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tessel.checking.communication import check_communication
from tessel.errors import ScheduleError
from tests.tessel.checking.test_communication import RIGHT

pytestmark = [pytest.mark.torch, pytest.mark.slow]

RANK = """
import sys, torch, torch.distributed as dist
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import _PipelineScheduleRuntime
rank, folder = int(sys.argv[1]), sys.argv[2]
dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2)
torch.manual_seed(0)
layers = [torch.nn.Linear(4, 4, dtype=torch.float64) for _ in range(2)]
inputs, target = torch.randn(4, 4, dtype=torch.float64), torch.randn(4, 4, dtype=torch.float64)
loss = torch.nn.functional.mse_loss
whole = [layer.weight.detach().clone().requires_grad_() for layer in layers]
wanted = inputs
for weight, layer in zip(whole, layers):
    wanted = wanted @ weight.T + layer.bias
sum(loss(part, goal) for part, goal in zip(wanted.chunk(2), target.chunk(2))).backward()
stage = PipelineStage(layers[rank], rank, 2, torch.device("cpu"))
runtime = _PipelineScheduleRuntime([stage], 2, loss_fn=loss, scale_grads=False)
runtime._load_csv(f"{folder}/orders.csv", format="compute_comms")
runtime.step(inputs) if rank == 0 else runtime.step(target=target)
torch.testing.assert_close(layers[rank].weight.grad, whole[rank].grad)
dist.barrier()
print("equal", flush=True)
"""


def by_torch(folder: Path, text: str, *, timeout_s: float = 600) -> bool:
    """Whether both ranks end, with the gradients of the whole model."""
    folder.mkdir()
    (folder / "orders.csv").write_text(text)
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", RANK, str(rank), str(folder)],
            stdout=subprocess.PIPE,
            stderr=(folder / f"{rank}.txt").open("w"),
            text=True,
        )
        for rank in range(2)
    ]
    try:
        return all("equal" in rank.communicate(timeout=timeout_s)[0] for rank in ranks)
    except subprocess.TimeoutExpired:
        return False
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()


FAULTS = {
    "missing send": RIGHT.replace("0SEND_F1,", ""),
    "missing receive": RIGHT.replace("1RECV_F1,", ""),
    "late send": RIGHT.replace("0SEND_F0,", "").replace("0B1", "0B1,0SEND_F0"),
    "receive of what is never made": RIGHT.replace("1SEND_B1", "").replace("1B1,", "1B1"),
}


def test_torch_trains_by_what_passes(tmp_path: Path) -> None:
    check_communication(RIGHT)
    assert by_torch(tmp_path / "right", RIGHT), (tmp_path / "right" / "0.txt").read_text()


@pytest.mark.parametrize("name", FAULTS)
def test_torch_does_not_train_by_what_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(ScheduleError):
        check_communication(FAULTS[name])
    assert not by_torch(tmp_path / "faulty", FAULTS[name], timeout_s=40)
