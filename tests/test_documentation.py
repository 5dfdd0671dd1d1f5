"""Links between documents lead somewhere, and modules name tests that exist."""

from __future__ import annotations

import ast
import re
import runpy
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from headless_chromium import ChromiumUnusableError, open_browser

import tessel

ROOT = Path(__file__).resolve().parent.parent
DOCUMENTS = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]
PAGES = [*DOCUMENTS, ROOT / "CONTRIBUTING.md"]
SOURCES = [
    path
    for package in ("records", "cost_model", "tuner", "tessel", "scripts")
    for path in sorted((ROOT / package).rglob("*.py"))
]


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_relative_links_lead_to_files(path: Path) -> None:
    links = re.findall(r"\]\((?!https?:)([^)#]+)(?:#[^)]*)?\)", path.read_text())
    links += re.findall(r'\bsrc(?:set)?="([^"]+)"', path.read_text())
    missing = [link for link in links if not (path.parent / link).exists()]
    assert missing == []


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_anchors_are_headings(path: Path) -> None:
    for link, anchor in re.findall(r"\]\((?!https?:)([^)#]*)#([^)]+)\)", path.read_text()):
        target = path.parent / link if link else path
        headings = re.findall(r"^#+ (.+)$", target.read_text(), flags=re.MULTILINE)
        slugs = {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}
        assert anchor in slugs, f"{path.name} links to {link}#{anchor}"


def test_modules_name_tests_that_exist() -> None:
    missing = []
    for path in SOURCES:
        for named in re.findall(r"\btests/[\w/]+\.py", path.read_text()):
            if not (ROOT / named).exists():
                missing.append((str(path.relative_to(ROOT)), named))
    assert missing == []


NAMED_PATH = re.compile(
    r"\b(?:records|cost_model|tuner|tessel|scripts|tests|benchmarks|examples|docs)/(?:[\w./-]*\w\.\w+|[\w/-]+/)"
)
NAMED_MODULE = re.compile(r"`((?:records|cost_model|tuner|tessel|scripts|benchmarks)(?:\.\w+)+)[`(]")


@pytest.mark.parametrize(
    "path", [path for path in PAGES if path.name != "CHANGELOG.md"], ids=lambda path: path.name
)
def test_paths_and_modules_that_pages_name_exist(path: Path) -> None:
    """A table of where to change what leads nowhere once modules move."""
    text = path.read_text()
    names = [name for name in NAMED_PATH.findall(text) if "NAME" not in name]
    missing = [name for name in names if not (ROOT / name).exists()]
    missing += [name for name in NAMED_MODULE.findall(text) if not _is_name(name)]
    assert missing == []


def test_the_check_of_named_paths_finds_what_is_missing() -> None:
    assert NAMED_PATH.findall("`tuner/gone.py`, tests/a/b_c.py; `tessel/rooms/` and/or tuner") == [
        "tuner/gone.py",
        "tests/a/b_c.py",
        "tessel/rooms/",
    ]
    assert not _is_name("tuner.gone")
    assert not _is_name("tuner.plan.Gone")
    assert _is_name("tuner.plan.Figure")


def _is_name(name: str) -> bool:
    """Say whether a dotted name is a package, a module, what stands in one, or a name that code writes."""
    path = ROOT / name.replace(".", "/")
    if path.is_dir() or path.with_suffix(".py").exists():
        return True
    module, _, last = name.rpartition(".")
    if "." not in name:
        return False
    folder = ROOT / module.replace(".", "/")
    source = folder / "__init__.py" if folder.is_dir() else folder.with_suffix(".py")
    if source.exists() and re.search(rf"\b{last}\b", source.read_text()):
        return True
    # A method of a class, or an attribute of a function of TVM, such as `tessel.weights`.
    return (not source.exists() and _is_name(module)) or any(
        f'"{name}"' in path.read_text() for path in SOURCES
    )


def test_text_names_no_machine_and_no_address() -> None:
    shipped = [*DOCUMENTS, *SOURCES, *sorted((ROOT / "benchmarks").rglob("*.*"))]
    pattern = re.compile(r"/work/|/root/|/home/\w|\b\d{1,3}\.\d{1,3}\.\d{1,3}\.\d{1,3}:\d+\b")
    found = [
        (str(path.relative_to(ROOT)), match.group())
        for path in shipped
        if path.suffix in (".md", ".py", ".json")
        for match in pattern.finditer(path.read_text())
    ]
    assert found == []


def test_the_api_reference_has_every_public_name() -> None:
    text = (ROOT / "docs" / "api.md").read_text()
    assert sorted(re.findall(r"^::: tessel\.(\w+)$", text, re.MULTILINE)) == sorted(tessel.__all__)


def test_the_picture_of_the_rooms_is_current() -> None:
    code = [sys.executable, str(ROOT / ".ci" / "draw_rooms.py"), "--check"]
    done = subprocess.run(code, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr


def test_every_page_is_in_the_menu() -> None:
    menu = re.findall(r": ([\w-]+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    assert sorted(menu) == sorted({"index.md", *(path.name for path in (ROOT / "docs").glob("*.md"))})


def test_the_menu_shows_fifteen_entries_until_a_group_is_opened() -> None:
    menu = (ROOT / "mkdocs.yml").read_text()
    assert len(re.findall(r"^ {6}- ", menu, re.MULTILINE)) == 15


def test_the_first_use_of_each_term_leads_to_the_glossary() -> None:
    links = SimpleNamespace(**runpy.run_path(str(ROOT / ".ci" / "glossary_links.py")))
    meanings = links.meanings_of((ROOT / "docs" / "glossary.md").read_text())
    assert len(meanings) > 50
    html = (
        "<h2>Stages</h2><p><code>stage</code> <a href='x'>a stage</a> <b>Stages</b> and a stage, "
        "sub-stage, a candidate partition &lt;stage></p>"
    )
    found = links.linked(html, meanings, glossary="glossary.html")
    assert re.sub(r"</?a[^>]*>", "", found) == re.sub(r"</?a[^>]*>", "", html)
    assert re.findall(r'href="glossary.html#([\w-]+)" title="[^"]+">([^<]+)<', found) == [
        ("term-stage", "Stages"),
        ("term-candidate-partition", "candidate partition"),
    ]
    rows = links.with_anchors("<tr>\n<td>warm-up, cool-down</td>", meanings)
    assert 'id="term-warm-up"' in rows
    assert 'id="term-cool-down"' in rows


@pytest.mark.slow
def test_the_pages_are_searched_from_a_disk_and_are_dark_where_the_screen_is(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs", reason="comes with the extra `docs`")
    site = tmp_path / "site"
    build = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "--site-dir", str(site)]
    subprocess.run(build, cwd=ROOT, check=True)
    try:
        with open_browser(tmp_path / "profile") as browser:
            browser.resize(1280, 900, dark=True)
            browser.visit(f"{(site / 'search.html').as_uri()}?q=repetend")
            found = browser.evaluate(
                "new Promise((done) => (function look() { const found = "
                "[...document.querySelectorAll('#mkdocs-search-results a')].map((each) => each.href);"
                " found.length ? done(found) : setTimeout(look, 20); })())"
            )
            ground = browser.evaluate(
                "getComputedStyle(document.querySelector('.wy-nav-content')).backgroundColor"
            )
    except ChromiumUnusableError as error:
        pytest.skip(f"this machine's chromium: {error}")
    assert any("/schedules.html" in address or "/results.html" in address for address in found)
    assert ground == "rgb(22, 22, 22)"


def test_messages_of_the_troubleshooting_page_are_messages_of_the_product() -> None:
    """A row is found by its message's words, so it must change with the message."""
    text, _, _ = (ROOT / "docs" / "troubleshooting.md").read_text().partition("\n## Any other message\n")
    cells = re.findall(r"^\| (.+?) \| ", text, re.MULTILINE)
    quoted = [quote for cell in cells for quote in re.findall(r"`([^`]+)`", cell)]
    fragments = {part for quote in quoted for part in re.split(r"\s*…\s*|; | in `", quote)}
    wanted = {part.strip(" ,") for part in fragments if len(part.split()) >= 3}
    assert len(wanted) > 40
    said = "\n".join(_texts_of(SOURCES))
    assert sorted(part for part in wanted if part not in said) == sorted(FOREIGN_MESSAGES & wanted)


FOREIGN_MESSAGES = {"tessel: command not found"}
"""Messages of other programs."""


def _texts_of(paths: list[Path]) -> list[str]:
    """Return every string that modules write, `…` where a value is filled in."""
    texts = []
    for path in paths:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.JoinedStr):
                texts.append("".join(v.value if isinstance(v, ast.Constant) else "…" for v in node.values))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                texts.append(node.value)
    return texts


FIGURES = (ROOT / "docs" / "figures.md").read_text()


def test_every_report_has_its_command_among_the_figures() -> None:
    reports = {path.name for path in (ROOT / "benchmarks" / "reports").glob("*.md")}
    named = set(re.findall(r"reports/([\w.-]+\.md)", FIGURES))
    assert sorted(reports - named) == []
    for path in DOCUMENTS:
        linked = set(re.findall(r"reports/([\w.-]+\.md)", path.read_text()))
        assert sorted(linked - named) == [], (
            f"{path.name} has figures whose command docs/figures.md does not say"
        )


@pytest.mark.parametrize(("name", "least"), [("README.md", 5), ("docs/measured.md", 40)])
def test_every_result_is_short_and_links_to_its_report(name: str, least: int) -> None:
    rows = re.findall(r"^\| (?!What |---).+ \|$", (ROOT / name).read_text(), re.MULTILINE)
    assert len(rows) >= least
    assert [row for row in rows if "benchmarks/reports/" not in row] == []
    assert [cell for row in rows for cell in row.strip("|").split(" | ") if len(cell) > 200] == []


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_bytes()) <= 10_000


@pytest.mark.parametrize("command", sorted(set(re.findall(r"`python -m (benchmarks\.[^`]+)`", FIGURES))))
def test_commands_of_figures_name_modules_and_options_that_exist(command: str) -> None:
    """A stranger runs them as they are printed."""
    module, *arguments = command.split()
    path = ROOT / module.replace(".", "/")
    sources = sorted(path.glob("*.py")) if path.is_dir() else [path.with_suffix(".py")]
    said = "\n".join(source.read_text() for source in sources)
    options = [argument for argument in arguments if argument.startswith("--")]
    assert [option for option in options if f'"{option}"' not in said] == []


def test_figures_of_the_cost_model_are_repeated_on_records_that_are_imported_first() -> None:
    """Without that the command reads the records of one network, or none, and prints other figures."""
    rows = [row for row in FIGURES.splitlines() if "tessel cost-model evaluate" in row]
    assert rows
    for row in rows:
        commands = re.findall(r"`tessel (records import|cost-model evaluate)([^`]*)`", row)
        (first, import_arguments), (second, evaluate_arguments) = commands
        assert (first, second) == ("records import", "cost-model evaluate")
        data, _, records = import_arguments.split()
        options = evaluate_arguments.split()
        assert options[options.index("--records") + 1] == records
        assert (ROOT / data).exists()
        assert (ROOT / options[options.index("--networks") + 1]).exists()
