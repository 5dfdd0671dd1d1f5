"""`tessel records page`: a page of what was measured."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from scripts.commands.records.opening import UrlOption, open_existing
from scripts.options.tuning_options import JsonOption
from scripts.terminal import console
from tessel.jobs.inputs.arguments import check_folder
from tessel.progress import messages
from tuner.tuning.search.options import DEFAULT_RECORDS


def page(
    out: Annotated[Path, "What to write, such as out/records.html."],
    records: UrlOption = DEFAULT_RECORDS,
    json: JsonOption = False,
) -> None:
    """Write a page of what was measured: when, by whom, how widely it spreads, and the best by workload.

    The records are only read, and the page needs no network.

    Example: `tessel records page --out out/records.html`.
    """
    if out.suffix != ".html":
        raise typer.BadParameter(f"--out {out} has the suffix {out.suffix or '(none)'}; end it with .html")
    check_folder("--out", out)
    from tessel.documents import save_document
    from tessel.jobs.shown.recorded import recorded_page
    from tessel.picture.page.records_page import records_document

    with open_existing(records) as store, messages.bar("reading every record"):
        shown = recorded_page(store.iterate(), title=f"Records of {store.location}")
    save_document(out, records_document(shown))
    if json:
        from scripts.documents.stored import RecordsPage

        console.print_json(
            RecordsPage(
                out=str(out),
                bytes=out.stat().st_size,
                workloads=len(shown.workloads),
                left_out=shown.left_out,
                measurements=sum(day.measurements for day in shown.days),
            )
        )
    else:
        messages.note(f"{out} written")
