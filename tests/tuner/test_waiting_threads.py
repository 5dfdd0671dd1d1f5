"""Threads that wait for a program's next part leave the processor to the part that runs.

TVM's would wait in a loop for a third of a second after each kernel, torch's of OpenMP for some milliseconds,
those of onnxruntime's sessions for some fifty. What they use is processor time, which does not depend on what
else the machine does.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

import tuner
from records.cores import num_usable_cores

pytestmark = pytest.mark.tvm

_TVM = """
import os
import resource
import time
import tuner
import numpy as np
import tvm
from tvm import relax

builder = relax.BlockBuilder()
x = relax.Var("x", relax.TensorType((64, 4096), "float32"))
with builder.function("main", [x]):
    with builder.dataflow():
        result = builder.emit_output(relax.op.exp(x))
    builder.emit_func_output(result)
from tuner.lowering.lower import build_module
from tuner.targets.resolution import resolve_target

target = resolve_target("cpu", num_threads=2)
machine = relax.VirtualMachine(build_module(builder.get(), target), tvm.cpu())
tensor = tvm.runtime.tensor(np.ones((64, 4096), "float32"))


def switches():
    counts = resource.getrusage(resource.RUSAGE_SELF)
    return counts.ru_nvcsw + counts.ru_nivcsw


used = switched = 0.0
for _ in range(8):
    machine["main"](tensor)
    before, switches_before = time.process_time(), switches()
    time.sleep(0.25)
    used += time.process_time() - before
    switched += switches() - switches_before
print(used, switched, flush=True)
os._exit(0)  # an exit waits for threads that wait in a loop, which others may keep from their processor
"""

_TORCH = """
import time
import tuner
import torch

torch.set_num_threads(2)
tensor = torch.ones(64, 4096)
used = 0.0
for _ in range(100):
    tensor.exp()
    before = time.process_time()
    time.sleep(0.01)
    used += time.process_time() - before
print(used, 0)
"""

_ONNXRUNTIME = """
import time

import numpy as np
import tvm
from tvm import relax

from tests.samples.partition_samples import partition_module
from tuner.backends.onnxruntime.library import OnnxRuntime
from tuner.lowering.lower import build_module, lower_module
from tuner.targets.resolution import resolve_target

target = resolve_target("cpu", num_threads=2)
shapes = [(256, 1024), (1024, 1024)]
module = lower_module(partition_module("onnxruntime", shapes, relax.op.matmul), [OnnxRuntime()], target)
machine = relax.VirtualMachine(build_module(module, target), tvm.cpu())
tensors = [tvm.runtime.tensor(np.ones(shape, "float32")) for shape in shapes]
machine["main"](*tensors)
before = time.process_time()
time.sleep(0.25)
print(time.process_time() - before, 0)
"""

_VARIABLES = ("TVM_THREAD_POOL_SPIN_COUNT", "OMP_WAIT_POLICY", "GOMP_SPINCOUNT")


_MOST_S, _MOST_SWITCHES = 0.02, 60
"""What threads that sleep use of a processor, and how often they and the main thread go to sleep."""


def used_while_waiting(program: str, **variables: str) -> tuple[float, float]:
    """Return seconds of processor time, and how often a thread left its processor; 0 where it is not counted.

    A thread of TVM that waits in a loop gives its processor away in each turn, so that it uses no time where
    others want it, and is switched all the more often.
    """
    environment = {name: text for name, text in os.environ.items() if name not in _VARIABLES}
    environment |= {"TVM_NUM_THREADS": "2", "PYTHONPATH": os.pathsep.join(sys.path)} | variables
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
    )
    used, switched = done.stdout.split()[-2:]
    return float(used), float(switched)


def sleeps(used_s: float, switches: float) -> bool:
    return used_s < _MOST_S and switches < _MOST_SWITCHES


def test_libraries_are_told_to_wait_without_the_processor() -> None:
    assert tuner.__name__ == "tuner"  # which tells them when it is imported
    assert {os.environ["TVM_THREAD_POOL_SPIN_COUNT"], os.environ["OMP_WAIT_POLICY"]} == {"0", "PASSIVE"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("program", "spinning"),
    [
        pytest.param(_TVM, {"TVM_THREAD_POOL_SPIN_COUNT": "3000000"}, id="tvm"),
        pytest.param(
            _TORCH,
            {"OMP_WAIT_POLICY": "ACTIVE"},
            id="torch",
            marks=pytest.mark.skipif(
                num_usable_cores() < 2,
                reason="OpenMP's threads do not wait in a loop where they are more than the processors",
            ),
        ),
    ],
)
def test_threads_wait_without_the_processor(program: str, spinning: dict[str, str]) -> None:
    assert sleeps(*used_while_waiting(program))
    # As the user may still ask for.
    used_s, switches = used_while_waiting(program, **spinning)
    assert used_s > 5 * _MOST_S or switches > 2 * _MOST_SWITCHES


@pytest.mark.slow
@pytest.mark.onnx
def test_threads_of_a_session_wait_without_the_processor() -> None:
    pytest.importorskip("onnxruntime")
    assert sleeps(*used_while_waiting(_ONNXRUNTIME))
