"""The `tessel` application: every command by its name, and the flags of the whole.

A new command is a module, or a folder, of `scripts.commands`, and a line here, with the first line of its
help: its module is imported when it is called or asked for help, so that each takes as long as its own work
needs. It is called by the name of its function.
"""

from __future__ import annotations

import logging

import typer

from scripts.options.command_app import MARKUP, CommandApp
from scripts.options.late_commands import late_group
from scripts.terminal import console
from tessel.progress import messages

_COMMANDS = {
    "tune.command:tune": (
        "Find a fast way to run a model on several devices, and compare it with hand-written schedules."
    ),
    "partition:partition": "Choose, by measured latency, which backend runs which part of a model.",
    "compile:compile": "Compile a model for inference on this machine's CPU into one file.",
    "stages:stages": (
        "Cut a model into stages; show each one's inputs, outputs, relayed tensors, memory and costs."
    ),
    "schedule.command:schedule": (
        "Search for the order of all blocks of all micro-batches under a memory limit."
    ),
    "chunk:chunk": (
        "Find the sizes of a prompt's chunks with which a serving pipeline is through with it first."
    ),
    "plan.command:plan": (
        "Find degrees, cuts, placement and order of a training step from a table of layer timings."
    ),
    "check.command:check": (
        "Say whether a pipeline deadlocks, whether it fits, how far it is from the best, and what to change."
    ),
    "export:export": "Write a plan as the file that another framework loads.",
    "compare:compare": "Compare a schedule with every hand-written one on the same placement and limits.",
    "draw:draw": "Draw a plan or a schedule: device per row, time to the right, memory below.",
    "run.command:run": (
        "Run a plan's schedule and 1F1B in turn, one process per device, and check every loss and gradient."
    ),
    "targets:targets": (
        "List the targets by name: those measured here, and those that programs can only be built for."
    ),
    "backends:backends": "List the backends, with the reason if one cannot run on the target here.",
    "doctor:doctor": "Report what works on this machine and installation, what does not, and how to fix it.",
}

_RECORDS = {
    "records.listing:list_": "List records in the order they were stored.",
    "records.listing:show": (
        "Show everything about one record: what was run, where, with which versions, and every sample."
    ),
    "records.listing:stats": "Count the records by status, target and backend.",
    "records.listing:verify": "Read every record and report corrupted ones; exit status 1 if there are any.",
    "records.page:page": (
        "Write a page of what was measured: when, by whom, how widely it spreads, and the best by workload."
    ),
    "records.best:best": (
        "Show the fastest record of each part of a model on a target, and of the entire model."
    ),
    "records.transfer:export": (
        "Write all records, one per line, in an order that depends on the records alone."
    ),
    "records.transfer:import_": (
        "Add the records of a file; it is validated completely first, and existing records are unchanged."
    ),
    "records.transfer:merge": (
        "Add other records to `--records`, and report where they contradict existing ones; both are kept."
    ),
    "records.transfer:prune": "Remove all but the fastest and the newest few records of each key.",
    "records.collect:collect": (
        "Measure kernels of many networks, shapes and backends; can be interrupted and resumed."
    ),
}

_COST_MODEL = {
    "cost_model.train:train": (
        "Train on every usable record, and save the models of kernels and of stages with their manifests."
    ),
    "cost_model.evaluate:evaluate": (
        "Evaluate the model on held-out shapes, combinations, networks and stages."
    ),
    "cost_model.predict:predict": (
        "Predict the latency of a workload on each backend, or of a stage, next to what was measured."
    ),
}

_LANGUAGE = {
    "language.collect:collect": (
        "Measure schedules of many kernels: random ones, then rounds guided by the draft model."
    ),
    "language.train:train": (
        "Train on what the draft model chooses for random kernels, and on the best trials of the records."
    ),
    "language.generate:generate": (
        "Write schedules of a kernel, and rank them by the draft model of the records' trials."
    ),
    "language.evaluate:evaluate": "Compare the best latency after 1, 2, 4, … trials, by who proposed them.",
}

_FLEET = {
    "fleet.worker:worker": "Measure on this machine for a fleet, one program at a time, until Ctrl-C.",
    "fleet.server:server": "Run programs for tuners that use TVM's RPC tracker, one at a time, until Ctrl-C.",
    "fleet.status:status": (
        "Show the machines of a fleet: their devices, what waits and runs, and how much they have measured."
    ),
}

app = CommandApp(
    name="tessel",
    cls=late_group(_COMMANDS),
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=MARKUP,
    help="Find a fast way to run a model on several devices, and compare it with hand-written 1F1B.\n\n"
    "Example: `tessel tune gpt2:tiny --devices 2`; `tessel COMMAND --help` has more.",
)

app.add_typer(
    CommandApp(
        cls=late_group(_RECORDS),
        no_args_is_help=True,
        help="Show, check and move what was measured.\n\nExample: `tessel records stats`",
    ),
    name="records",
)
app.add_typer(
    CommandApp(
        cls=late_group(_COST_MODEL),
        no_args_is_help=True,
        help="Train, evaluate and query the cost model from records.\n\nExample: `tessel cost-model train`",
    ),
    name="cost-model",
)
app.add_typer(
    CommandApp(
        cls=late_group(_LANGUAGE),
        no_args_is_help=True,
        help="Train the tensor language model, generate kernel schedules with it, and measure them.\n\n"
        "Example: `tessel language train`",
    ),
    name="language",
)
app.add_typer(
    CommandApp(
        cls=late_group(_FLEET),
        no_args_is_help=True,
        help="Measure on several machines: a fleet of Dask workers, each with one device.\n\n"
        "Example: `tessel fleet worker tcp://localhost:8786`",
    ),
    name="fleet",
)


def _show_version(wanted: bool) -> None:
    if wanted:
        console.print_line(f"tessel {versions_text()}")
        raise typer.Exit


def versions_text() -> str:
    """Return our version, and those of Python and TVM, in one line."""
    import importlib.metadata
    import platform

    found = []
    for distribution in ("tessel-tuner", "apache-tvm"):
        try:
            found.append(importlib.metadata.version(distribution))
        except importlib.metadata.PackageNotFoundError:
            found.append("not installed")
    ours, tvm = found
    return f"{ours} (Python {platform.python_version()}, TVM {tvm})"


@app.callback()
def _global_options(
    verbose: bool = typer.Option(False, "--verbose", "-v", help="Show log lines and tracebacks."),
    quiet: bool = typer.Option(False, "--quiet", "-q", help="Show no progress and no notes."),
    version: bool = typer.Option(
        False,
        "--version",
        help="Show the versions of tessel, Python and TVM.",
        callback=_show_version,
        is_eager=True,
    ),
) -> None:
    messages.set_verbosity(quiet=quiet, verbose=verbose)
    if verbose:
        logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
