"""`tessel records best`: the fastest known way to run each part of a model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from scripts.commands.records.opening import UrlOption, name_operators, open_existing
from scripts.options import tuning_options
from scripts.options.dataclass_options import takes_options
from scripts.options.tuning_options import JsonOption
from scripts.terminal import console
from tessel.jobs.inputs.arguments import check_target
from tessel.jobs.shown.formatting import format_us
from tessel.progress import messages
from tuner.tuning.search.options import DEFAULT_RECORDS, MatchName

if TYPE_CHECKING:
    from records import Record, RecordStore
    from scripts.documents.stored import FastestRecord


@dataclass(frozen=True, kw_only=True)
class BestOptions:
    """Of which target and model, and how much else of a record must match."""

    target: Annotated[str, typer.Option(help="`cpu`, `cuda` or a TVM tag.", callback=check_target)] = "cpu"
    match: Annotated[
        MatchName, "Records of the same versions and threads, of the same threads, or of the same device."
    ] = "exact"
    train: Annotated[
        bool, typer.Option("--train/--infer", help="The forward that computes the loss, or the outputs.")
    ] = False
    batch: tuning_options.BatchOption = 1
    shape: tuning_options.ShapeOption = None
    value: tuning_options.ValueOption = None
    threads: tuning_options.ThreadsOption = None
    records: UrlOption = DEFAULT_RECORDS
    json: JsonOption = False


@takes_options
def best(
    options: BestOptions,
    model: Annotated[
        str | None, typer.Argument(metavar="[MODEL]", help=f"{tuning_options.MODEL_HELP} Left out: all.")
    ] = None,
) -> None:
    """Show the fastest record of each part of a model on a target, and of the entire model.

    Nothing is measured. Target and device are always this machine's own; `--match` says how much else must
    be.

    Example: `tessel records best gpt2:tiny --target cpu`.
    """
    with open_existing(options.records) as store:
        wanted = None if model is None else _workloads(model, options)
        found = _find_best(store, wanted, options)
    missing = 0 if wanted is None else len(wanted) - len(found)
    if options.json:
        from scripts.documents.stored import BestFound

        console.print_json(BestFound(best=tuple(map(_document, found)), not_measured=missing))
        return
    columns = ["operators", "backend", "record", "latency"]
    console.print_table("", columns, [_row(record) for record in found], text_columns=2)
    if missing:
        messages.note(
            f"parts that have no record for this target: {missing}; `tessel partition` measures them"
        )


def _workloads(model: str, options: BestOptions) -> tuple[str, ...]:
    """Return the fingerprints of a model and of its parts, the whole model first."""
    from tuner.backends.registry import available_backends
    from tuner.targets.resolution import resolve_target
    from tuner.tuning.model_workloads import find_model_workloads

    loaded = tuning_options.load_model(
        model, shapes=options.shape, values=options.value, batch=options.batch, training=options.train
    )
    resolved = resolve_target(options.target, num_threads=options.threads)
    parts = find_model_workloads(loaded, resolved, available_backends(resolved))
    return tuple(dict.fromkeys(part.fingerprint for part in (parts.whole, *parts.sub_graphs)))


def _find_best(store: RecordStore, wanted: tuple[str, ...] | None, options: BestOptions) -> list[Record]:
    """Return the fastest record of each workload, in the order wanted, or the slowest first for all."""
    from records import Match
    from tuner.backends.environment import environment_of
    from tuner.backends.registry import available_backends
    from tuner.targets.resolution import resolve_target

    resolved, match = resolve_target(options.target, num_threads=options.threads), Match(options.match)
    backends = available_backends(resolved)
    # Records carry the versions of what their own backend brings along; those of a mix, of all backends.
    groups = [(), *((backend,) for backend in backends), backends] if match is Match.EXACT else [()]
    fastest: dict[str, Record] = {}
    for environment in dict.fromkeys(environment_of(resolved, *group) for group in groups):
        for record in store.best(wanted, target=resolved.text, environment=environment, match=match):
            known = fastest.get(record.workload.fingerprint)
            if known is None or record.measurement.latency_us < known.measurement.latency_us:
                fastest[record.workload.fingerprint] = record
    if wanted is not None:
        return [fastest[fingerprint] for fingerprint in wanted if fingerprint in fastest]
    return sorted(fastest.values(), key=lambda record: (-record.measurement.latency_us, record.record_id))


def _document(record: Record) -> FastestRecord:
    from scripts.documents.stored import FastestRecord

    return FastestRecord(
        operators=tuple(operator.name for operator in record.workload.operators),
        role=record.workload.role,
        workload=record.workload.fingerprint,
        backend=record.measurement.backend,
        settings=record.measurement.settings,
        latency_us=record.measurement.latency_us,
        record=record.record_id,
    )


def _row(record: Record) -> list[str]:
    operators = "the whole model" if record.workload.role == "model" else name_operators(record, limit=4)
    backend = f"{record.measurement.backend} {record.measurement.settings}".strip()
    return [operators, backend, str(record.record_id), format_us(record.measurement.latency_us)]
