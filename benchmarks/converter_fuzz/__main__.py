"""Compare the import of torch's operators with torch, on the samples that torch tests them with itself.

    python -m benchmarks.converter_fuzz                          all operators, all types: about an hour
    python -m benchmarks.converter_fuzz add cumsum --types int64  some operators, some types
    python -m benchmarks.converter_fuzz --gradients --types float32   trained: gradients of its operands
    python -m benchmarks.converter_fuzz --table operators.md       and write the table of what is refused
    python -m benchmarks.converter_fuzz --json FILE.jsonl          go on where an interrupted run stopped
    python -m benchmarks.converter_fuzz --json FILE.jsonl --again  and check once more what was wrong

Every sample of `torch.testing`'s table of operators (odd shapes: without axes, without elements, broadcast,
not dense; arguments by position and by keyword) is exported, imported, lowered by TVM's own default
pipeline, which shares nothing with this project's, and run on the CPU. An operator of a type is

- *equal*, where every result has torch's type, shape and values;
- *mended*, where it has them as this project lowers it, and not by that pipeline;
- *called*, where it has them, and some of it stays a call of torch, for want of a converter;
- *refused*, where the import says that it cannot be converted, or TVM cannot lower it;
- *wrong* otherwise; then the command ends with status 1.

With `--gradients` each floating-point operand is a weight, and its gradient in a stage is compared with
torch's. Samples are left out whose loss or gradient torch itself gives as NaN or infinite, as at the ends of
an arc sine; that have no operand of floating point, or an operand without elements or one that is sparse; and
whose operator autograd does not differentiate.

Left out are operators that draw random numbers, give what memory holds, give no tensor, or change their
operands, and what torch itself cannot run or export. Each operator and type runs in a process of its own,
with a time limit, so that a crash is a finding as well. Samples are drawn with a fixed seed.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, TypeAlias

import torch

from benchmarks.converter_fuzz.check import Finding, check, has_results
from benchmarks.converter_fuzz.gradients import check_gradients_of, has_gradients
from benchmarks.converter_fuzz.operators import NUM_SAMPLES, TYPES, Applied, Several, operators, samples
from benchmarks.converter_fuzz.results import Checked, ResultsFile
from benchmarks.converter_fuzz.tables import as_table, summarize
from tuner.frontend.torch.program import import_module

TIME_LIMIT_S = 600.0
"""Wall time of an operator and type: a machine may be busy otherwise."""

Check: TypeAlias = Callable[[str, str, int, Applied | Several], Finding | None]
"""Compares samples of an operator and type; None where torch has nothing to compare with."""

Comparable: TypeAlias = Callable[[Applied], bool]
"""Says whether torch has something to compare a sample with."""


def fuzz(
    name: str,
    operator: Any,
    dtype: str,
    count: int,
    checked: Check = check,
    comparable: Comparable = has_results,
) -> Iterator[Finding]:
    """Check an operator and type in a process of its own."""
    receiver, sender = multiprocessing.Pipe(duplex=False)
    process = multiprocessing.get_context("fork").Process(
        target=work, args=(sender, name, operator, dtype, count, checked, comparable)
    )
    process.start()
    sender.close()
    yield from _findings(receiver, process, name, dtype)


def work(
    sender: Connection,
    name: str,
    operator: Any,
    dtype: str,
    count: int,
    checked: Check,
    comparable: Comparable,
) -> None:
    """Check an operator and type, and send what is begun before it begins.

    All samples are one program first, compiled once; each is one of its own where that program is not equal
    throughout.
    """
    try:
        drawn = [(number, each) for number, each in samples(operator, dtype, count) if comparable(each)]
    except Exception:  # torch's own
        drawn = []
    if len(drawn) > 1:
        sender.send_bytes(json.dumps({"begun": drawn[0][0]}).encode())
        together = checked(name, dtype, drawn[0][0], Several([each for _, each in drawn]))
        if together is not None and together.outcome == "equal":
            for number, _ in drawn:
                sender.send_bytes(json.dumps(asdict(replace(together, sample=number))).encode())
            drawn = []
    for number, applied in drawn:
        sender.send_bytes(json.dumps({"begun": number}).encode())
        finding = checked(name, dtype, number, applied)
        if finding is not None:
            sender.send_bytes(json.dumps(asdict(finding)).encode())
    sender.send_bytes(b'{"done": true}')


def warm_up() -> None:
    """Import one operator, so that processes find loaded what torch and TVM load for the first."""
    applied = Applied(torch.add, ((torch.ones(2), 1), {}))
    import_module(applied, applied.tensors, "add")


def _findings(receiver: Connection, process: Any, name: str, dtype: str) -> Iterator[Finding]:
    deadline = time.monotonic() + TIME_LIMIT_S
    sample = 0
    reason = "it takes too long"
    while receiver.poll(max(0.0, deadline - time.monotonic())):
        try:
            message = json.loads(receiver.recv_bytes())
        except EOFError:
            process.join()
            reason = f"the process ended with status {process.exitcode}"
            break
        if "done" in message:
            process.join()
            return
        if "begun" in message:
            sample = message["begun"]
        else:
            yield Finding(**message)
    process.kill()
    process.join()
    yield Finding(operator=name, dtype=dtype, sample=sample, outcome="wrong", reason=reason)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("operators", nargs="*", help="names as in torch's table; all by default")
    parser.add_argument("--types", default=",".join(TYPES), help="types of operands, by commas")
    parser.add_argument("--samples", type=int, default=NUM_SAMPLES, help="of each operator and type")
    parser.add_argument("--gradients", action="store_true", help="compare gradients of its operands")
    parser.add_argument("--table", type=Path, help="file that the table of what is refused is written to")
    parser.add_argument(
        "--json",
        type=Path,
        help="file that findings are appended to, a line an operator and type, and not sought again",
    )
    parser.add_argument("--again", action="store_true", help="check again what the file holds as wrong")
    given = parser.parse_args(arguments)
    known = operators()
    unknown = sorted(set(given.operators) - set(known))
    if unknown:
        print(
            f"torch's table has no operator {unknown[0]!r}; such as {', '.join(list(known)[:5])}",
            file=sys.stderr,
        )
        return 2
    names, dtypes = given.operators or list(known), given.types.split(",")
    results = ResultsFile(given.json)
    warm_up()
    for index, name in enumerate(names):
        found: list[Finding] = []
        for dtype in dtypes:
            settled = results.find(name, dtype, count=given.samples, gradients=given.gradients)
            if settled is None or (given.again and settled.is_wrong):
                checks = (check_gradients_of, has_gradients) if given.gradients else (check, has_results)
                fresh = tuple(fuzz(name, known[name], dtype, given.samples, *checks))
                settled = Checked(name, dtype, given.samples, given.gradients, fresh)
                results.append(settled)
            found += settled.findings
        _report(f"{index + 1}/{len(names)} {name}", found)
    findings = results.findings(names, dtypes, count=given.samples, gradients=given.gradients)
    counts = Counter(finding.outcome for finding in findings)
    print(
        f"{len(summarize(findings))} operators, {len(findings)} samples: "
        + ", ".join(f"{n} {what}" for what, n in sorted(counts.items()))
    )
    if given.table:
        given.table.write_text(as_table(findings, given.samples, gradients=given.gradients))
    return 1 if counts.get("wrong") else 0


def _report(title: str, findings: Sequence[Finding]) -> None:
    counts = Counter(finding.outcome for finding in findings)
    told = ", ".join(f"{number} {outcome}" for outcome, number in sorted(counts.items()))
    print(f"{title}: {told or 'left out'}", file=sys.stderr, flush=True)
    for finding in findings:
        if finding.outcome == "wrong":
            print(f"WRONG {finding.operator} {finding.dtype} #{finding.sample}: {finding.reason}", flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
