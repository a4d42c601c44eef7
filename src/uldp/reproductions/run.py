"""One figure from its file to a folder: measured (or read, where it was measured before), judged, drawn, written."""

from __future__ import annotations

import hashlib
import json
import shlex
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import msgspec

from uldp._version import __version__
from uldp.errors import ConfigError, RunError, error_context, first_line
from uldp.limits import MAX_REPEATS, check_whole
from uldp.reports.figures import save_figure
from uldp.reproductions import numbers, training
from uldp.reproductions.figure import MODES, Figure, Panel, load
from uldp.reproductions.index import summary, write_json
from uldp.reproductions.page import html_page, page
from uldp.reproductions.pictures import draw
from uldp.reproductions.rows import PanelRows
from uldp.reproductions.training import ReproductionPlace
from uldp.reproductions.verdicts import beside, judge
from uldp.runs.directory import versions
from uldp.runs.files import replace_file

KINDS: Final[dict[str, tuple[type[msgspec.Struct], Callable[..., PanelRows]]]] = {
    "training": (training.Training, training.compare),
    "group-epsilons": (numbers.GroupEpsilons, numbers.group_epsilons),
    "attack": (numbers.AttackPanel, numbers.attack),
    "protocol": (numbers.Protocol, numbers.protocol),
    "latency": (numbers.Latency, numbers.latency),
    "subject-epsilons": (numbers.SubjectEpsilons, numbers.subject_epsilons),
    "published-subjects": (numbers.PublishedSubjects, numbers.published_subjects),
}
"""What a panel may be: its settings, and what measures it."""
Say = Callable[[str], object]


@dataclass(frozen=True)
class Reproduction:
    """A figure that was reproduced: its document (``results.json``), and where its files are."""

    name: str
    folder: Path
    document: dict[str, Any]

    @property
    def verdicts(self) -> dict[str, int]:
        """How many claims hold, hold with a caveat, do not hold, were not measured."""
        counts: dict[str, int] = {}
        for claim in self.document["claims"]:
            counts[claim["verdict"]] = counts.get(claim["verdict"], 0) + 1
        return counts


def reproduce(
    name: str,
    out: Path,
    *,
    mode: str = "quick",
    repeats: int | None = None,
    data_dir: Path | None = None,
    progress: bool | None = False,
    say: Say = lambda text: None,
) -> Reproduction:
    """Reproduce one figure below ``out``. What is there already is not computed again.

    Args:
        name: The figure, see :func:`uldp.reproductions.figure.names`.
        out: A folder; the figure gets a folder in it, with one for each mode.
        mode: ``quick`` (minutes), ``medium`` (what ten minutes of a core allow) or ``full`` (the paper's settings).
        repeats: How many seeds; by default the file's.
        data_dir: Where the data sets' files are.
        progress: Whether to show a bar for each run.
        say: Called with a sentence before each panel.

    Raises:
        ConfigError: An unknown figure or mode.
    """
    figure = load(name)
    if mode not in MODES:
        raise ConfigError(f"one of {', '.join(MODES)}, not {mode!r}", location="mode", value=mode)
    if repeats is not None:
        check_whole(repeats, 1, MAX_REPEATS, "--repeats")
    folder = out / name / mode
    place = ReproductionPlace(folder, data_dir, repeats, progress)
    folder.mkdir(parents=True, exist_ok=True)
    panels = []
    for panel in figure.panels:
        say(f"{name}: {panel.name}")
        with error_context(name):
            panels.append(_rows(panel, mode, place))
    document = _document(name, figure, mode, repeats, panels)
    replace_file(folder / "results.json", (json.dumps(document, indent=1) + "\n").encode(), 0o644)
    write_json(folder / "summary.json", summary(document))
    replace_file(folder / "page.md", page(document).encode(), 0o644)
    replace_file(folder / "page.html", html_page(document).encode(), 0o644)
    picture = draw(document)
    for ending in ("png", "svg"):
        save_figure(picture, folder / f"figure.{ending}")
    return Reproduction(name, folder, document)


def _rows(panel: Panel, mode: str, place: ReproductionPlace) -> PanelRows:
    """The panel's rows: read if they were measured before with the same settings, by the same version."""
    if panel.kind not in KINDS:
        raise ConfigError(f"kind {panel.kind!r} is none of {', '.join(KINDS)}", location=panel.name)
    settings, (kind, measure) = panel.of(mode), KINDS[panel.kind]
    try:
        checked = msgspec.convert(settings, type=kind)
    except msgspec.ValidationError as error:
        raise ConfigError(f"settings of {panel.name!r}: {first_line(error)}", location=panel.kind) from error
    used = {**settings, "_repeats": place.repeats, "_version": __version__, "_kind": panel.kind}
    if "dataset" in settings:
        used["_available"] = training.available(settings["dataset"], place.data_dir)
    digest = hashlib.sha256(json.dumps(used, sort_keys=True).encode()).hexdigest()
    slug = "".join(sign if sign.isalnum() else "-" for sign in panel.name)
    file = place.folder / f"{slug}.rows.json"
    if file.exists():
        try:
            found = msgspec.json.decode(file.read_bytes(), type=Stored)
        except msgspec.MsgspecError as error:
            raise RunError(f"is not a panel's rows ({first_line(error)}); delete it", location=str(file)) from error
        if found.digest == digest:
            return found.rows
    start = time.perf_counter()
    own = replace(place, folder=place.folder / f"runs-{digest[:12]}")
    own.folder.mkdir(exist_ok=True)
    rows = measure(own, panel.name, checked)
    rows = msgspec.structs.replace(rows, seconds=time.perf_counter() - start)
    replace_file(file, msgspec.json.encode(Stored(digest, rows)), 0o644)
    return rows


class Stored(msgspec.Struct, frozen=True):
    """A panel's rows on disk, and a digest of the settings that they are of."""

    digest: str
    rows: PanelRows


def _document(name: str, figure: Figure, mode: str, repeats: int | None, panels: list[PanelRows]) -> dict[str, Any]:
    command = ["uldp", "reproduce", name, f"--{mode}"] + ([f"--repeats={repeats}"] if repeats else [])
    stand_ins = sorted({panel.dataset for panel in panels if panel.stand_in})
    notes = list(figure.notes) + ([figure.differs[mode]] if mode in figure.differs else [])
    if stand_ins:
        notes.insert(0, f"STAND-IN: the paper's data set is not here; {', '.join(stand_ins)} takes its place.")
    return {
        "figure": name,
        "title": figure.title,
        "paper": figure.paper,
        "about": figure.about,
        "mode": mode,
        "command": shlex.join(command),
        "notes": notes,
        "stand_in": bool(stand_ins),
        "picture": figure.picture,
        "settings": {panel.name: panel.of(mode) for panel in figure.panels},
        "panels": [msgspec.to_builtins(panel) for panel in panels],
        "published": beside(figure.published, panels),
        "claims": [msgspec.to_builtins(judge(claim, panels)) for claim in figure.claims],
        "seconds": sum(panel.seconds for panel in panels),
        "versions": versions(),
    }
