"""Measure on several machines: a fleet of Dask workers, each of which has one device and measures one program
at a time."""
