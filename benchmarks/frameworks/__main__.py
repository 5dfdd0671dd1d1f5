"""Train exported plans in other frameworks, and write which of them end as one process does.

    python -m benchmarks.frameworks --report benchmarks/reports/frameworks_2026-11.md
    python -m benchmarks.frameworks --newest --against benchmarks/reports/frameworks_2026-11.md

Pinned releases are installed into a virtual environment of their own, without packages for GPUs. Each plan is
trained for three steps by two processes over gloo, four where it has replicas, and losses and weights are
held against those of one process. What a framework cannot run is refused by the export, whose reason is
printed.
With `--newest` the same plans are trained by whatever releases are newest, in another environment, and what
became of them is held against a report: what changed is printed, and heads the new one. torchtitan's main is
no release: a checkout of it, whose folder `--torchtitan` names, trains with either.
"""

from __future__ import annotations

import argparse
import datetime
import json
import re
import subprocess
import sys
import tempfile
import tomllib
import venv
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.frameworks.plans import plans
from benchmarks.frameworks.ranks import Trained, train
from tessel.errors import ScheduleError
from tessel.exports.recipe import Recipe
from tessel.exports.torchtitan import release_of
from tessel.jobs.exporting import export_recipe

SHARED = (
    "torch==2.13.0",
    "torchdata",
    "datasets<4.8",
    "tokenizers",
    "tyro",
    "tomli",
    "tensorboard",
    "wandb",
    "einops",
    "pillow",
    "torch_checkpointing",
    "spmd_types==0.2.3",
    "deepspeed==0.19.8",
)
"""In the environment; two releases of torchtitan lie beside it, each in a folder of its own."""

BESIDE = ("megatron-core==0.16.1",)
"""Installed without what they need, which is for GPUs: what is called of them needs torch alone."""

TITANS = ("0.2.2", "0.3.0")
NAMES = Path(__file__).parents[2] / "tests" / "tessel" / "exports" / "torchtitan_names.json"
"""What tests hold exported options and modules against, where torchtitan is not installed."""

TOLERANCE = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class Framework:
    """A framework and the release that trains.

    Attributes:
        name: for the table.
        job: module of `benchmarks.frameworks.jobs`.
        to: what the plan is exported to.
        file: name of the exported file.
        version: release of torchtitan.
        path: folder of its package.
    """

    name: str
    job: str
    to: str
    file: str
    version: str | None = None
    path: str = ""


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--venv", type=Path, default=Path("out/frameworks"), help="folder of the releases")
    parser.add_argument("--report", type=Path, help="write the table to this file, too")
    parser.add_argument("--newest", action="store_true", help="train by the newest releases instead")
    parser.add_argument("--against", type=Path, help="the report to compare with")
    parser.add_argument("--torchtitan", type=Path, help="checkout of torchtitan's main, to be tried, too")
    given = parser.parse_args(arguments)
    if given.torchtitan is not None:
        project_of(given.torchtitan)  # refuses a wrong folder before anything is installed
    if given.newest:
        folder = given.venv.with_name(f"{given.venv.name}-newest")
        python = install_newest(folder)
        releases = newest_frameworks(python)
    else:
        python = install(given.venv)
        releases = frameworks(given.venv)
    main_titan = () if given.torchtitan is None else (install_main(python, given.torchtitan),)
    heading = [*_heading("make frameworks-newest" if given.newest else "make frameworks")]
    rows = [*_rows((*releases, *main_titan), python)]
    changed = [] if given.against is None else _changed(given.against, rows)
    print("\n".join(changed), end="")
    lines = [*heading, *changed, *rows]
    if given.report is not None:
        given.report.write_text("\n".join(lines) + "\n")


def install(folder: Path) -> str:
    """Return the interpreter of an environment with every release, made where it is not there."""
    python = _made(folder)
    pip = [str(python), "-m", "pip", "install", "--quiet"]
    subprocess.run([*pip, *SHARED], check=True)
    subprocess.run([*pip, "--no-deps", *BESIDE], check=True)
    for version in TITANS:
        target = folder / f"torchtitan-{version}"
        if not target.exists():
            subprocess.run([*pip, "--no-deps", "--target", target, f"torchtitan=={version}"], check=True)
    return str(python)


def _made(folder: Path) -> Path:
    """Return the interpreter of an environment, made where none is there, or one whose making was stopped."""
    commands = folder.absolute() / "bin"
    if not (commands / "pip").exists():
        venv.create(folder, with_pip=True)
    return commands / "python"


def install_newest(folder: Path) -> str:
    """Return the interpreter of an environment with the newest release of each framework.

    torch stays the pinned one: what else is newest has to run with it, and its own newest brings CUDA along.
    """
    python = _made(folder)
    pip = [str(python), "-m", "pip", "install", "--quiet", "--upgrade"]
    subprocess.run([*pip, SHARED[0], *map(without_pin, SHARED[1:])], check=True)
    subprocess.run([*pip, "--no-deps", "torchtitan", *map(without_pin, BESIDE)], check=True)
    return str(python)


def install_main(python: str, checkout: Path) -> Framework:
    """Install what a checkout of torchtitan's main needs beside the pinned torch, and return it."""
    pip = [python, "-m", "pip", "install", "--quiet", SHARED[0], *project_of(checkout)["dependencies"]]
    subprocess.run(pip, check=True)
    asked = ["git", "-C", str(checkout), "log", "-1", "--format=%cs, %h"]
    commit = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()
    return Framework(
        name=f"torchtitan-main ({commit})",
        job="torchtitan_job",
        to="torchtitan",
        file="titan.py",
        version="main",
        path=str(checkout.absolute()),
    )


def project_of(checkout: Path) -> Mapping[str, Any]:
    """Return the table of the project that a folder holds."""
    try:
        return tomllib.loads((checkout / "pyproject.toml").read_text())["project"]
    except (OSError, KeyError, tomllib.TOMLDecodeError) as error:
        sys.exit(f"{checkout} is no checkout of torchtitan: {error}; name the folder of its pyproject.toml")


def without_pin(requirement: str) -> str:
    """Return a requirement for any release."""
    return re.split(r"[=<>]", requirement, maxsplit=1)[0]


def newest_frameworks(python: str) -> tuple[Framework, ...]:
    """Return the releases of an environment, each as the export's release that is next to it."""
    names = ("torch", "torchtitan", "deepspeed", "megatron-core")
    asked = f"import importlib.metadata as m; print(*map(m.version, {names}))"
    output = subprocess.run([python, "-c", asked], capture_output=True, text=True, check=True).stdout
    torch, titan, deepspeed, megatron = output.split()
    version = release_of(titan).name
    file = "titan.toml" if version == "0.2.2" else "titan.py"
    return (
        Framework(name=f"torch {torch}", job="torch_job", to="torch", file="orders.csv"),
        Framework(
            name=f"torchtitan {titan}", job="torchtitan_job", to="torchtitan", file=file, version=version
        ),
        Framework(name=f"DeepSpeed {deepspeed}", job="deepspeed_job", to="deepspeed", file="planned.py"),
        Framework(name=f"Megatron-Core {megatron}", job="megatron_job", to="megatron", file="arguments.txt"),
    )


def verdicts(rows: Iterable[str]) -> dict[tuple[str, str], str]:
    """Return what became of each plan in each framework, the newest release of it, by the rows of a table."""
    found = {}
    for row in rows:
        cells = [cell.strip() for cell in row.strip().strip("|").split("|")]
        if len(cells) == 3 and " " in cells[0]:
            verdict = re.split(r"[,:]", cells[2], maxsplit=1)[0]
            found[cells[0].split()[0], cells[1]] = verdict.strip("*")
    return found


def changes(before: Mapping[tuple[str, str], str], after: Mapping[tuple[str, str], str]) -> list[str]:
    """Return a line for each plan that another thing became of."""
    return [
        f"{framework}, {plan}: {before.get((framework, plan), 'not tried')} before, {verdict} now"
        for (framework, plan), verdict in after.items()
        if before.get((framework, plan)) != verdict
    ]


def _changed(against: Path, rows: Iterable[str]) -> list[str]:
    """Return what became of plans that became something else in a report, as lines of one more."""
    found = changes(verdicts(against.read_text().splitlines()), verdicts(rows))
    return [
        f"Against [the pinned releases]({against.name}):",
        "",
        *(f"- {each}" for each in found or ["nothing changed"]),
        "",
    ]


def frameworks(folder: Path) -> tuple[Framework, ...]:
    """Return the releases, of which torchtitan's lie in folders beside each other."""
    paths = {version: str((folder / f"torchtitan-{version}").absolute()) for version in TITANS}
    return (
        Framework(name="torch 2.13.0", job="torch_job", to="torch", file="orders.csv"),
        *(
            Framework(
                name=f"torchtitan {version}",
                job="torchtitan_job",
                to="torchtitan",
                file="titan.toml" if version == "0.2.2" else "titan.py",
                version=version,
                path=path,
            )
            for version, path in paths.items()
        ),
        Framework(name="DeepSpeed 0.19.8", job="deepspeed_job", to="deepspeed", file="planned.py"),
        Framework(name="Megatron-Core 0.16.1", job="megatron_job", to="megatron", file="arguments.txt"),
    )


def outcomes(
    framework: Framework, recipes: Mapping[str, Recipe], python: str = sys.executable
) -> dict[str, str]:
    """Return what became of each plan in a framework: a difference, the export's refusal, or what failed."""
    found = dict.fromkeys(recipes, "not in the file: the CSV has orders alone")
    with tempfile.TemporaryDirectory() as folder:
        files: dict[int, dict[str, Path]] = {}
        for number, (name, recipe) in enumerate(recipes.items()):
            if framework.to == "torch" and (recipe.data_parallel > 1 or any(recipe.recompute)):
                continue
            path = Path(folder) / str(number) / framework.file
            path.parent.mkdir()
            try:
                export_recipe(recipe, framework.to, path, version=framework.version)
            except ScheduleError as error:
                found[name] = f"refused: {error}"
            else:
                files.setdefault(recipe.devices * recipe.data_parallel, {})[name] = path
        for ranks, own in files.items():
            ended = train(framework.job, [*own.values()], ranks, python=python, path=framework.path)
            found |= dict(zip(own, map(_verdict, ended), strict=True))
            if names := ended[0].names:
                found["names of options and modules"] = compare_names(names, framework.version or "")
    return found


def compare_names(names: Mapping[str, Sequence[str]], version: str) -> str:
    """Return whether a release's names are those that tests know of it, and which have come and gone."""
    known: Mapping[str, Sequence[str]] = json.loads(NAMES.read_text())[version]
    changed = [
        f"{sign}{table}.{name}"
        for table in known
        for sign, one, other in (("+", names, known), ("-", known, names))
        for name in sorted(set(one[table]) - set(other[table]))
    ]
    return f"**differs**: {' '.join(changed)}" if changed else "exact"


def _verdict(found: Trained) -> str:
    if found.difference is None:
        return f"**failed**: {found.error}"
    verdict = "exact" if found.difference <= TOLERANCE < found.moved else "**differs**"
    return f"{verdict}, {found.difference:.0e} (weights moved by {found.moved:.0e})"


def _heading(command: str) -> Iterator[str]:
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True
    )
    yield "# Exported plans, trained by the frameworks themselves"
    yield ""
    yield (
        f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d}, commit {commit.stdout.strip()}, Python "
        f"{sys.version.split()[0]}, CPUs and gloo, by `{command}`. Each plan has eight layers on two "
        "ranks and four micro-batches unless it says otherwise. Three steps of gradient descent; the figure "
        "is how far the loss or a weight of any rank is from those of one process, at most."
    )
    yield ""
    yield (
        "torchtitan splits, parallelises and schedules its debug model by the file; the loop around it is "
        "the benchmark's, since its trainer asks for a GPU. 0.3.0 and main have "
        '`spmd_backend="partial_dtensor"` and SDPA attention, since their own is compiled. main is a '
        "checkout at the commit that its rows name. DeepSpeed's "
        "engine trains a small model with `gradient_clipping` 0; Megatron-Core's schedules train one by the "
        "plan's layout, in their own order and with `batch_p2p_comm` off."
    )
    yield ""


def _rows(releases: Sequence[Framework], python: str) -> Iterator[str]:
    recipes: Mapping[str, Recipe] = plans()
    yield "| framework | plan | result |"
    yield "|---|---|---|"
    for release in releases:
        for name, found in outcomes(release, recipes, python).items():
            row = f"| {release.name} | {name} | {found} |"
            print(row, flush=True)
            yield row


if __name__ == "__main__":
    main()
