"""The options that limit a search, `--work` and `--time-limit`."""

from __future__ import annotations

from typing import Annotated

TIME_HELP = (
    "Time limit of the search, such as 10s. Without --work it is the only limit, and the result then "
    "depends on the machine's speed and load; none if left out."
)

EQUAL_WORK = "; equal budgets give equal results on every machine"

TimeLimitOption = Annotated[str | None, TIME_HELP]

JsonOption = Annotated[bool, "Print one JSON document on stdout."]


def work_help(default: str, *, search: str = "the search", promise: str = EQUAL_WORK) -> str:
    """Return the help of `--work`, which is checked by `tessel.jobs.inputs.limits.make_budget`.

    Args:
        default: the units that are given where the option is left out, as the help says it.
        promise: what is said of equal work.
    """
    units = "in units of about a second of an idle core"
    return f"Work budget of {search}, {units}{promise}.  [default: {default}]"
