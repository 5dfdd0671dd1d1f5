"""A pipeline that serves: a process for each device, micro-batches streaming through, results in order."""
