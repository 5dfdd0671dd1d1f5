"""Backends of this project's own CPU kernels, written in TVM for vector units; the tuner works without
them."""
