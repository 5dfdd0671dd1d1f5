"""TVM's MetaSchedule as a backend: tuned kernels, their trials as records, and a cost model for its
search."""
