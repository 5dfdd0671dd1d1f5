"""Take a model and a target; find the cheapest partition over backends and the costs of pipeline stages."""

import os

from tuner.cuda_libraries import load_cuda_runtime

# Before anything here imports TVM, whose threads would wait in a loop for a third of a second after each
# kernel, and keep those of torch, BLAS and onnxruntime from the processor that run the program's next part.
os.environ.setdefault("TVM_THREAD_POOL_SPIN_COUNT", "0")
load_cuda_runtime()
