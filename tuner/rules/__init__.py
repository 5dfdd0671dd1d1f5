"""Rules that propose candidate partitions, and combinators that build rules from rules."""

from tuner.rules.combinators import Composite, GivenSubGraphs, OnlyValid, Union
from tuner.rules.combine import ByAnchor, ByKind, Combine, Siblings, TupleArgument
from tuner.rules.pattern import LabelledPattern, PatternRule
from tuner.rules.protocol import Rule
from tuner.rules.single import HostRule, OperatorByKind, OperatorByPredicate
from tuner.rules.styles import (
    FusionStyle,
    horizontal_rule,
    library_rule,
    tvm_native_rule,
    vertical_rule,
)

__all__ = [
    "ByAnchor",
    "ByKind",
    "Combine",
    "Composite",
    "FusionStyle",
    "GivenSubGraphs",
    "HostRule",
    "LabelledPattern",
    "OnlyValid",
    "OperatorByKind",
    "OperatorByPredicate",
    "PatternRule",
    "Rule",
    "Siblings",
    "TupleArgument",
    "Union",
    "horizontal_rule",
    "library_rule",
    "tvm_native_rule",
    "vertical_rule",
]
