"""The data-flow graph of a Relax function, sets over it, and sub-graphs."""

from tuner.graph.dataflow import DataflowGraph, Node
from tuner.graph.kinds import PatternKind
from tuner.graph.node_set import NodeSet
from tuner.graph.subgraph import SubGraph, SubGraphLimits

__all__ = ["DataflowGraph", "Node", "NodeSet", "PatternKind", "SubGraph", "SubGraphLimits"]
