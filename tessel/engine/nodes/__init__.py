"""Ranks on several machines, each started by an agent of `torchrun`."""
