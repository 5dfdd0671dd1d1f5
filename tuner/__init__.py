"""Take a model and a target; find the cheapest partition over backends and the costs of pipeline stages."""

import os

from tuner.cuda_libraries import load_cuda_runtime

# Before anything here imports TVM or torch, whose threads would wait in a loop after each kernel, TVM's for a
# third of a second and OpenMP's for some milliseconds, and keep from the processor those of the library that
# runs the program's next part.
os.environ.setdefault("TVM_THREAD_POOL_SPIN_COUNT", "0")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
load_cuda_runtime()
