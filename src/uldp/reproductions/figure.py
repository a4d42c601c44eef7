"""What a figure's file says: panels, published numbers, and the paper's claims. See ``docs/reproduce.md``."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any, Final

import msgspec

from uldp.errors import ConfigError, did_you_mean, first_line
from uldp.trees import toml_tree

MODES: Final = ("quick", "medium", "full")
"""Minutes for all figures; the largest settings that some ten minutes of a core allow; the paper's settings."""
RELATIONS: Final = ("above", "below", "close")


class Panel(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One part of a figure: what is measured (``kind``, see ``kinds``), and its settings in each mode.

    ``settings`` belong to all modes, those of ``quick``, ``medium`` or ``full`` come on top.
    """

    name: str
    kind: str
    settings: dict[str, Any] = {}
    quick: dict[str, Any] = {}
    medium: dict[str, Any] = {}
    full: dict[str, Any] = {}

    def of(self, mode: str) -> dict[str, Any]:
        """The settings in this mode; sections are joined key by key."""
        merged = dict(self.settings)
        for key, value in {"quick": self.quick, "medium": self.medium, "full": self.full}[mode].items():
            before = merged.get(key)
            both = isinstance(before, dict) and isinstance(value, dict)
            merged[key] = {**before, **value} if both else value  # type: ignore[dict-item]
        return merged


class Published(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A number that a paper's text gives: of which row and metric, and where it stands."""

    row: str
    metric: str
    value: float
    panel: str = ""
    where: str = ""


class ClaimSide(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One side of a claim: a row's metric (``score`` is the first one), or the same row's in another panel."""

    row: str
    metric: str = "score"
    panel: str = ""


class PaperClaim(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A statement of the paper: ``left`` is above, below or close to ``right`` (a row, or a number).

    It is decided in each of ``panels`` (all by default) by the difference (or with ``times`` by the factor).
    """

    text: str
    left: ClaimSide
    relation: str
    right: ClaimSide | float
    by: float = 0.0
    times: float = 1.0
    panels: list[str] = []
    where: str = ""


class Figure(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A figure or table of a paper."""

    title: str
    paper: str
    about: str
    panels: list[Panel]
    published: list[Published] = []
    claims: list[PaperClaim] = []
    notes: list[str] = []
    differs: dict[str, str] = {}
    """By mode: how these settings differ from the paper's."""
    picture: dict[str, Any] = {}


def names() -> list[str]:
    """All figures, in the order of the papers."""
    found = [Path(entry.name).stem for entry in _folder().iterdir() if entry.name.endswith(".toml")]
    return sorted(found, key=_position)


def _position(name: str) -> tuple[int, list[tuple[int, int | str]]]:
    papers = ("uldp-fl", "srr-fl", "subject-level")
    parts: list[tuple[int, int | str]] = [(0, int(part)) if part.isdigit() else (1, part) for part in name.split("-")]
    return next(index for index, paper in enumerate(papers) if name.startswith(paper)), parts


def load(name: str) -> Figure:
    """The figure of this name."""
    known = names()
    if name not in known:
        hint = did_you_mean(name, known)
        raise ConfigError(f"unknown figure {name!r}. Known: {', '.join(known)}{hint}", location="FIGURE", value=name)
    return read(toml_tree((_folder() / f"{name}.toml").read_text(encoding="utf-8")), name)


def read(tree: Mapping[str, Any], name: str) -> Figure:
    """A figure from the tree of its file."""
    try:
        figure = msgspec.convert(dict(tree), type=Figure)
    except msgspec.ValidationError as error:
        raise ConfigError(f"is no figure: {first_line(error)}", location=name) from error
    panels = {panel.name for panel in figure.panels}
    for claim in figure.claims:
        if claim.relation not in RELATIONS:
            raise ConfigError(f"relation {claim.relation!r} is none of {', '.join(RELATIONS)}", location=name)
        sides = [claim.left] + ([claim.right] if isinstance(claim.right, ClaimSide) else [])
        if missing := {*claim.panels, *(side.panel for side in sides if side.panel)} - panels:
            raise ConfigError(f"a claim names the panel {sorted(missing)[0]!r}, which is not there", location=name)
    return figure


def _folder() -> Any:
    return resources.files("uldp.reproductions") / "figures"
