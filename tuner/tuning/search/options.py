"""Options of a search over backends: names and defaults as on the command line, spelled once.

Plain data: `--help` and `import tessel` read it. Checked in tests/tessel/compiling/test_partitioning.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

PriceName = Literal["measured", "active", "model", "rules"]
MatchName = Literal["exact", "compatible", "any"]

DEFAULT_RECORDS = "sqlite:///out/records.db"


@dataclass(frozen=True, kw_only=True)
class SearchOptions:
    """Who may run what, and how that is priced; each field is an option of the command `partition`.

    Attributes:
        target: what is built for and measured on.
        records: SQLAlchemy URL or path of the records.
        backends: those to choose among, with their settings, as in `["tvm", "blas"]` or `"tvm,blas"`; all
            available if None.
        trials: MetaSchedule's, of each kernel; 0 tunes none.
        threads: of each measurement; every core available if None.
        jobs: programs built at once.
        price: where latencies come from.
        budget: most candidates that `active` measures.
        regret: optimality gap that `active` accepts.
        cost_model: folder of a trained cost model; trained from the records if None.
        assign: which backends may run some operators, such as `nn.softmax=tvm,torch`.
        prune: whether only the largest sub-graphs of each backend and the remainders are priced.
        match: which records of other environments are used again.
        tvm_database: folder of a MetaSchedule database in TVM's format.
        fleet: address of a fleet's scheduler, whose machines measure.
        proposer: who proposes MetaSchedule's trials.
        language_model: folder of the language model that proposes.
    """

    target: str = "cpu"
    records: str = DEFAULT_RECORDS
    backends: Sequence[str] | None = None
    trials: int = 0
    threads: int | None = None
    jobs: int = 1
    seed: int = 0
    price: PriceName = "measured"
    budget: int | None = None
    regret: float = 0.02
    cost_model: Path | None = None
    assign: Sequence[str] = ()
    prune: bool = False
    match: MatchName = "exact"
    tvm_database: Path | None = None
    fleet: str | None = None
    proposer: str | None = None
    language_model: Path | None = None

    def __post_init__(self) -> None:
        """Take one text for a list of texts, as on the command line."""
        if isinstance(self.backends, str):
            names = tuple(name.strip() for name in self.backends.split(","))
            object.__setattr__(self, "backends", names)
        if isinstance(self.assign, str):
            object.__setattr__(self, "assign", (self.assign,))


@dataclass(frozen=True, kw_only=True)
class PartitionOptions(SearchOptions):
    """Options of a partition of a whole model.

    Attributes:
        train: whether the function is the forward that computes the loss, not the outputs.
        batch: examples at once, for models of the zoo alone.
        shape: static shapes by name of input.
        value: of inputs of an ONNX file that become constants, by name.
        graph_level_search: whole programs that an evolutionary search may measure after the first answer.
        coalesce: whether larger sub-graphs and fewer backends are tried too.
    """

    train: bool = False
    batch: int = 1
    shape: Mapping[str, tuple[int, ...]] | None = None
    value: Mapping[str, bool | int | float] | None = None
    graph_level_search: int = 0
    coalesce: bool = False
