"""How well kernels by data type are known on GPUs that were measured, and on those that were not."""
