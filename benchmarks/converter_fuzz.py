"""Compare the import of torch's operators with torch, on the samples that torch tests them with itself.

    python -m benchmarks.converter_fuzz                          all operators, all types: about an hour
    python -m benchmarks.converter_fuzz add cumsum --types int64  some operators, some types
    python -m benchmarks.converter_fuzz --table operators.md       and write the table of what is refused

Every sample of `torch.testing`'s table of operators (odd shapes: without axes, without elements, broadcast,
not dense; arguments by position and by keyword) is exported, imported, lowered by TVM's own default
pipeline, which shares nothing with this project's, and run on the CPU. An operator of a type is

- *equal*, where every result has torch's type, shape and values;
- *called*, where it has them, and some of it stays a call of torch, for want of a converter;
- *refused*, where the import says that it cannot be converted, or TVM cannot lower it;
- *wrong* otherwise; then the command ends with status 1.

Left out are operators that draw random numbers, give no tensor, or change their operands, and what torch
itself cannot run or export. Each operator runs in a process of its own, with a time limit, so that a crash is
a finding as well. Samples are drawn with a fixed seed.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
import time
import types
import unittest
import warnings
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import torch
import tvm
from torch.utils import _pytree as pytree
from tvm import relax

from tuner.backends.torch.operators import provide_torch_calls
from tuner.errors import TunerError
from tuner.frontend.torch.program import import_module
from tuner.graph.torch_call import torch_calls_in
from tuner.numerical_error import compare_tensor

TYPES = ("float32", "float64", "float16", "int64", "int32", "uint8", "bool")

TOLERANCES = {"float32": 1e-4, "float64": 1e-6, "float16": 2e-2}
"""Largest difference over largest magnitude, by type of result; whole numbers are equal."""

NUM_SAMPLES = 8
"""Samples of an operator and type, evenly spread over those that torch has."""

TIME_LIMIT_S = 300.0

_INTRODUCTION = """# Operators

Which of torch's operators are imported, by `python -m benchmarks.converter_fuzz --table FILE`:
operators of `torch.testing`'s table, on up to {samples} of torch's own samples for each type, lowered by
TVM's default pipeline and compared with torch. What is refused is refused by name, with its line of source.
torch {torch}, TVM {tvm}, {date}.

"""


@dataclass(frozen=True)
class Finding:
    """What became of one sample.

    Attributes:
        operator: torch's name of it.
        dtype: type of the samples.
        sample: number of the sample.
        outcome: `equal`, `called`, `refused` or `wrong`.
        reason: why it is not equal, or what is called.
    """

    operator: str
    dtype: str
    sample: int
    outcome: str
    reason: str = ""


class Applied(torch.nn.Module):
    """An operator with the arguments of a sample that are no tensors."""

    def __init__(self, operator: Any, arguments: Any) -> None:
        super().__init__()
        self.operator = operator
        self.leaves, self.structure = pytree.tree_flatten(arguments)

    @property
    def tensors(self) -> tuple[torch.Tensor, ...]:
        """The sample's tensors, in order."""
        return tuple(leaf for leaf in self.leaves if isinstance(leaf, torch.Tensor))

    def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Give the tensors that the operator gives."""
        rest = iter(tensors)
        leaves = [next(rest) if isinstance(leaf, torch.Tensor) else leaf for leaf in self.leaves]
        arguments, keywords = pytree.tree_unflatten(leaves, self.structure)
        found = pytree.tree_leaves(self.operator(*arguments, **keywords))
        return tuple(leaf for leaf in found if isinstance(leaf, torch.Tensor))


def operators() -> dict[str, Any]:
    """Return torch's own table of operators, by name, with variants."""
    # torch's table lies in modules of its tests, which import this for classes that are not needed here.
    stub = types.ModuleType("expecttest")
    stub.TestCase = unittest.TestCase
    stub.ACCEPT = False
    sys.modules.setdefault("expecttest", stub)
    from torch.testing._internal.common_methods_invocations import op_db  # noqa: PLC0415

    return {f"{op.name}.{op.variant_test_name}" if op.variant_test_name else op.name: op for op in op_db}


def samples(operator: Any, dtype: str, count: int) -> Iterator[tuple[int, Applied]]:
    """Give samples that torch itself can run, with their numbers."""
    kind = getattr(torch, dtype)
    if kind not in operator.supported_dtypes("cpu"):
        return
    torch.manual_seed(0)
    np.random.seed(0)
    drawn = list(operator.sample_inputs("cpu", kind, requires_grad=False))
    chosen = sorted({round(i * (len(drawn) - 1) / max(count - 1, 1)) for i in range(min(count, len(drawn)))})
    for number in chosen:
        sample = drawn[number]
        yield number, Applied(operator.op, ((sample.input, *sample.args), dict(sample.kwargs)))


def check(name: str, dtype: str, number: int, applied: Applied) -> Finding | None:
    """Compare one sample; None where torch has no result to compare with."""
    try:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.manual_seed(0)
            expected = applied(*(tensor.clone() for tensor in applied.tensors))
            torch.manual_seed(1)
            again = applied(*(tensor.clone() for tensor in applied.tensors))
    except Exception:  # torch's own samples hold what torch refuses
        return None
    if not expected or any(each.is_complex() or each.is_sparse for each in (*expected, *applied.tensors)):
        return None
    if not all(_same(one, other) for one, other in zip(expected, again, strict=True)):
        return None  # it draws random numbers

    def finding(outcome: str, reason: str = "") -> Finding:
        return Finding(operator=name, dtype=dtype, sample=number, outcome=outcome, reason=reason)

    try:
        model = import_module(applied, applied.tensors, name)
    except TunerError as error:
        return None if "torch.export cannot trace" in str(error) else finding("refused", str(error))
    except Exception as error:
        return finding("wrong", f"{type(error).__name__}: {error}")
    try:
        found = run(model, [tensor.numpy() for tensor in applied.tensors])
    except Exception as error:  # TVM's own faults
        return finding("refused", f"TVM cannot lower it ({str(error).strip().splitlines()[-1]})")
    if len(found) != len(expected):
        return finding("wrong", f"gives {len(found)} tensors in place of {len(expected)}")
    for mine, true in zip(found, expected, strict=True):
        limit = TOLERANCES.get(str(true.dtype).removeprefix("torch."), 0.0)
        deviation = compare_tensor(
            "result", mine, true.detach().numpy(), infinity_agrees=True, nan_agrees=True, same_types=True
        )
        if not deviation.is_within(limit):
            return finding("wrong", deviation.describe(limit))
    called = sorted({call.name for call in torch_calls_in(model.module["main"])})
    return finding("called", ", ".join(called)) if called else finding("equal")


def run(model: Any, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Return what a model gives, by TVM's default pipeline without optimisation."""
    provide_torch_calls(model.module)
    arguments = [*inputs, *(model.parameters[name] for name in model.parameter_names)]
    target = tvm.target.Target({"kind": "llvm", "opt-level": 0})
    machine = relax.VirtualMachine(tvm.compile(model.module, target=target), tvm.cpu())
    result = machine["main"](*[tvm.runtime.tensor(np.array(each)) for each in arguments])
    return [result.numpy()] if hasattr(result, "numpy") else [item.numpy() for item in result]


def fuzz(name: str, operator: Any, dtypes: Sequence[str], count: int) -> Iterator[Finding]:
    """Check an operator in a process of its own."""
    receiver, sender = multiprocessing.Pipe(duplex=False)
    process = multiprocessing.get_context("fork").Process(
        target=_work, args=(sender, name, operator, tuple(dtypes), count)
    )
    process.start()
    sender.close()
    yield from _findings(receiver, process, name)


def _work(sender: Connection, name: str, operator: Any, dtypes: Sequence[str], count: int) -> None:
    """Check an operator, and send what is begun before it begins."""
    for dtype in dtypes:
        try:
            drawn = list(samples(operator, dtype, count))
        except Exception:  # torch's own
            continue
        for number, applied in drawn:
            sender.send_bytes(json.dumps({"begun": [dtype, number]}).encode())
            finding = check(name, dtype, number, applied)
            if finding is not None:
                sender.send_bytes(json.dumps(asdict(finding)).encode())
    sender.send_bytes(b'{"done": true}')


def _findings(receiver: Connection, process: Any, name: str) -> Iterator[Finding]:
    deadline = time.monotonic() + TIME_LIMIT_S
    begun = ["", 0]
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
            begun = message["begun"]
        else:
            yield Finding(**message)
    process.kill()
    process.join()
    yield Finding(operator=name, dtype=begun[0], sample=begun[1], outcome="wrong", reason=reason)


def summarize(findings: Sequence[Finding]) -> dict[str, dict[str, list[Finding]]]:
    """Return the findings by operator and type."""
    table: dict[str, dict[str, list[Finding]]] = defaultdict(lambda: defaultdict(list))
    for finding in findings:
        table[finding.operator][finding.dtype].append(finding)
    return {name: dict(by_type) for name, by_type in sorted(table.items())}


def as_table(findings: Sequence[Finding], count: int) -> str:
    """Return the table that stands in the documentation."""
    table = summarize(findings)
    whole, called, partly, never = [], [], [], []
    for name, by_type in table.items():
        outcomes = {finding.outcome for each in by_type.values() for finding in each}
        if outcomes <= {"equal", "called"}:
            (called if "called" in outcomes else whole).append(name)
        else:
            (partly if outcomes & {"equal", "called"} else never).append(name)
    lines = [
        _INTRODUCTION.format(
            samples=count,
            torch=torch.__version__.split("+")[0],
            tvm=tvm.__version__,
            date=time.strftime("%Y-%m-%d"),
        ),
        f"{len(table)} operators: {len(whole)} equal throughout, {len(called)} equal with calls of torch, "
        f"{len(partly)} refused in part, {len(never)} refused.\n\n",
        "## Equal to torch\n\n" + ", ".join(f"`{name}`" for name in whole) + "\n\n",
        "## Equal to torch, in some use as calls of torch\n\n"
        + ", ".join(f"`{name}`" for name in called)
        + "\n\n",
        "## Refused, by type and reason\n\n| operator | equal | refused | reason |\n|---|---|---|---|\n",
    ]
    for name in [*partly, *never]:
        by_type = table[name]
        equal = [
            dtype for dtype, each in by_type.items() if all(f.outcome in ("equal", "called") for f in each)
        ]
        refused = [f for each in by_type.values() for f in each if f.outcome in ("refused", "wrong")]
        kinds = sorted({finding.dtype for finding in refused}, key=TYPES.index)
        reason = _short(Counter(_short(finding.reason) for finding in refused).most_common(1)[0][0])
        lines.append(f"| `{name}` | {', '.join(equal)} | {', '.join(kinds)} | {reason} |\n")
    return "".join(lines)


def _short(reason: str) -> str:
    """Return why something is refused, without what surrounds it in a message."""
    reason = reason.partition("because ")[2] or reason
    return reason.partition("; write")[0].replace("|", "/").replace("\n", " ")[:120]


def _same(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.shape == other.shape and torch.equal(torch.nan_to_num(one), torch.nan_to_num(other))


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("operators", nargs="*", help="names as in torch's table; all by default")
    parser.add_argument("--types", default=",".join(TYPES), help="types of operands, by commas")
    parser.add_argument("--samples", type=int, default=NUM_SAMPLES, help="of each operator and type")
    parser.add_argument("--table", type=Path, help="file that the table of what is refused is written to")
    parser.add_argument("--json", type=Path, help="file that every finding is written to")
    given = parser.parse_args(arguments)
    known = operators()
    unknown = sorted(set(given.operators) - set(known))
    if unknown:
        print(
            f"torch's table has no operator {unknown[0]!r}; such as {', '.join(list(known)[:5])}",
            file=sys.stderr,
        )
        return 2
    findings: list[Finding] = []
    names = given.operators or list(known)
    for index, name in enumerate(names):
        found = list(fuzz(name, known[name], given.types.split(","), given.samples))
        findings += found
        counts = Counter(finding.outcome for finding in found)
        told = ", ".join(f"{number} {outcome}" for outcome, number in sorted(counts.items()))
        print(f"{index + 1}/{len(names)} {name}: {told or 'left out'}", file=sys.stderr, flush=True)
        for finding in found:
            if finding.outcome == "wrong":
                print(
                    f"WRONG {finding.operator} {finding.dtype} #{finding.sample}: {finding.reason}",
                    flush=True,
                )
    counts = Counter(finding.outcome for finding in findings)
    print(
        f"{len(summarize(findings))} operators, {len(findings)} samples: "
        + ", ".join(f"{n} {what}" for what, n in sorted(counts.items()))
    )
    if given.json:
        given.json.write_text(json.dumps([asdict(finding) for finding in findings], indent=1))
    if given.table:
        given.table.write_text(as_table(findings, given.samples))
    return 1 if counts.get("wrong") else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
