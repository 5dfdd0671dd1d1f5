"""Take a model and a target; find the cheapest partition over backends and the costs of pipeline stages."""

from tuner.cuda_libraries import load_cuda_runtime

load_cuda_runtime()  # before anything here imports TVM
