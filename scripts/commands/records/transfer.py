"""`tessel records export | import | merge | prune`: move, merge and prune records."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from scripts.commands.records.opening import UrlOption, open_existing
from scripts.options.tuning_options import JsonOption
from scripts.terminal import console
from tessel.jobs.inputs.arguments import check_folder
from tessel.progress import messages
from tuner.tuning.search.options import DEFAULT_RECORDS

if TYPE_CHECKING:
    from records.database.merging import MergeSummary

MAX_CONFLICTS_SHOWN = 20


def export(
    path: Annotated[
        Path, typer.Argument(metavar="FILE", help="JSON Lines file to write; a folder with --metaschedule.")
    ],
    records: UrlOption = DEFAULT_RECORDS,
    metaschedule: Annotated[bool, "Write the records that came from MetaSchedule, for TVM."] = False,
    skip_damaged: Annotated[bool, "Leave out damaged records instead of refusing; exit 1."] = False,
    json: JsonOption = False,
) -> None:
    """Write all records, one per line, in an order that depends on the records alone.

    Example: `tessel records export records.jsonl`.
    """
    from records.files.exchange import ExportSummary, save_records
    from records.files.metaschedule import write_database

    if not metaschedule:
        check_folder("FILE", path)
    with open_existing(records) as store, messages.bar("writing records"):
        if metaschedule:
            summary = ExportSummary(written=write_database(store.iterate(), path))
        else:
            summary = save_records(store, path, skip_damaged=skip_damaged)
    if json:
        console.print_json(summary)
    else:
        console.print_line(f"{summary.written} records written to {path}")
    for problem in summary.damaged:
        messages.note(f"left out: {problem}")
    if summary.damaged:
        raise typer.Exit(1)


def import_(
    path: Annotated[
        Path,
        typer.Argument(
            metavar="FILE", help="JSON Lines file (.gz too), MetaSchedule's work directory, or a folder."
        ),
    ],
    records: UrlOption = DEFAULT_RECORDS,
    neusight: Annotated[bool, "The folder is NeuSight's repository of GPU measurements."] = False,
    aiconfigurator: Annotated[bool, "The folder holds aiconfigurator's tables of GPU kernels."] = False,
    json: JsonOption = False,
) -> None:
    """Add the records of a file; it is validated completely first, and existing records are unchanged.

    Example: `tessel records import records.jsonl`.
    """
    from records import open_store
    from records.database.merging import import_items
    from records.files.aiconfigurator import KernelTable, read_aiconfigurator, read_tables
    from records.files.exchange import read_records
    from records.files.metaschedule import read_database
    from records.files.neusight import read_neusight

    read = (
        read_aiconfigurator
        if aiconfigurator
        else (read_neusight if neusight else read_database if path.is_dir() else read_records)
    )
    # A file with a bad line is refused before the first is kept; tables are checked whole, which is faster.
    checked = read_tables(path) if aiconfigurator else read(path)
    total = sum(
        len(each) if isinstance(each, KernelTable) else 1
        for each in messages.track(checked, "checking records")
    )
    with open_store(records) as store:
        summary = import_items(store, messages.track(read(path), "adding records", total))
    if json:
        from scripts.documents.stored import Imported

        console.print_json(Imported(read=summary.read, new=summary.new, known=summary.known))
    else:
        console.print_line(f"{summary.read} records read: {summary.new} new, {summary.known} known already")


def merge(
    sources: Annotated[
        list[str],
        typer.Argument(metavar="SOURCE…", help="Records to add: URLs, paths, .jsonl or .jsonl.gz files."),
    ],
    records: UrlOption = DEFAULT_RECORDS,
    tolerance: Annotated[float, "Smallest ratio of two latencies that is reported as a conflict."] = 1.5,
    json: JsonOption = False,
) -> None:
    """Add other records to `--records`, and report where they contradict existing ones; both are kept.

    Example: `tessel records merge laptop.db server.db --records sqlite:///all.db`.
    """
    summaries = {source: _merge_one(source, records, tolerance) for source in sources}
    if json:
        from scripts.documents.stored import Merged

        console.print_json(Merged(sources=summaries))
        return
    for source, summary in summaries.items():
        console.print_line(
            f"{source}: {summary.read} records read, {summary.new} new, {len(summary.conflicts)} conflicts"
        )
        for conflict in summary.conflicts[:MAX_CONFLICTS_SHOWN]:
            console.print_line(
                f"  record {conflict.kept_id} and new record {conflict.added_id} ({conflict.backend}): "
                f"{conflict.problem}"
            )
        hidden = len(summary.conflicts) - MAX_CONFLICTS_SHOWN
        if hidden > 0:
            console.print_line(f"  and {hidden} more; --json shows all")


def prune(
    keep: Annotated[int, "Newest records of each key to keep, besides the fastest."] = 3,
    apply: Annotated[bool, "Remove them; left out, only count."] = False,
    records: UrlOption = DEFAULT_RECORDS,
    json: JsonOption = False,
) -> None:
    """Remove all but the fastest and the newest few records of each key.

    A key is workload, target, backend, settings and environment. A plan that names a removed record still
    holds its latency, but `tessel records show` no longer finds it.

    Example: `tessel records prune --keep 3`, and with `--apply` once the count is right.
    """
    from records.database.pruning import prune as prune_records

    with open_existing(records) as store, messages.bar("counting records"):
        summary = prune_records(store, keep_newest=keep, apply=apply)
    if json:
        console.print_json(summary)
        return
    verb = "removed" if summary.applied else "would be removed (--apply does it)"
    console.print_line(f"{summary.removed} records {verb}, {summary.kept} kept")


def _merge_one(source: str, records: str, tolerance: float) -> MergeSummary:
    from records import open_store
    from records.database.merging import is_same_store, merge_items
    from records.files.exchange import check_records, read_records

    with open_store(records) as store:
        if source.endswith((".jsonl", ".jsonl.gz")):
            check_records(source)
            items = messages.track(read_records(source), f"adding {source}")
            return merge_items(store, items, tolerance=tolerance)
        with open_existing(source) as other:
            if is_same_store(store, other):
                raise typer.BadParameter(f"{source} is the same as --records {records}; name another source")
            pairs = ((record.workload, record.measurement) for record in other.iterate())
            items = messages.track(pairs, f"adding {source}", other.stats().measurements)
            return merge_items(store, items, tolerance=tolerance)
