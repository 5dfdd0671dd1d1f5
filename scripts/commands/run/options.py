"""The options of `tessel run`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from scripts.options.tuning_options import JsonOption, RecordsOption
from tessel.errors import UsageError
from tessel.jobs.running.options import Device, Overheads
from tuner.tuning.search.options import DEFAULT_RECORDS

_PICTURES = (".svg", ".pdf", ".png")


@dataclass(frozen=True, kw_only=True)
class RunCommandOptions:
    """What is run, on what, how often, and what is written about it."""

    stages: Annotated[
        str | None,
        "compiled: the plan's functions, as TVM compiles them (the default for a plan). torch: the "
        "model's own modules; for plans of a module:function. sleep: stages that take as long as their "
        "blocks (the default for a schedule). module:function or file.py:function: your own stages.",
    ] = None
    step: Annotated[str | None, "How long a step of a schedule takes, such as 5ms; 10ms if left out."] = None
    device: Annotated[
        Device | None,
        "Device of the ranks; if left out, the plan's target, or cpu for a schedule. Ranks that "
        "have a GPU each communicate over NCCL, others through the host.",
    ] = None
    repeats: Annotated[int, "Timed steps of each schedule."] = 3
    timeout: Annotated[str, "Time limit for the ranks, such as 5m."] = "5m"
    trace: Annotated[
        Path | None,
        "Write the measured timeline of every rank as a Perfetto trace, such as real.json; none if left out.",
    ] = None
    picture: Annotated[
        Path | None, "Draw the measured timeline of every rank (.svg, .pdf or .png); none if left out."
    ] = None
    csv: Annotated[
        Path | None,
        "Only write the orders as the CSV that torch.distributed.pipelining loads, such as orders.csv.",
    ] = None
    orders: Annotated[
        Path | None,
        "Run the orders of this CSV (orders.csv), as --csv writes them; the document's own if left out.",
    ] = None
    overheads: Annotated[
        Overheads,
        "Overheads that ranks add to their blocks: known, from the records, or measured once if "
        "missing; anew, measured again; none, left out.",
    ] = Overheads.KNOWN
    shape: Annotated[
        list[str] | None, "Which of the shapes that the plan has: input_ids=1,64; the largest if left out."
    ] = None
    model: Annotated[
        str | None,
        "The module:function or file.py:function that the plan was tuned for: running it runs that "
        "code, so name it here too, or give --trust-model. Or the .onnx or .pt2 file, where it was moved "
        "since it was tuned.",
    ] = None
    trust_model: Annotated[bool, "Run whatever code the plan names as its model."] = False
    records: RecordsOption = DEFAULT_RECORDS
    seed: Annotated[int, "Seed of weights and inputs."] = 0
    json: JsonOption = False

    def check(self) -> None:
        """Refuse a picture that cannot be drawn.

        Raises:
            UsageError: one of them is wrong.
        """
        if self.picture is not None and self.picture.suffix not in _PICTURES:
            raise UsageError(f"--picture {self.picture} is none of {', '.join(_PICTURES)}; change the suffix")
