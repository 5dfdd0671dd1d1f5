"""Kernels for a CPU's vectors that need no tuning: written by hand, and schedules for those that TVM writes.

A kernel is made for one shape, of which its module has a class: what is computed, and how it is cut into
tiles of results that stay in vector registers (`tuner.backends.cpu.kernels.accumulators`). Which operators of
a model a kernel runs is for the backends to say. Checked in tests/tuner/backends/cpu/kernels/ and by the
backends' tests.
"""
