"""Types of what the commands print with `--json`: the JSON Schemas of docs/schemas/ are made from them.

A document that a package has a type for is printed as it is (a schedule, counts of records); the rest stand
here, in modules that import no more than the command has imported already. Keys may be added in later
versions, so readers of printed documents ignore what they do not know; unknown keys of files are refused.
Checked in tests/scripts/documents/test_schemas.py.
"""
