"""`tessel partition`: which backend runs which sub-graph, against each single backend."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from scripts.options import tuning_options
from scripts.options.dataclass_options import common_options, takes_options
from scripts.options.tuning_options import (
    BatchOption,
    CoalesceOption,
    GraphLevelSearchOption,
    JsonOption,
    ModelArgument,
    RemoteTargetOption,
    ShapeOption,
    TuningOptions,
    ValueOption,
)
from scripts.reports.picture_options import StyleOption, WidthOption
from scripts.reports.tables import print_end_to_end, print_partitions, printed_parts
from scripts.terminal import console
from tessel.jobs.inputs.arguments import check_folder, check_model
from tessel.jobs.sessions import shown_report
from tessel.jobs.shown.formatting import (
    format_figure,
    format_layers,
    format_operators,
    format_tensors,
    format_us,
)
from tessel.jobs.shown.pictures import PICTURES, load_look, parse_width
from tessel.progress import messages
from tuner.tuning.search.options import PartitionOptions as Defaults

if TYPE_CHECKING:
    from scripts.documents.tuning import Partitioned, PrintedExplanation, PrintedRace
    from tessel.picture.partition_graph import GraphNode
    from tuner.partition.explanation import Explanation
    from tuner.tuning.partition_model import PartitionedModel


@dataclass(frozen=True, kw_only=True)
class PartitionOptions(TuningOptions):
    """How a model is priced, how far its partition is searched, and what is shown."""

    target: RemoteTargetOption = Defaults.target
    train: Annotated[
        bool, typer.Option("--train/--infer", help="The forward that computes the loss, or the outputs.")
    ] = False
    batch: BatchOption = Defaults.batch
    shape: ShapeOption = None
    value: ValueOption = None
    graph_level_search: GraphLevelSearchOption = Defaults.graph_level_search
    coalesce: CoalesceOption = Defaults.coalesce
    picture: Annotated[
        Path | None, "Draw the graph coloured by backend (.svg, .png, .pdf); none if left out."
    ] = None
    width: WidthOption = None
    style: StyleOption = None
    explain: Annotated[
        bool, "For each sub-graph, show the other backends that could run it, and how fast."
    ] = False
    json: JsonOption = False


@common_options("train shape target backends trials threads coalesce explain picture records json")
@takes_options
def partition(model: ModelArgument, options: PartitionOptions) -> None:
    """Choose, by measured latency, which backend runs which part of a model.

    For a GPU that is not here, `--price model` predicts instead, from kernels measured on others.

    Examples:

    `tessel partition bert:tiny`

    `tessel partition net.onnx --backends tvm,blas --explain`

    `tessel partition gpt2:tiny --target "rpc://localhost:9190/board?target=cpu"`

    `tessel partition gpt2 --target nvidia/nvidia-a100 --price model --records sqlite:///gpus.db`
    """
    check_folder("--picture", options.picture, suffixes=PICTURES)
    width = None if options.width is None else parse_width(options.width)
    look = load_look(options.style)
    check_model(model)

    from tessel.compiling.partitioning import find_mix, load_source

    settings = tuning_options.job_options(Defaults, options)
    with messages.bar(f"loading {model}") as update:
        report = shown_report(update)
        result = find_mix(load_source(model, None, settings, report), settings, report)
    if options.picture is not None:
        from tessel.picture.captions import save_figure
        from tessel.picture.partition_graph import partition_figure

        figure = partition_figure(
            _nodes(result),
            title=result.model,
            annotation_args=look.annotation_args,
            rectangle_args=look.rectangle_args,
            line_args=look.line_args,
            width=width,
        )
        save_figure(figure, options.picture)
        messages.note(f"{options.picture} written")
    if options.json:
        console.print_json(_document(result))
        if options.explain:
            _note_reasons(result)
        return
    _print(result, explain=options.explain)


def _nodes(result: PartitionedModel) -> list[GraphNode]:
    """Return the model's operators with the parts they belong to, as the picture wants them."""
    from tessel.picture.partition_graph import GraphNode

    graph = result.function.priced.graph
    chosen = result.function.partition.chosen
    owner = {index: number for number, part in enumerate(chosen) for index in part.sub_graph.inside}
    return [
        GraphNode(
            operator=node.operator,
            inputs=node.inputs,
            part=owner[node.index],
            backend=chosen[owner[node.index]].backend,
            layer=node.layer,
            shape=graph.result_shape(node.index),
        )
        for node in graph.nodes
    ]


def _document(result: PartitionedModel) -> Partitioned:
    from msgspec import UNSET

    from scripts.documents.tuning import Partitioned

    return Partitioned(
        partitions=printed_parts(result.partition),
        explanations=tuple(_explanation_document(each) for each in result.explanations),
        refused=result.num_refused_by_reason,
        end_to_end_us={name: figure.latency_us for name, figure in result.end_to_end.items()},
        race=_race_document(result),
        sum_of_parts_us=result.sum_of_parts.latency_us,
        launch_penalty_us=result.launch_penalty_us,
        chosen_by=result.chosen_by,
        max_relative_error=result.max_relative_error,
        import_error=UNSET if result.import_error is None else result.import_error,
        candidates=sum(result.num_candidates_by_rule.values()),
        candidates_by_rule=result.num_candidates_by_rule,
        candidates_invalid=result.num_invalid,
        candidates_pruned=result.function.priced.num_pruned,
        states=result.num_states,
        new_measurements=result.new_measurements,
        reused_measurements=result.reused_measurements,
    )


def _race_document(result: PartitionedModel) -> PrintedRace:
    """Return each single backend's latency over the mix's, with its interval, and the fastest one's."""
    from scripts.documents.tuning import PrintedRace, PrintedRatio

    ratios = {
        name: PrintedRatio(ratio=each.ratio, low=each.low, high=each.high, rounds=each.num_rounds)
        for name, each in result.ratio_to_mix.items()
    }
    best = min(ratios, key=lambda name: ratios[name].ratio, default=None)
    return PrintedRace(ratio_to_mix=ratios, best_single=best, tie=result.is_tie, confidence=0.95)


def _print(result: PartitionedModel, *, explain: bool) -> None:
    console.print_line(
        f"{result.new_measurements} new measurements, {result.reused_measurements} found in the records\n"
    )
    print_partitions(f"Partition of {result.model}", result.partition)
    print_end_to_end("Whole model", result)
    if result.chosen_by != "searched":
        console.print_line(
            f"the mix is not the searched partition but {result.chosen_by}, which is faster end to end"
        )
    by_rule = ", ".join(f"{rule} {number}" for rule, number in sorted(result.num_candidates_by_rule.items()))
    pruned = result.function.priced.num_pruned
    console.print_line(
        f"candidates: {by_rule}; {result.num_invalid} refused or failed; {pruned} pruned; "
        f"{result.num_states} search states"
    )
    if explain:
        _explain(result)


def _explain(result: PartitionedModel) -> None:
    rows = [
        [
            format_operators(each.operators),
            "" if each.part is None else format_layers(each.part.layers),
            "" if each.part is None else format_tensors(each.part),
            each.backend,
            format_figure(each.figure),
            each.alternatives[0].runners if each.alternatives else "no other backend",
            format_us(each.alternatives[0].latency_us) if each.alternatives else "-",
            _others(each),
            each.rule,
        ]
        for each in result.explanations
    ]
    columns = [
        "operators",
        "layer",
        "tensors",
        "backend",
        "latency",
        "alternative",
        "its latency",
        "others",
        "rule",
    ]
    console.print_line()
    console.print_table(
        "Why each sub-graph runs where it does",
        columns,
        rows,
        text_columns=4,
        folded=("alternative", "others", "rule"),
    )
    for sentence, number in sorted(result.num_refused_by_reason.items()):
        console.print_line(f"refused {number} times: {sentence}")


def _note_reasons(result: PartitionedModel) -> None:
    """Say on stderr, beside a document that holds them all, why the sub-graphs went where they did."""
    for each in result.explanations:
        others = "; ".join(f"{other.runners} {format_us(other.latency_us)}" for other in each.alternatives)
        chosen = f"{each.backend} {format_figure(each.figure)}"
        where = (
            "" if each.part is None else f" ({format_layers(each.part.layers)}, {format_tensors(each.part)})"
        )
        messages.note(f"{', '.join(each.operators)}{where}: {chosen}; {others or 'no other backend'}")


def _others(explanation: Explanation) -> str:
    """Say how long the backends after the best alternative take, and why the others cannot run it."""
    slower = [f"{each.runners} {format_us(each.latency_us)}" for each in explanation.alternatives[1:]]
    return "; ".join([*slower, *(f"{backend} cannot: {why}" for backend, why in explanation.reasons)]) or "-"


def _explanation_document(explanation: Explanation) -> PrintedExplanation:
    from scripts.documents.tuning import PrintedAlternative, PrintedExplanation

    part = explanation.part
    return PrintedExplanation(
        operators=explanation.operators,
        backend=explanation.backend,
        rule=explanation.rule,
        latency_us=explanation.figure.latency_us,
        margin_us=explanation.margin_us,
        alternatives=tuple(
            PrintedAlternative(
                backend=each.backend,
                runners=each.runners,
                latency_us=each.latency_us,
                parts=len(each.parts),
            )
            for each in explanation.alternatives
        ),
        cannot=dict(explanation.reasons),
        record_ids=explanation.figure.record_ids,
        layers=() if part is None else part.layers,
        inputs=() if part is None else part.inputs,
        outputs=() if part is None else part.outputs,
    )
