"""The `tessel` command as a process: how it begins and ends, and what its errors become.

Exit status: 0 done, 1 could not be done, 2 wrong usage or an unreadable file, 130 interrupted.
"""

from __future__ import annotations

import atexit
import gc
import os
import re
import sys
import traceback
from collections.abc import Sequence

import typer
from typer.exceptions import TyperException

from scripts.app import app
from scripts.options import completion_words
from scripts.terminal import output_streams
from tessel.jobs import search_thread
from tessel.progress import interrupts, messages
from tessel.progress.control_characters import printable

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = interrupts.EXIT_INTERRUPTED

_FLAGS_ANYWHERE = {"-v": "--verbose", "--verbose": "--verbose", "-q": "--quiet", "--quiet": "--quiet"}
"""Flags of the whole command, which may stand after the sub-command too."""


def run() -> None:
    """Run the command with the process's arguments and exit with its status."""
    output_streams.take_over()
    if completion_words.is_asked():
        completion_words.answer(lambda: main(sys.argv[1:]))
        sys.exit(0)
    # Schedules of 64 devices and 512 micro-batches are a million live objects; looking through them for
    # garbage as often as Python does took a third of the time to compare and draw them.
    gc.set_threshold(100_000, 50, 50)
    try:
        status = main(sys.argv[1:])
        interrupts.leave_quietly(status)
        if status == EXIT_INTERRUPTED or search_thread.is_any_abandoned():
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
    if not messages.wants_color():
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
        message = error.format_message()
        return _fail(_in_our_words(_with_value(message, arguments)), EXIT_USAGE) if message else EXIT_USAGE
    except (KeyboardInterrupt, typer.Abort):
        return _fail(interrupts.MESSAGE, EXIT_INTERRUPTED)
    except ModuleNotFoundError as error:
        from scripts import installation

        module = (error.name or "").partition(".")[0]
        if module in _DISTRIBUTION_BY_MODULE:
            missing = _DISTRIBUTION_BY_MODULE[module]
            fix = installation.install(missing)
        elif module in _EXTRA_BY_MODULE:
            missing, fix = module, installation.install_extra(_EXTRA_BY_MODULE[module])
        else:
            raise
        return _fail(f"{missing} is not installed, and this command needs it; {fix}", EXIT_FAILED)
    except Exception as error:
        status = _status_of(error)
        if status is None and interrupts.was_raised():
            return _fail(interrupts.MESSAGE, EXIT_INTERRUPTED)
        if status is None:
            raise
        return _fail(str(error), status)


_DISTRIBUTION_BY_MODULE = {
    "tvm": "apache-tvm",
    "tvm_ffi": "apache-tvm-ffi",
    "xgboost": "xgboost-cpu",
    "scipy": "scipy",
    "sqlalchemy": "sqlalchemy",
    "matplotlib": "matplotlib",
    "ml_dtypes": "ml-dtypes",
    "psutil": "psutil",
    "cloudpickle": "cloudpickle",
    "threadpoolctl": "threadpoolctl",
}
"""What packagers may leave out for schedules, pictures and records alone (docs/installation.md)."""

_EXTRA_BY_MODULE = {
    "torch": "torch",
    "onnx": "onnx",
    "onnxruntime": "onnxruntime",
    "psycopg": "postgres",
    "distributed": "fleet",
    "dask": "fleet",
    "ortools": "cpsat",
}
"""What an extra brings, by the module that is imported."""


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


_REWORDED = (
    (r"^Invalid value: ", ""),
    (r"Value error, ", ""),
    (
        r"^Invalid value for '(--[\w-]+)': '?(.*?)'? is not one of (.*)\.$",
        lambda found: f"{found[1]} is {found[2]}, which is none of {found[3].replace(chr(39), '')}; give one",
    ),
    (r"^Missing argument '(.+)'\.$", r"\1 is missing; --help shows an example"),
    (r"^Missing option '(.+)'\.$", r"\1 is missing, and it has no default; --help shows an example"),
)
"""Typer's messages, and how they are said here."""


def _in_our_words(message: str) -> str:
    """Return a message of Typer's as an ordinary sentence."""
    for pattern, ours in _REWORDED:
        message = re.sub(pattern, ours, message)
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
    ("tessel.errors", "UsageError"): EXIT_USAGE,
    ("tessel.errors", "ScheduleError"): EXIT_FAILED,
    ("tuner.errors", "UnknownNameError"): EXIT_USAGE,
    ("tuner.errors", "ModelFileError"): EXIT_USAGE,
    ("tuner.errors", "TunerError"): EXIT_FAILED,
    ("tuner.runtime.manifest", "UnfitProgramError"): EXIT_FAILED,
    ("records.errors", "RecordFileError"): EXIT_USAGE,
    ("records.errors", "RecordError"): EXIT_FAILED,
    ("cost_model.errors", "CostModelFileError"): EXIT_USAGE,
    ("cost_model.errors", "CostModelError"): EXIT_FAILED,
    ("builtins", "ValueError"): EXIT_USAGE,
    ("builtins", "OSError"): EXIT_FAILED,
}


def _fail(message: str, status: int) -> int:
    if messages.is_verbose():
        traceback.print_exc()
    line = printable(" ".join(message.split()))
    sys.stderr.write(f"tessel: {line}\n")
    return status
