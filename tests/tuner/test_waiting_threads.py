"""Threads that wait for a program's next part leave the processor to the part that runs.

TVM's would wait in a loop for a third of a second after each kernel. What they use is processor time, which
does not depend on what else the machine does.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.tvm

_PROGRAM = """
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
machine["main"](tensor)
before = time.process_time()
time.sleep(0.25)
print(time.process_time() - before)
"""


def seconds_used_while_waiting(**variables: str) -> float:
    environment = {name: text for name, text in os.environ.items() if name != "TVM_THREAD_POOL_SPIN_COUNT"}
    environment |= {"TVM_NUM_THREADS": "2"} | variables
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM], env=environment, capture_output=True, text=True, check=True
    )
    return float(done.stdout.split()[-1])


@pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="TVM has one thread for one processor")
def test_threads_of_tvm_wait_without_the_processor() -> None:
    assert seconds_used_while_waiting() < 0.02
    # As TVM does by itself, and as a user may still ask for.
    assert seconds_used_while_waiting(TVM_THREAD_POOL_SPIN_COUNT="3000000") > 0.1
