"""Profiles of other planners (Sailor, Aceso, Metis, PipeDream, NeuSight), as tables for `tessel plan`.

    python -m benchmarks.profile_readers FILE --out profile.csv     # then: tessel plan profile.csv …

`load` is what reports compare planners on. Checked in tests/benchmarks/profile_readers/test_readers.py.
"""
