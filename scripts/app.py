"""The `tessel` application: every command by its name, and the flags of the whole.

A new command is a module, or a folder, of `scripts.commands`, and a line here. The modules of the commands
import nothing heavy before their function runs, so that `--help` answers at once.
"""

from __future__ import annotations

import logging

import typer

from scripts.commands import backends, compare, compile, doctor, draw, export, partition, stages, targets
from scripts.commands.check import command as check
from scripts.commands.cost_model import evaluate as cost_model_evaluate
from scripts.commands.cost_model import predict as cost_model_predict
from scripts.commands.cost_model import train as cost_model_train
from scripts.commands.fleet import server as fleet_server
from scripts.commands.fleet import status as fleet_status
from scripts.commands.fleet import worker as fleet_worker
from scripts.commands.language import collect as language_collect
from scripts.commands.language import evaluate as language_evaluate
from scripts.commands.language import generate as language_generate
from scripts.commands.language import train as language_train
from scripts.commands.plan import command as plan
from scripts.commands.records import best, collect, listing, transfer
from scripts.commands.run import command as run
from scripts.commands.schedule import command as schedule
from scripts.commands.tune import command as tune
from scripts.options.command_app import CommandApp
from scripts.terminal import console
from tessel.progress import messages

app = CommandApp(
    name="tessel",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    help="Find a fast way to run a model on several devices, and compare it with hand-written 1F1B.\n\n"
    "Example: `tessel tune gpt2:tiny --devices 2`; `tessel COMMAND --help` has more.",
)
app.command("tune")(tune.tune)
app.command("partition")(partition.partition)
app.command("compile")(compile.compile)
app.command("stages")(stages.stages)
app.command("schedule")(schedule.schedule)
app.command("plan")(plan.plan)
app.command("check")(check.check)
app.command("export")(export.export)
app.command("compare")(compare.compare)
app.command("draw")(draw.draw)
app.command("run")(run.run)

_records = CommandApp(
    no_args_is_help=True,
    help="Show, check and move what was measured.\n\nExample: `tessel records stats`",
)
_records.command("list")(listing.list_records)
_records.command("show")(listing.show)
_records.command("stats")(listing.stats)
_records.command("verify")(listing.verify)
_records.command("best")(best.best)
_records.command("export")(transfer.export)
_records.command("import")(transfer.import_)
_records.command("merge")(transfer.merge)
_records.command("prune")(transfer.prune)
_records.command("collect")(collect.collect)
app.add_typer(_records, name="records")

_cost_model = CommandApp(
    no_args_is_help=True,
    help="Train, evaluate and query the cost model from records.\n\nExample: `tessel cost-model train`",
)
_cost_model.command("train")(cost_model_train.train)
_cost_model.command("evaluate")(cost_model_evaluate.evaluate)
_cost_model.command("predict")(cost_model_predict.predict)
app.add_typer(_cost_model, name="cost-model")

_language = CommandApp(
    no_args_is_help=True,
    help="Train the tensor language model, generate kernel schedules with it, and measure them.\n\n"
    "Example: `tessel language train`",
)
_language.command("collect")(language_collect.collect)
_language.command("train")(language_train.train)
_language.command("generate")(language_generate.generate)
_language.command("evaluate")(language_evaluate.evaluate)
app.add_typer(_language, name="language")

_fleet = CommandApp(
    no_args_is_help=True,
    help="Measure on several machines: a fleet of Dask workers, each with one device.\n\n"
    "Example: `tessel fleet worker tcp://localhost:8786`",
)
_fleet.command("worker")(fleet_worker.worker)
_fleet.command("server")(fleet_server.server)
_fleet.command("status")(fleet_status.status)
app.add_typer(_fleet, name="fleet")

app.command("targets")(targets.targets)
app.command("backends")(backends.backends)
app.command("doctor")(doctor.doctor)


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
