"""What a wheel holds, and for which versions of Python: said once in pyproject.toml, meant everywhere."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import sysconfig
import tomllib
import zipfile
from fnmatch import fnmatch
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from tessel.progress import manual

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("records", "cost_model", "tuner", "tessel", "scripts")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def data_files() -> set[str]:
    """Return what git knows in the packages beside modules."""
    listed = subprocess.run(
        ["git", "ls-files", *PACKAGES], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return {name for name in listed.stdout.splitlines() if not name.endswith(".py")}


def test_every_package_is_typed_and_all_its_data_is_shipped() -> None:
    found = data_files()
    assert {f"{package}/py.typed" for package in PACKAGES} <= found
    patterns = PROJECT["tool"]["setuptools"]["package-data"]["*"]
    assert [
        name for name in found if not any(fnmatch(Path(name).name, pattern) for pattern in patterns)
    ] == []
    included = PROJECT["tool"]["setuptools"]["packages"]["find"]["include"]
    assert sorted(included) == sorted(f"{package}*" for package in PACKAGES)


def test_every_folder_with_modules_is_a_package() -> None:
    folders = {path.parent for package in PACKAGES for path in (ROOT / package).rglob("*.py")}
    assert [str(folder) for folder in sorted(folders) if not (folder / "__init__.py").exists()] == []


@pytest.mark.slow  # a build fetches setuptools
def test_a_wheel_holds_what_the_repository_does(tmp_path: Path) -> None:
    source = tmp_path / "source"
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(source)], check=True)
    wheel = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(tmp_path)]
    subprocess.run([*wheel, str(source)], check=True)
    (path,) = tmp_path.glob("*.whl")
    held = set(zipfile.ZipFile(path).namelist())
    assert data_files() <= held
    pages = {f"{Path(manual.FOLDER).name}/{path.name}" for path in (ROOT / "docs").glob("*.md")}
    assert pages == {"/".join(name.split("/")[-2:]) for name in held if name.endswith(".md")}
    modules = {
        path.relative_to(ROOT).as_posix() for package in PACKAGES for path in (ROOT / package).rglob("*.py")
    }
    assert modules <= held


def test_a_message_names_a_page_that_is_there_with_and_without_a_clone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert manual.manual("formats.md") == "docs/formats.md"
    named = {
        name
        for package in PACKAGES
        for path in (ROOT / package).rglob("*.py")
        for name in re.findall(r"manual\(['\"]([\w.-]+)", path.read_text())
    }
    assert "profiles.md" in named
    assert [name for name in named if not (ROOT / "docs" / name).is_file()] == []
    monkeypatch.setattr(manual, "__file__", str(tmp_path / "site" / "tessel" / "progress" / "manual.py"))
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path))
    assert manual.manual("formats.md") == "docs/formats.md"
    installed = tmp_path / manual.FOLDER / "formats.md"
    installed.parent.mkdir(parents=True)
    installed.touch()
    assert manual.manual("formats.md#plan") == installed.as_uri()


NOT_IN_A_TEST = ("apt-get ", "rm -rf /var/lib/apt/", "useradd ", "chown ")
"""Commands of the container file that need Debian or another user: only their grammar is checked."""


def container_steps() -> tuple[list[str], list[str]]:
    """Return the commands of the container file's RUN lines, one by one, and what it starts."""
    text = (ROOT / "Dockerfile").read_text().replace("\\\n", " ")
    runs = re.findall(r"^RUN (.+)$", text, re.MULTILINE)
    steps = [step.strip() for run in runs for step in run.split("&&")]
    return steps, json.loads(re.findall(r"^ENTRYPOINT (.+)$", text, re.MULTILINE)[0])


def test_the_container_file_names_what_is_there() -> None:
    steps, entry = container_steps()
    for step in steps:
        subprocess.run(["bash", "-n", "-c", step], check=True)
    assert entry[0] in PROJECT["project"]["scripts"]
    assert any("-c constraints.txt" in step for step in steps)
    ignored = (ROOT / ".dockerignore").read_text().split()
    assert not {"constraints.txt", "pyproject.toml", "docs", "README.md", *PACKAGES} & set(ignored)


@pytest.mark.slow  # a build fetches setuptools
def test_the_container_file_s_steps_run_one_by_one(tmp_path: Path) -> None:
    """In a new environment instead of an image, whose other distributions are those of this one."""
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(tmp_path / "opt" / "tessel")], check=True)
    subprocess.run([sys.executable, "-m", "venv", str(tmp_path / "venv")], check=True)
    own = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    own["PATH"] = f"{tmp_path / 'venv' / 'bin'}{os.pathsep}{own['PATH']}"
    steps, entry = container_steps()
    folder, left_out = tmp_path, []
    for step in steps:
        if step.startswith(NOT_IN_A_TEST):
            left_out.append(step)
            continue
        here = re.sub(r"(?<=\s)/(?=opt|work)", f"{tmp_path}/", step)
        if here.startswith("cd "):
            folder = Path(here.removeprefix("cd "))
            continue
        # The rest is of this environment, which pip is not to see: it would find the project installed.
        more = {"PIP_NO_DEPS": "1"} if " pip " in here else {"PYTHONPATH": sysconfig.get_path("purelib")}
        subprocess.run(["bash", "-c", here], cwd=folder, env={**own, **more}, check=True)
    assert len(left_out) == len(NOT_IN_A_TEST) + 1  # apt-get updates, then installs
    work = tmp_path / "work"
    ours = {**own, "PYTHONPATH": sysconfig.get_path("purelib"), "NUMBA_DISABLE_JIT": "1"}
    asked = [*entry, "schedule", "vshape", "--devices", "2", "--micro-batches", "2", "--json"]
    done = subprocess.run(asked, cwd=work, env=ours, capture_output=True, text=True, check=True)
    assert (
        json.loads(done.stdout)["makespan"] == 12
    )  # two forwards and backwards of 4 steps, and one way back
    named = ["python", "-c", "from tessel.progress.manual import manual; print(manual('formats.md'))"]
    where = subprocess.run(named, cwd=work, env=ours, capture_output=True, text=True, check=True)
    assert where.stdout.strip() == (tmp_path / "venv" / manual.FOLDER / "formats.md").as_uri()


def test_the_version_is_the_newest_release_of_the_changelog() -> None:
    headings = re.findall(r"^## (\S+) – (.+)$", (ROOT / "CHANGELOG.md").read_text(), flags=re.MULTILINE)
    released = [(version, date) for version, date in headings if date != "unreleased"]
    dates = [date for _, date in released]
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\d", date) for date in dates)
    assert dates == sorted(dates, reverse=True)
    assert PROJECT["project"]["version"] == released[0][0]


def test_versions_of_python_are_the_same_everywhere() -> None:
    wanted = SpecifierSet(PROJECT["project"]["requires-python"])
    versions = [f"3.{minor}" for minor in range(30) if wanted.contains(f"3.{minor}.1")]
    prefix = "Programming Language :: Python :: "
    classified = [name for name in PROJECT["project"]["classifiers"] if name.startswith(prefix)]
    tried = [name.removeprefix(prefix) for name in classified]
    assert tried == versions[: len(tried)]
    page = (ROOT / "docs" / "installation.md").read_text()
    assert [version for version in versions if f"\n| {version} |" in page] == versions
    first, last = (tuple(map(int, version.split("."))) for version in (versions[0], versions[-1]))
    makefile = (ROOT / "Makefile").read_text()
    assert f"{first} <= v[:2] <= {last}" in makefile
    assert f"{versions[0]} to {versions[-1]} is needed" in makefile
    assert f"Python {versions[0]} to {versions[-1]} and make are needed" in makefile
    assert PROJECT["tool"]["mypy"]["python_version"] == versions[0]
    assert PROJECT["tool"]["ruff"]["target-version"] == f"py{versions[0].replace('.', '')}"


def test_every_required_distribution_has_a_tested_version() -> None:
    tested = {
        re.sub(r"[-_.]+", "-", line.partition("==")[0]).lower(): line.partition("==")[2]
        for line in (ROOT / "constraints.txt").read_text().split()
    }
    extras = PROJECT["project"]["optional-dependencies"].values()
    lines = [*PROJECT["project"]["dependencies"], *(line for extra in extras for line in extra)]
    for requirement in map(Requirement, lines):
        if requirement.name != PROJECT["project"]["name"]:
            assert requirement.specifier.contains(tested[requirement.name.lower()], prereleases=True), (
                requirement
            )


def test_gpu_libraries_are_not_brought_unasked() -> None:
    on_linux = {"sys_platform": "linux", "extra": ""}
    required = [
        requirement.name
        for requirement in map(Requirement, PROJECT["project"]["dependencies"])
        if requirement.marker is None or requirement.marker.evaluate(on_linux)
    ]
    assert "xgboost-cpu" in required
    assert "xgboost" not in required
