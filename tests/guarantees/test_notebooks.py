"""The notebooks run, and the reference names everything public. ``make docs`` executes them again for their outputs."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

import uldp

DOCS = Path(__file__).parents[2] / "docs"
NOTEBOOKS = sorted((DOCS / "notebooks").glob("*.py"))
SLOW = {"rehearsal"}  # starts a server and silos


@pytest.mark.parametrize(
    "notebook",
    [pytest.param(path, marks=[pytest.mark.slow] if path.stem in SLOW else [], id=path.stem) for path in NOTEBOOKS],
)
@pytest.mark.filterwarnings("ignore")
def test_a_notebook_runs(notebook, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "Agg")
    runpy.run_path(str(notebook))


def test_the_reference_names_everything_public():
    named = re.findall(r"^::: uldp\.(\w+)$", (DOCS / "api.md").read_text(), flags=re.M)
    assert sorted(named) == sorted(set(uldp.__all__) - {"__version__"})


def test_every_page_is_in_the_navigation():
    text = (DOCS.parent / "mkdocs.yml").read_text()
    by_hooks = ("decisions", "reproductions.md")  # docs/site/hooks.py lists them
    pages = [path for path in DOCS.rglob("*.md") if not set(by_hooks) & set(path.parts)]
    assert [path.name for path in (*pages, *NOTEBOOKS) if path.relative_to(DOCS).as_posix() not in text] == []
