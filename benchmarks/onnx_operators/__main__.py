"""Compare the import of ONNX operators with the results that onnx's own tests of operators state.

    python -m benchmarks.onnx_operators                     every operator: about ten minutes
    python -m benchmarks.onnx_operators Resize OneHot       some operators
    python -m benchmarks.onnx_operators --table FILE        and write the table of what is refused

Each case is a graph of one operator (or of what onnx says that it stands for), with inputs and results. It is
imported, lowered by TVM's own default pipeline, which shares nothing with this project's, and run on the CPU;
where that gives other results, it is lowered as users have it, since TVM's maxima know no infinity.
A case is

- *equal*, where every result has the stated type, shape and values;
- *constant*, where it has them once all inputs but the first are constants of the file, as axes and shapes
  are in files that tools write;
- *refused*, where the import says that it cannot be converted, or TVM cannot lower it;
- *wrong* otherwise; then the command ends with status 1.

Left out are operators that draw random numbers, and those of ONNX's training and machine-learning domains.
Each operator runs in a process of its own, so that a crash is a finding as well.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
import tempfile
import warnings
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper
from onnx.backend.test.case.node import collect_testcases

from benchmarks.converter_fuzz.check import run, run_lowered
from tuner.errors import TunerError
from tuner.frontend import load_model
from tuner.frontend.onnx.graph import RANDOM_OPERATORS
from tuner.numerical_error import compare_tensor

TIME_LIMIT_S = 600.0
"""Wall time of an operator: a machine may be busy otherwise."""

TOLERANCES = {"float64": 1e-5, "float32": 1e-4, "float16": 1e-2, "bfloat16": 1e-2}
"""Largest difference over largest magnitude, by type of result, unless a case states more, as some whose
numbers are rounded do. Whole numbers are equal.
"""


@dataclass(frozen=True)
class Finding:
    """What became of one case.

    Attributes:
        operator: ONNX's name of it.
        case: onnx's name of the case.
        outcome: `equal`, `constant`, `refused` or `wrong`.
        reason: why it is not equal.
    """

    operator: str
    case: str
    outcome: str
    reason: str = ""


def cases() -> dict[str, list[Any]]:
    """Return onnx's cases by operator."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Results of some are out of their type's range.
        every = collect_testcases(None)
    found: dict[str, list[Any]] = defaultdict(list)
    for case in every:
        operator = _operator_of(case)
        if operator and operator not in RANDOM_OPERATORS:
            found[operator].append(case)
    return dict(sorted(found.items()))


def check(operator: str, case: Any) -> Finding:
    """Import and run a case as it is, and else with all inputs but the first as constants."""

    def finding(outcome: str, reason: str = "") -> Finding:
        return Finding(operator=operator, case=case.name, outcome=outcome, reason=reason)

    inputs, expected = (list(map(_as_array, values)) for values in case.data_sets[0])
    reason = _refusal(case.model, inputs, expected, rtol=case.rtol)
    if reason is None:
        return finding("equal")
    if reason.startswith(_WRONG):
        return finding("wrong", reason.removeprefix(_WRONG))
    if len(inputs) > 1 and all(isinstance(each, np.ndarray) for each in inputs[1:]):
        again = _refusal(_with_constants(case.model, inputs), inputs[:1], expected, rtol=case.rtol)
        if again is None:
            return finding("constant", reason)
        if again.startswith(_WRONG):
            return finding("wrong", "with constants: " + again.removeprefix(_WRONG))
        reason = again
    return finding("refused", reason)


_WRONG = "wrong: "


def _operator_of(case: Any) -> str:
    """Return the operator that a case is of; empty for those of other domains."""
    operators = {node.op_type for node in case.model.graph.node}
    domains = {node.domain for node in case.model.graph.node}
    if domains - {"", "ai.onnx"}:
        return ""
    if len(operators) == 1:
        return str(operators.pop())
    # What an operator stands for is written out under the name of its case.
    return str(case.name.removeprefix("test_").partition("_")[0]) + " (written out)"


def _as_array(value: Any) -> Any:
    """Return a tensor as an array; sequences and the like as they are."""
    if isinstance(value, onnx.TensorProto):
        return numpy_helper.to_array(value)
    return np.asarray(value) if isinstance(value, np.generic) else value


def _with_constants(model: Any, inputs: Sequence[Any]) -> Any:
    fixed = type(model)()
    fixed.CopyFrom(model)
    names = [value.name for value in fixed.graph.input]
    for name, value in zip(names[1:], inputs[1:], strict=False):
        fixed.graph.initializer.append(numpy_helper.from_array(value, name))
    del fixed.graph.input[1:]
    return fixed


def _refusal(model: Any, inputs: Sequence[Any], expected: Sequence[Any], *, rtol: float) -> str | None:
    """Return why a case is not equal, after `_WRONG` where nothing says so; None where it is equal."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "case.onnx"
        onnx.save(model, str(path))
        try:
            imported = load_model(str(path), guarded=False)
        except (TunerError, ValueError) as error:
            return _short(error)
        except Exception as error:
            return f"{_WRONG}{type(error).__name__}: {_short(error)}"
    by_name = dict(zip((value.name for value in model.graph.input), inputs, strict=False))
    arguments = [by_name[each.name] for each in imported.inputs]
    try:
        reason = _difference(run(imported, arguments), expected, rtol)
        return reason and _difference(run_lowered(imported, arguments), expected, rtol)
    except Exception as error:  # TVM's own faults
        return f"TVM cannot lower it ({_short(error)})"


def _difference(found: Sequence[np.ndarray], expected: Sequence[Any], rtol: float) -> str | None:
    if len(found) != len(expected):
        return f"{_WRONG}gives {len(found)} tensors in place of {len(expected)}"
    for mine, true in zip(found, expected, strict=True):
        limit = max(TOLERANCES[kind], rtol) if (kind := str(true.dtype)) in TOLERANCES else 0.0
        deviation = compare_tensor(
            "result", mine, np.asarray(true), infinity_agrees=True, nan_agrees=True, same_types=True
        )
        if not deviation.is_within(limit):
            return _WRONG + deviation.describe(limit)
    return None


def _short(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[-1][:300]


def _in_own_process(operator: str, of_operator: Sequence[Any]) -> Iterator[Finding]:
    receiver, sender = multiprocessing.Pipe(duplex=False)
    process = multiprocessing.get_context("fork").Process(target=_work, args=(sender, operator, of_operator))
    process.start()
    sender.close()
    done = 0
    try:
        while done < len(of_operator) and receiver.poll(TIME_LIMIT_S):
            yield Finding(**json.loads(receiver.recv_bytes()))
            done += 1
    except EOFError:
        pass
    process.join(5.0)
    process.kill()
    process.join()
    if done < len(of_operator):
        name = of_operator[done].name
        yield Finding(operator, name, "wrong", f"the process ended with status {process.exitcode}")
        yield from _in_own_process(operator, of_operator[done + 1 :])


def _work(sender: Connection, operator: str, of_operator: Sequence[Any]) -> None:
    for case in of_operator:
        sender.send_bytes(json.dumps(asdict(check(operator, case))).encode())


def as_table(findings: Sequence[Finding]) -> str:
    """Return a table of the operators of which some case is not equal, in Markdown."""
    rows = [
        "| operator | equal | with constants | refused | wrong | first reason |",
        "|---|--:|--:|--:|--:|---|",
    ]
    by_operator: dict[str, list[Finding]] = defaultdict(list)
    for finding in findings:
        by_operator[finding.operator].append(finding)
    for operator, found in sorted(by_operator.items()):
        counts = Counter(each.outcome for each in found)
        reasons = [each.reason for each in found if each.outcome in ("wrong", "refused")]
        if reasons:
            first = " ".join(reasons[0].replace("|", "/").split())
            cells = [counts[outcome] for outcome in ("equal", "constant", "refused", "wrong")]
            rows.append(f"| {operator} | {' | '.join(map(str, cells))} | {first} |")
    return "\n".join(rows) + "\n"


def main(arguments: Sequence[str]) -> int:
    """Check operators; returns 1 where a case is wrong."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("operators", nargs="*", help="names as ONNX has them; all by default")
    parser.add_argument("--table", type=Path, help="file that the table of what is refused is written to")
    given = parser.parse_args(arguments)
    known = cases()
    unknown = sorted(set(given.operators) - set(known))
    if unknown:
        print(f"onnx tests no operator {unknown[0]!r}; such as {', '.join(list(known)[:5])}", file=sys.stderr)
        return 2
    findings: list[Finding] = []
    names = given.operators or list(known)
    for number, name in enumerate(names, 1):
        found = list(_in_own_process(name, known[name]))
        counts = Counter(each.outcome for each in found)
        told = ", ".join(f"{count} {outcome}" for outcome, count in sorted(counts.items()))
        print(f"{number}/{len(names)} {name}: {told}", file=sys.stderr, flush=True)
        for each in found:
            if each.outcome == "wrong":
                print(f"WRONG {each.case}: {each.reason}", flush=True)
            elif each.outcome == "refused":
                print(f"refused {each.case}: {each.reason}", flush=True)
        findings += found
    counts = Counter(finding.outcome for finding in findings)
    print(
        f"{len(names)} operators, {len(findings)} cases: "
        + ", ".join(f"{count} {outcome}" for outcome, count in sorted(counts.items()))
    )
    if given.table:
        given.table.write_text(as_table(findings))
    return 1 if counts["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
