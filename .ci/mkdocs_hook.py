"""A hook of MkDocs: the README is the first page, linked files come along, and pictures open on their own.

Terms lead to the glossary, groups of the menu to their first page, and what is searched is a script as well,
so that pages opened from a disk can be searched.
"""

import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from glossary_links import linked, meanings_of, with_anchors
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.nav import Navigation, Section
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parent.parent
LINK = re.compile(r"\]\((?!https?:|#)([^)#]+)(#[^)]*)?\)")
RAW_LINK = re.compile(r'\b(src|srcset)="(?!https?:)([^"]+)"')
PICTURE = re.compile(r'(?:<picture>.*?)?<img [^>]*src="([^"]+)"[^>]*>(?:</picture>)?')
MEANINGS = meanings_of((ROOT / "docs" / "glossary.md").read_text())


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the README, and every file outside docs/ that it or a page links to."""
    readme = (ROOT / "README.md").read_text()
    pages = {f"docs/{file.src_uri}": file.content_string for file in files.documentation_pages()}
    for name, text in {"README.md": readme, **pages}.items():
        for target in (resolve(name, link[1]) for link in LINK.finditer(text)):
            if uri_of(target).startswith("files/") and uri_of(target) not in files.src_uris:
                files.append(File.generated(config, uri_of(target), content=(ROOT / target).read_bytes()))
    files.append(File.generated(config, "index.md", content=readme))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Point links at where their files are on the site."""
    name = "README.md" if page.file.src_uri == "index.md" else f"docs/{page.file.src_uri}"

    def moved(link: re.Match[str]) -> str:
        target = resolve(name, link[1])
        return f"]({uri_of(target)}{link[2] or ''})"

    markdown = RAW_LINK.sub(lambda link: f'{link[1]}="{uri_of(resolve(name, link[2]))}"', markdown)
    return LINK.sub(moved, markdown)


def on_nav(nav: Navigation, config: MkDocsConfig, files: Files) -> Navigation:
    """Let a group within a part of the menu lead to its first page, where the theme then unfolds it."""
    for group in (each for part in nav.items for each in part.children or () if isinstance(each, Section)):
        group.is_link, group.url = True, group.children[0].url
    return nav


def on_post_build(config: MkDocsConfig) -> None:
    """Write the index of the search as a script, which a page opened from a disk may load."""
    folder = Path(config.site_dir) / "search"
    index = (folder / "search_index.json").read_text()
    (folder / "search_index.js").write_text(f"window.searchIndex = {index};\n")


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Link terms, and let each picture be opened in its own size, which a narrow screen needs."""
    is_glossary = page.file.src_uri == "glossary.md"
    html = with_anchors(html, MEANINGS) if is_glossary else linked(html, MEANINGS, glossary="glossary.html")
    return PICTURE.sub(lambda image: f'<a class="picture" href="{image[1]}">{image[0]}</a>', html)


def resolve(name: str, link: str) -> str:
    """Return a link's target as a path in the repository; folders are stood for by their first file."""
    path = (ROOT / name).parent / link
    if not path.exists():
        raise PluginError(f"{name} links to {link}, which does not exist")
    if path.is_dir():
        path = sorted(file for file in path.iterdir() if file.is_file())[0]
    return path.resolve().relative_to(ROOT).as_posix()


def uri_of(target: str) -> str:
    """Return where a file of the repository is on the site; files outside docs/ are shown as text."""
    if target == "README.md":
        return "index.md"
    if target.startswith("docs/"):
        return target.removeprefix("docs/")
    return f"files/{target.lstrip('.')}.txt"  # MkDocs leaves out names that begin with a dot
