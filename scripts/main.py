"""The `tessel` command: one module per sub-command, and one place that turns errors into exit statuses.

Exit status: 0 done, 1 could not be done, 2 wrong usage or an unreadable file, 130 interrupted. The modules of
the sub-commands import nothing heavy before their function runs, so that `--help` answers at once.
"""

from __future__ import annotations

import atexit
import gc
import logging
import os
import re
import sys
import traceback
from collections.abc import Sequence

import typer
from typer.exceptions import TyperException

from scripts import (
    backends_command,
    collect_command,
    compare_command,
    completion_words,
    console,
    cost_model_command,
    doctor_command,
    draw_command,
    installation,
    interrupts,
    language_command,
    output_streams,
    partition_command,
    records_command,
    run_command,
    schedule_command,
    searching,
    stages_command,
    targets_command,
    tune_command,
    uncompiled,
)
from scripts.command_app import CommandApp

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = interrupts.EXIT_INTERRUPTED

_FLAGS_ANYWHERE = {"-v": "--verbose", "--verbose": "--verbose", "-q": "--quiet", "--quiet": "--quiet"}
"""Flags of the whole command, which may stand after the sub-command too."""

app = CommandApp(
    name="tessel",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    help="Find a fast way to run a model on several devices, and compare it with hand-written 1F1B.\n\n"
    "Example: `tessel tune gpt2:tiny --devices 2`; `tessel COMMAND --help` has more.",
)
app.command("tune")(tune_command.tune)
app.command("partition")(partition_command.partition)
app.command("stages")(stages_command.stages)
app.command("schedule")(schedule_command.schedule)
app.command("compare")(compare_command.compare)
app.command("draw")(draw_command.draw)
app.command("run")(run_command.run)
records_command.app.command("collect")(collect_command.collect)
app.add_typer(records_command.app, name="records")
app.add_typer(cost_model_command.app, name="cost-model")
app.add_typer(language_command.app, name="language")
app.command("targets")(targets_command.targets)
app.command("backends")(backends_command.backends)
app.command("doctor")(doctor_command.doctor)


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
        help="Show the version, and those it runs with.",
        callback=_show_version,
        is_eager=True,
    ),
) -> None:
    console.set_verbosity(quiet=quiet, verbose=verbose)
    if verbose:
        logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")


def run() -> None:
    """Run the command with the process's arguments and exit with its status."""
    output_streams.take_over()
    if completion_words.is_asked():
        completion_words.answer(lambda: main(sys.argv[1:]))
        sys.exit(0)
    uncompiled.own_process()
    # Schedules of 64 devices and 512 micro-batches are a million live objects; looking through them for
    # garbage as often as Python does took a third of the time to compare and draw them.
    gc.set_threshold(100_000, 50, 50)
    try:
        status = main(sys.argv[1:])
        interrupts.leave_quietly(status)
        if status == EXIT_INTERRUPTED or searching.is_any_abandoned():
            _exit_at_once(status)
        sys.exit(status)
    finally:
        if "--install-completion" in sys.argv:
            completion_words.mend_installed_for_zsh()


def _exit_at_once(status: int) -> None:
    """End the process without waiting for threads.

    Compiled code may still run in one, under which Python cannot end safely. And a KeyboardInterrupt that
    passed through `eval` makes Python end by the signal, though it was caught.
    """
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def main(arguments: Sequence[str]) -> int:
    """Run one command.

    Args:
        arguments: what stands after `tessel` on the command line.

    Returns:
        The exit status; nothing is raised for bad input, failures or Ctrl-C.
    """
    if not console.wants_color():
        _leave_styles_out_of_help()
    interrupts.raise_in_work()
    try:
        status = typer.main.get_command(app).main(
            _flags_first(arguments), prog_name="tessel", standalone_mode=False
        )
        sys.stdout.flush()
        if status == EXIT_INTERRUPTED:
            return _fail(interrupts.MESSAGE, EXIT_INTERRUPTED)
        return status if isinstance(status, int) else 0
    except TyperException as error:
        return _fail(_with_value(error.format_message(), arguments), EXIT_USAGE)
    except (KeyboardInterrupt, typer.Abort):
        return _fail(interrupts.MESSAGE, EXIT_INTERRUPTED)
    except ModuleNotFoundError as error:
        missing = _DISTRIBUTION_BY_MODULE.get((error.name or "").partition(".")[0])
        if missing is None:
            raise
        fix = installation.install(missing)
        return _fail(f"{missing} is not installed, and this command needs it; {fix}", EXIT_FAILED)
    except Exception as error:
        status = _status_of(error)
        if status is None:
            raise
        return _fail(str(error), status)


_DISTRIBUTION_BY_MODULE = {
    "tvm": "apache-tvm",
    "tvm_ffi": "apache-tvm-ffi",
    "xgboost": "xgboost-cpu",
    "scipy": "scipy",
    "psutil": "psutil",
    "cloudpickle": "cloudpickle",
    "threadpoolctl": "threadpoolctl",
}
"""What packagers may leave out for schedules, pictures and records alone (docs/installation.md)."""


def _leave_styles_out_of_help() -> None:
    from typer import rich_utils

    rich_utils.COLOR_SYSTEM = None  # under NO_COLOR it would still write bold and dim


def _with_value(message: str, arguments: Sequence[str]) -> str:
    """Add what was found to a message that names an option but not its value."""
    named = re.search(r"'(--[\w-]+)'", message)
    if named is None:
        return message
    for position, argument in enumerate(arguments):
        option, equals, value = argument.partition("=")
        if option == named[1]:
            found = value if equals else "".join(arguments[position + 1 : position + 2])
            return message if not found or found in message else f"{message} (found {found!r})"
    return message


def _flags_first(arguments: Sequence[str]) -> list[str]:
    own = arguments[: arguments.index("--")] if "--" in arguments else arguments
    flags = [_FLAGS_ANYWHERE[argument] for argument in own if argument in _FLAGS_ANYWHERE]
    return flags + [argument for argument in arguments if argument not in _FLAGS_ANYWHERE]


def _status_of(error: Exception) -> int | None:
    """Return the exit status of an error that a user can act on; None for one that is a fault of ours."""
    for error_type in type(error).__mro__:
        if (error_type.__module__, error_type.__name__) in _STATUS_BY_ERROR:
            return _STATUS_BY_ERROR[error_type.__module__, error_type.__name__]
    return None


# By name, so that reporting an error of one package does not import the others.
_STATUS_BY_ERROR = {
    ("tessel.errors", "DocumentError"): EXIT_USAGE,
    ("tessel.errors", "ScheduleError"): EXIT_FAILED,
    ("tuner.errors", "UnknownNameError"): EXIT_USAGE,
    ("tuner.errors", "ModelFileError"): EXIT_USAGE,
    ("tuner.errors", "TunerError"): EXIT_FAILED,
    ("records.errors", "RecordFileError"): EXIT_USAGE,
    ("records.errors", "RecordError"): EXIT_FAILED,
    ("cost_model.errors", "CostModelFileError"): EXIT_USAGE,
    ("cost_model.errors", "CostModelError"): EXIT_FAILED,
    ("builtins", "ValueError"): EXIT_USAGE,
    ("builtins", "OSError"): EXIT_FAILED,
}


def _fail(message: str, status: int) -> int:
    if console.is_verbose():
        traceback.print_exc()
    line = console.printable(" ".join(message.split()))
    sys.stderr.write(f"tessel: {line}\n")
    return status
