"""What the documentation site adds to the pages in ``docs/``: the root's pages, the decisions, the files pages link to.

Pages are written to be read on a code host as well: they link to ``../examples/...`` and the README to ``docs/...``.
Here such links lead to copies within the site.
"""

from __future__ import annotations

import io
import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

from uldp.reproductions import index
from uldp.reproductions.page import html_page
from uldp.reproductions.page import page as reproduction
from uldp.reproductions.pictures import draw

ROOT = Path(__file__).parents[2]
PAGES = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changes.md",
    "SECURITY.md": "security.md",
    "CODE_OF_CONDUCT.md": "conduct.md",
}
FOLDERS = ("examples",)
SCRIPTS = {"mermaid/dist/mermaid.min.js": "assets/mermaid.min.js", "iframe-worker/shim/index.js": "assets/shim.js"}
"""What ``make docs`` fetches with npm, and where it is in the site: diagrams, and search in pages opened from disk."""
MERMAID, SHIM = SCRIPTS.values()
FIRST = {
    "docs/decisions": "docs/decisions/0001-integers-and-discrete-noise.md",
    "docs/notebooks": "docs/notebooks/first-steps.py",
}
LINK = re.compile(r"(?<=\]\()(?!https?:|#)([^)#\s]+)")


def on_config(config: Any) -> Any:
    """List all decisions in the navigation."""
    docs = Path(config.docs_dir)
    pages = sorted(docs.glob("decisions/*"))
    titled = [{path.read_text().partition("\n")[0].lstrip("# "): path.relative_to(docs).as_posix()} for path in pages]
    _fill(config.nav, "DECISIONS", titled)
    figures = [
        {f"{index.name_of(one)} ({one['mode']})": f"{index.FOLDER}/{index.file_name(one)}.md"}
        for one in index.read(docs)
    ]
    _fill(config.nav, "REPRODUCTIONS", [{"All figures": index.PAGE}, *figures])
    if MERMAID in _scripts():
        config.extra_javascript.append(MERMAID)
    return config


def on_files(files: Files, config: Any) -> Files:
    """Add the pages of the root, of reproductions, the linked files, and the script that draws diagrams."""
    for source, target in PAGES.items():
        files.append(File.generated(config, target, content=_relinked((ROOT / source).read_text(), "", target)))
    for path in (path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.*"))):
        if "__pycache__" not in path.parts:
            name = path.relative_to(ROOT).as_posix()
            files.append(File.generated(config, f"{name}.txt", content=path.read_text()))
    for target, content in _reproductions(Path(config.docs_dir)):
        files.append(File.generated(config, f"{index.FOLDER}/{target}", content=content))
    for target, script in _scripts().items():
        files.append(File.generated(config, target, abs_src_path=str(script)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Lead links that leave ``docs/`` to the copies. A notebook gets the room of its table of contents."""
    if page.file.src_uri.startswith("notebooks/"):
        page.meta["hide"] = ["toc"]
    if page.file.src_uri in PAGES.values():
        return markdown
    if page.file.src_uri == index.PAGE:  # on a code host the numbers, here the pages that are made from them
        return markdown.replace(".json)", ".md)")
    return _relinked(markdown, posixpath.join("docs", posixpath.dirname(page.file.src_uri)), page.file.src_uri)


def on_post_page(output: str, page: Any, **_: Any) -> str:
    """Load the worker of the search from the site, not from the network."""
    local = posixpath.relpath(SHIM, posixpath.dirname(page.url) or ".") if SHIM in _scripts() else ""
    script = '<script src="https://unpkg.com/iframe-worker/shim"></script>'
    return output.replace(script, f'<script src="{local}"></script>' if local else "")


def _reproductions(docs: Path) -> Iterator[tuple[str, str]]:
    """Of each reproduction a page, its picture, and the page with charts that answer to the pointer."""
    for one in index.read(docs):
        name, picture = index.file_name(one), io.StringIO()
        draw(one).savefig(picture, format="svg")
        also = f"[Charts that answer to the pointer]({name}-charts.html). [All numbers]({name}.json)."
        yield f"{name}.md", f"{reproduction(one, f'{name}.svg')}\n{also}\n"
        yield f"{name}.svg", picture.getvalue()
        yield f"{name}-charts.html", html_page(one)


def _relinked(markdown: str, folder: str, target: str) -> str:
    def replaced(match: re.Match[str]) -> str:
        path = posixpath.normpath(posixpath.join(folder, match.group(1)))
        path = FIRST.get(path, path)  # a folder has no page
        if path.partition("/")[0] in FOLDERS:
            path = f"{path}.txt"
        path = PAGES.get(path, path).removeprefix("docs/")
        return posixpath.relpath(path, posixpath.dirname(target) or ".")

    return LINK.sub(replaced, markdown)


def _fill(items: list[Any], placeholder: str, pages: list[dict[str, str]]) -> None:
    """Replace the placeholder in the navigation."""
    for item in items:
        for key, value in item.items() if isinstance(item, dict) else ():
            if value == placeholder:
                item[key] = pages
            elif isinstance(value, list):
                _fill(value, placeholder, pages)


def _scripts() -> dict[str, Path]:
    """The scripts that are here, by their place in the site; without npm diagrams are shown as text."""
    found = {target: ROOT / ".venv" / "npm" / "node_modules" / source for source, target in SCRIPTS.items()}
    return {target: path for target, path in found.items() if path.exists()}
