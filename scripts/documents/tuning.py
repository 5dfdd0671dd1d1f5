"""Documents of `tessel tune`, `partition`, `stages` and `records collect`."""

from __future__ import annotations

from typing import Literal

import msgspec

from tessel.comparison import ComparisonRow
from tessel.placement_comparison import PlacementRow, PlannedRow
from tessel.search.budget import StoppedBy
from tuner.plan import TensorInfo, TensorType, TiedParameter

Source = Literal["measured", "predicted", "derived", "given"]


class OtherShapes(msgspec.Struct, frozen=True, kw_only=True):
    """What the same stages take for other shapes of the model's inputs.

    Attributes:
        shapes: by input.
        makespan_ms: of one step.
        optimal: the makespan is proven optimal.
        max_gradient_error: of the stages' gradients; null where none was compared.
    """

    shapes: dict[str, tuple[int, ...]]
    makespan_ms: float
    optimal: bool
    max_gradient_error: float | None


class Tuned(msgspec.Struct, frozen=True, kw_only=True):
    """What `tessel tune` found.

    Attributes:
        plan: path of the plan.
        new_measurements: made by this run.
        reused_measurements: found in the records.
        comparison: the searched schedule and the hand-written ones, fastest first.
        max_relative_error: of the partitioned model against its own program; null where nothing was run.
        max_gradient_error: of the stages' gradients; null where none was compared.
        import_error: of the import against the model's own program; left out where that was not run.
        notes: a sentence on each thing in which what was tuned is not the user's own model.
        lower_bound_ms: no schedule of these stages is shorter.
        optimal: the makespan is proven optimal.
        gap: how far it may be from the least one, as a share of the bound; null where no bound is known.
        stopped_by: what ended the search.
        recompute: of each stage, whether its forward runs again in its backward.
        placements: those that the model was tuned for, fastest first; empty where for the plain chain alone.
        planned: with `--placement auto`, the layout and its baselines as planned from the layers' figures.
        other_shapes: what the same stages take for each further `--shape` of an input.
    """

    plan: str
    new_measurements: int
    reused_measurements: int
    comparison: tuple[ComparisonRow, ...]
    max_relative_error: float | None
    max_gradient_error: float | None
    import_error: float | msgspec.UnsetType = msgspec.UNSET
    notes: tuple[str, ...]
    lower_bound_ms: float
    optimal: bool
    gap: float | None
    stopped_by: StoppedBy
    recompute: tuple[bool, ...]
    placements: tuple[PlacementRow, ...] = ()
    planned: tuple[PlannedRow, ...] = ()
    other_shapes: tuple[OtherShapes, ...] = ()


class NextBest(msgspec.Struct, frozen=True, kw_only=True):
    """The next best backend of a sub-graph."""

    backend: str
    latency_us: float


class PrintedPart(msgspec.Struct, frozen=True, kw_only=True):
    """One distinct sub-graph and the backend that runs it.

    Attributes:
        operators: names in order.
        backend: the backend chosen.
        latency_us: of one occurrence.
        measured: whether `source` is `measured`.
        source: where the latency comes from.
        occurrences: how many times the model runs it.
        runner_up: the next best backend; null where no other can run it.
        record_ids: the measurements it rests on.
        layers: for each occurrence the layer, or layers joined by ` + `, whose operators it holds; a repeated
            one once, and empty where the model names none.
        inputs: what it reads, in order.
        outputs: what it makes for others, in order.
    """

    operators: tuple[str, ...]
    backend: str
    latency_us: float
    measured: bool
    source: Source
    occurrences: int
    runner_up: NextBest | None
    record_ids: tuple[int, ...]
    layers: tuple[str, ...]
    inputs: tuple[TensorType, ...]
    outputs: tuple[TensorType, ...]


class PrintedAlternative(msgspec.Struct, frozen=True, kw_only=True):
    """Another way to run the same nodes: who asked, who runs them, in how many parts, how long."""

    backend: str
    runners: str
    latency_us: float
    parts: int


class PrintedExplanation(msgspec.Struct, frozen=True, kw_only=True):
    """Why a sub-graph went where it did.

    Attributes:
        operators: names in order.
        backend: who runs it.
        rule: the rule that proposed it.
        latency_us: of one occurrence.
        margin_us: how much slower the first alternative is; null where there is none.
        alternatives: the cheapest first.
        cannot: what the other backends said, by name.
        record_ids: the measurements it rests on.
        layers: as `PrintedPart` has them.
        inputs: the same.
        outputs: the same.
    """

    operators: tuple[str, ...]
    backend: str
    rule: str
    latency_us: float
    margin_us: float | None
    alternatives: tuple[PrintedAlternative, ...]
    cannot: dict[str, str]
    record_ids: tuple[int, ...]
    layers: tuple[str, ...]
    inputs: tuple[TensorType, ...]
    outputs: tuple[TensorType, ...]


class PrintedRatio(msgspec.Struct, frozen=True, kw_only=True):
    """How many times as long a single backend takes as the mix, in turn in one process.

    Attributes:
        ratio: median over the rounds.
        low: lower end of its interval; 0 where rounds are too few.
        high: upper end; null where rounds are too few.
        rounds: that both ran.
    """

    ratio: float
    low: float
    high: float | None
    rounds: int


class PrintedRace(msgspec.Struct, frozen=True, kw_only=True):
    """The mix against each single backend.

    Attributes:
        ratio_to_mix: by the single backends that raced.
        best_single: the fastest of them; null where none raced.
        tie: several programs were left of which none is ahead; the mix is the simplest of them.
        confidence: probability with which all intervals hold together.
    """

    ratio_to_mix: dict[str, PrintedRatio]
    best_single: str | None
    tie: bool
    confidence: float


class CompiledProgram(msgspec.Struct, frozen=True, kw_only=True):
    """What `tessel compile` wrote.

    Attributes:
        file: path of the program.
        bytes: of the file.
        shapes: of each program in it, by name of input, the largest first.
        partitions: of the first, as `tessel partition` prints them.
        max_relative_error: of any, against the model's own program; null where nothing was run.
        latency_us: of one call of the first in this process: `program`, and `eager`, null where torch runs
            nothing.
        libraries: that the program calls beside TVM's.
        features: instruction sets that its code uses, as LLVM calls them.
        versions: of the packages that must be the same where it is loaded.
    """

    file: str
    bytes: int
    shapes: tuple[dict[str, tuple[int, ...]], ...]
    partitions: tuple[PrintedPart, ...]
    max_relative_error: float | None
    latency_us: dict[str, float | None]
    libraries: tuple[str, ...]
    features: tuple[str, ...]
    versions: dict[str, str]


class Partitioned(msgspec.Struct, frozen=True, kw_only=True):
    """What `tessel partition` found.

    Attributes:
        partitions: the distinct sub-graphs.
        explanations: why each went where it did.
        refused: how often candidates were refused, by reason.
        end_to_end_us: latency of the whole model, of `mix` and of each single backend.
        race: how the mix did against each single backend.
        sum_of_parts_us: what the search added up for `mix`.
        launch_penalty_us: what one more partition costs.
        chosen_by: whose answer the mix is; `searched` where it is the search's first.
        max_relative_error: against the model's own program, or else the unpartitioned model; null where
            nothing was run.
        import_error: of the import against the model's own program; left out where that was not run.
        candidates: proposed by all rules.
        candidates_by_rule: proposed by each.
        candidates_invalid: refused or failed.
        candidates_pruned: left out without a measurement.
        states: that the search looked at.
        new_measurements: made by this run.
        reused_measurements: found in the records.
    """

    partitions: tuple[PrintedPart, ...]
    explanations: tuple[PrintedExplanation, ...]
    refused: dict[str, int]
    end_to_end_us: dict[str, float]
    race: PrintedRace
    sum_of_parts_us: float
    launch_penalty_us: float
    chosen_by: str
    max_relative_error: float | None
    import_error: float | msgspec.UnsetType = msgspec.UNSET
    candidates: int
    candidates_by_rule: dict[str, int]
    candidates_invalid: int
    candidates_pruned: int
    states: int
    new_measurements: int
    reused_measurements: int


class PrintedStage(msgspec.Struct, frozen=True, kw_only=True):
    """One pipeline stage: its interface, its latencies (null where it has no such block) and its memory.

    `bound_bytes` are of what it folds and packs of its weights once, at inference, and keeps beside them.
    """

    name: str
    layers: tuple[str, ...]
    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    relayed: tuple[str, ...]
    parameters: tuple[str, ...]
    forward_us: float | None
    backward_us: float | None
    backward_input_us: float | None
    backward_weight_us: float | None
    weight_bytes: int
    bound_bytes: int
    saved_bytes: int
    saved_for_weight_bytes: int
    boundary_bytes: int


class Staged(msgspec.Struct, frozen=True, kw_only=True):
    """What `tessel stages` found.

    Attributes:
        stages: in order.
        tied: groups of parameters that are one and the same.
        max_error: largest relative error of outputs and gradients; null where nothing was run.
        import_error: of the import against the model's own program; left out where that was not run.
    """

    stages: tuple[PrintedStage, ...]
    tied: tuple[tuple[TiedParameter, ...], ...]
    max_error: float | None
    import_error: float | msgspec.UnsetType = msgspec.UNSET


class CollectionDone(msgspec.Struct, frozen=True, kw_only=True):
    """What `tessel records collect` came to.

    Attributes:
        found: distinct kernels of all networks, each with each backend.
        done: those that the records now hold.
        new_measurements: those measured by this run.
        stages: stages measured.
        networks: path of the file that says which workloads are of which network.
    """

    found: int
    done: int
    new_measurements: int
    stages: int
    networks: str
