"""Hooks of MkDocs (`make docs`): what the pages of docs/ link to outside of docs/ becomes part of the site too.

The README is its first page. Other Markdown files become pages; a source file becomes a page with its text.
"""

import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
SAMPLE = ROOT / "build/sample/report/report.html"  # made by `make docs`
FIRST = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "deploy/include/qcn/qcn.h")  # which the navigation names
LINK = re.compile(r"\]\(([^)#\s]+)(#[^)\s]*)?\)|(?<=src=\")([^\"]+)(?=\")")
LANGUAGES = {"py": "python", "cu": "cpp", "h": "c", "hpp": "cpp", "sh": "bash", "js": "javascript"}


def place(path: str) -> str:
    """Where a file of the repository stands in the site, by its path in the repository."""
    if path == "README.md":
        return "index.md"
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    if path.endswith((".png", ".svg", ".html")):
        return path
    return path if path.endswith(".md") else f"{path}.md"


def linked(text: str, path: str) -> set[str]:
    """The files of the repository that a page links to."""
    result = {
        posixpath.normpath(posixpath.join(posixpath.dirname(path), one[1] or one[3])) for one in LINK.finditer(text)
    }
    return {one for one in result if (ROOT / one).is_file()}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add every file that a page links to, and those that these link to."""
    files.append(File.generated(config, "sample-report.html", content=SAMPLE.read_bytes()))
    todo = [*FIRST, *(f"docs/{one.src_uri}" for one in files if one.src_uri.endswith(".md"))]
    done = {f"docs/{one.src_uri}" for one in files}
    while todo:
        path = todo.pop()
        text = (ROOT / path).read_text(encoding="utf-8") if path.endswith((".md", ".h")) else ""
        todo += sorted(linked(text, path) - done - set(todo)) if path.endswith(".md") else []
        if path in done:
            continue
        done.add(path)
        files.append(File.generated(config, place(path), content=content(path)))
    return files


def content(path: str) -> str | bytes:
    """A page of the site, for a file of the repository."""
    if path.endswith((".png", ".svg", ".html")):
        return (ROOT / path).read_bytes()
    try:
        text = (ROOT / path).read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return f"# {path}\n\nIt is not text."
    if path.endswith(".md"):
        return text
    ending = path.rpartition(".")[2]
    return f"# {path}\n\n````{LANGUAGES.get(ending, ending)}\n{text}\n````\n"


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Lead links to where the files of the repository stand in the site; what has no page there becomes text."""
    here = page.file.src_uri
    path = "README.md" if here == "index.md" else f"docs/{here}" if (ROOT / "docs" / here).is_file() else here

    def lead(link: re.Match[str]) -> str:
        target, anchor = link[1] or link[3], link[2] or ""
        if ":" in target:
            return link[0]
        name = posixpath.normpath(posixpath.join(posixpath.dirname(path), target))
        if not (ROOT / name).is_file():
            return "](#)" if link[1] else link[0]
        there = posixpath.relpath(place(name), posixpath.dirname(here) or ".")
        return f"]({there}{anchor})" if link[1] else there

    return LINK.sub(lead, markdown) if path.endswith(".md") else markdown
