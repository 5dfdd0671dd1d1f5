"""Decisions about our own kernels that trials found better than the kernels' rules.

`families` has the kernels with what may be decided about each, `chosen_tiles` what a backend builds them
with, and `kernel_trials` the records of trials. Who spends trials is `tuner.tuning.own_kernels`.
"""
