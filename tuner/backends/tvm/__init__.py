"""TVM itself as a backend: untuned schedules of its own kernels, and its code generators for libraries."""
