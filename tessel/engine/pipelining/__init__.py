"""Schedules of one's own for `torch.distributed.pipelining`."""
