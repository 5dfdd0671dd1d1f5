"""Assignments of operators to backends: constraints that a user puts on the partition search.

A constraint names operators by name (`nn.softmax`) or by the path of their layer, with wildcards
(`*.attn.*`), and the backends that may run them. Whatever holds such an operator is refused for every other
backend before anything is priced, so that the search stays exact; where nobody is left, its error names the
operator and the constraint. Checked in tests/tuner/partition/test_assignment.py.

Source: TVM RFC 62 (device constraints, which drop the candidates of other targets).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

from tuner.graph.dataflow import DataflowGraph, Node
from tuner.graph.subgraph import SubGraph
from tuner.partition.candidate import FREE
from tuner.partition.partition_spec import PartitionSpec


@dataclass(frozen=True, slots=True)
class Assignment:
    """The backends that may run some operators.

    Attributes:
        operators: an operator's name, or the path of a layer; `*` and `?` as in names of files.
        backends: names of those that may run them, with wildcards too: `*@llvm` builds for that target.
    """

    operators: str
    backends: tuple[str, ...]

    @classmethod
    def parse(cls, text: str) -> Assignment:
        """Return the assignment that `OPERATORS=BACKEND,…` names.

        Raises:
            ValueError: the text has no such form.
        """
        operators, _, names = text.rpartition("=")
        backends = tuple(name.strip() for name in names.split(",") if name.strip())
        if not operators.strip() or not backends:
            raise ValueError(
                f"{text!r} assigns nothing; write OPERATORS=BACKEND,BACKEND, such as nn.softmax=tvm,torch"
            )
        return cls(operators.strip(), backends)

    def allows(self, backend: str) -> bool:
        """Say whether a backend may run the operators."""
        return any(fnmatchcase(backend, name) for name in self.backends)

    def concerns(self, node: Node) -> bool:
        """Say whether it is about an operator."""
        return fnmatchcase(node.operator, self.operators) or fnmatchcase(node.layer, self.operators)

    def __str__(self) -> str:
        """Return it as it is written."""
        return f"{self.operators}={','.join(self.backends)}"


def constrained(spec: PartitionSpec, assignments: Sequence[Assignment]) -> PartitionSpec:
    """Return a spec that also refuses what assignments give to other backends; the host's is as it was."""
    others = [each for each in assignments if not each.allows(spec.backend)]
    if not others or spec.backend == FREE:
        return spec

    def refusal(graph: DataflowGraph, sub_graph: SubGraph) -> str | None:
        for index in sub_graph.inside:
            for assignment in others:
                if assignment.concerns(graph.nodes[index]):
                    return f"{graph.nodes[index].operator} is assigned by {assignment}"
        return spec.refusal(graph, sub_graph)

    return replace(spec, refusal=refusal)
