"""Lines and tables of a job: as text for a terminal, as HTML for a notebook, names of strangers escaped."""

from __future__ import annotations

from tessel.jobs.shown.sections import Sections


def sections() -> Sections:
    out = Sections()
    out.line("the first line\n")
    out.table("A title", ("stage", "time (ms)"), (("embed", "1.5"), ("<b>head</b>", "12.25")))
    out.line("- a sentence with \x1b[31mcolour")
    return out


def test_text_has_every_line_and_figures_stand_right() -> None:
    lines = str(sections()).splitlines()
    assert lines[:2] == ["the first line", ""]
    assert [line.rstrip() for line in lines[2:6]] == [
        "A title",
        "stage        time (ms)",
        "embed              1.5",
        "<b>head</b>      12.25",
    ]
    assert "\x1b" not in lines[-1]
    assert repr(sections()) == str(sections())


def test_a_notebook_shows_tables_and_no_markup_of_names() -> None:
    html = sections()._repr_html_()
    assert html.count("<table>") == 1
    assert "<caption>A title</caption>" in html
    assert "&lt;b&gt;head&lt;/b&gt;" in html
    assert '<td style="text-align:right">12.25</td>' in html
    assert html.startswith("<p>the first line</p>")
