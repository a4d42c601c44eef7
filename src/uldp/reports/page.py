"""The page of a report: one file that opens from disk, loads nothing, and can be printed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from uldp._version import __version__
from uldp.privacy.sentences import COUNTS_MARK, show_epsilon
from uldp.reports.charts import Series, line_chart, thinned
from uldp.reports.comparison import MAX_LINES, SeedGroup, colours, common_metrics, comparison_charts, frontier, grouped
from uldp.reports.drawing import Chart
from uldp.reports.epsilons import adversary_chart
from uldp.reports.holdings import Holdings, users_chart
from uldp.reports.view import RunView
from uldp.reports.words import (
    metric_name,
    metric_sentence,
    show_guess,
    show_metric,
    shown_epsilon,
    verdict,
)

if TYPE_CHECKING:
    from jinja2 import Environment

MAX_ROWS: Final = 60
"""Of the table of rounds."""
MAX_DETAILS: Final = 40
"""Of a comparison: runs with a part of their own."""


def run_page(view: RunView, held: Holdings | None = None) -> str:
    """The report of one run. With ``held`` it is for the holder of the data only, and says so."""
    parts = run_parts(view)
    charts = list(parts["charts"])
    if held is not None:
        parts["holdings"] = {"table": held.rows(), "summary": held.summary(), "chart": users_chart(held)}
    return _render("run.html", title=view.title, scripts=_script_data(charts), version=__version__, **parts)


def comparison_page(views: Sequence[RunView], title: str, together: str) -> str:
    """The report of several runs. ``together`` says what they cost in one sentence."""
    groups = grouped(views)
    names, charts = common_metrics(groups), comparison_charts(groups)
    drawn, best = frontier(groups, names[0]) if names else (None, [])
    return _render(
        "comparison.html",
        title=title,
        version=__version__,
        groups=groups,
        colours=colours(groups),
        key=_key(groups),
        names=names,
        best=best,
        frontier=drawn,
        charts=charts,
        left_out=max(0, len(groups) - MAX_LINES),
        together=together,
        notes=_notes(groups),
        details=[(group, setting_parts(group.first)) for group in groups[:MAX_DETAILS]],
        further=max(0, len(groups) - MAX_DETAILS),
        scripts=_script_data(charts),
    )


def run_parts(view: RunView) -> dict[str, Any]:
    """What a template shows of one run."""
    return {
        **setting_parts(view),
        "useful": metric_sentence(view.metrics, view.no_better),
        "tiles": _tiles(view),
        "charts": _charts(view),
        "rounds": [view.rounds[index] for index in thinned(len(view.rounds), MAX_ROWS)],
        "ruler": _ruler(view),
    }


def setting_parts(view: RunView) -> dict[str, Any]:
    """What a comparison shows of one run: what is promised, and nothing over the rounds."""
    statement = view.statement
    return {
        "view": view,
        "statement": statement,
        "verdict": verdict(statement),
        "adversaries": _adversaries(view),
        "counts_mark": COUNTS_MARK if any(one.counts for one in statement.exposures) else "",
    }


@dataclass(frozen=True)
class AdversaryRow:
    """A row of the table of adversaries."""

    who: str
    sees: str
    epsilon: str
    replace_one: str
    guess: str
    refuted: str


def _adversaries(view: RunView) -> list[AdversaryRow]:
    statement = view.statement
    if not statement.holds:
        return []
    audited = {one.get("who"): one for one in (view.audit or {}).get("adversaries", [])}
    return [
        AdversaryRow(
            one.who,
            one.sees,
            show_epsilon(one.epsilon) + one.mark,
            show_epsilon(one.replace_one),
            show_guess(one.epsilon, statement.delta),
            _refuted(audited.get(one.who)),
        )
        for one in statement.exposures
    ]


def _refuted(found: dict[str, Any] | None) -> str:
    """What an audit says about one adversary."""
    if found is None or found.get("not_audited"):
        return "not audited"
    epsilon = found.get("refuted_epsilon")
    bound = f"{epsilon:.4g}" if isinstance(epsilon, int | float) else "infinite"
    return f"{found.get('verdict')}: at least {bound}"


def _ruler(view: RunView) -> Chart | None:
    if not view.statement.holds or not view.statement.exposures:
        return None
    rows = [(one.who, one.epsilon, one.replace_one) for one in view.statement.exposures]
    return adversary_chart(rows, view.statement.delta)


@dataclass(frozen=True)
class Tile:
    """A number of the headline."""

    label: str
    value: str
    note: str


def _tiles(view: RunView) -> list[Tile]:
    statement = view.statement
    tiles = [Tile(metric_name(name), show_metric(name, value), "test records") for name, value in view.metrics.items()]
    note = f"at delta {statement.delta:g}" if statement.holds else "no guarantee"
    if statement.holds and statement.simulated:
        note += ", simulated noise"
    tiles = [*tiles[:3], Tile("Epsilon", shown_epsilon(statement), note)]
    if statement.holds:
        guess = show_guess(statement.epsilon, statement.delta)
        secret = "with secret noise" if statement.simulated else "from 50:50"
        tiles.append(Tile("A guess is right", f"≤ {guess}" if guess[0].isdigit() else guess, secret))
    return tiles


def _charts(view: RunView) -> list[Chart]:
    """A chart for each metric that rounds have, and one of epsilon."""
    rounds = [one.number for one in view.rounds]
    if len(rounds) < 2:
        return []
    names = [name for name in view.rounds[0].metrics if not name.startswith("holdout_")]
    charts = []
    for colour, name in enumerate(names):
        values = [one.metrics.get(name, math.nan) for one in view.rounds]
        lines = [Series(metric_name(name), values, colour)]
        if name == "loss" and view.constant_loss is not None:
            constant = [view.constant_loss] * len(rounds)
            lines.append(Series("Always predicting the base rate", constant, len(names) + 1, dashed=True))
        charts.append(line_chart(name, metric_name(name), rounds, lines))
    if view.statement.holds:
        spent = Series("Epsilon spent", [one.epsilon for one in view.rounds], len(names))
        charts.append(line_chart("epsilon", "Epsilon spent", rounds, [spent]))
    return charts


def _key(groups: Sequence[SeedGroup]) -> list[tuple[str, int, bool]]:
    """What the colours of the frontier mean: a label, a colour, and whether points are hollow."""
    shown = zip(groups, colours(groups), strict=True)
    if len(groups) <= MAX_LINES:
        return [(group.label, colour, group.unit != "user") for group, colour in shown]
    return list({group.first.method: (group.first.method, c, group.unit != "user") for group, c in shown}.values())


def _notes(groups: Sequence[SeedGroup]) -> list[str]:
    """What must stand beside the table of a comparison."""
    notes = []
    statements = [run.statement for group in groups for run in group.runs]
    if any(one.simulated and one.holds for one in statements):
        notes.append("The noise of some of these runs was generated from run.seed: their epsilons are no guarantee.")
    if len({one.delta for one in statements if one.holds}) > 1:
        notes.append("These epsilons are at different deltas: see each run's statement before comparing them.")
    if units := sorted({str(group.unit) for group in groups if group.unit in ("record", "client")}):
        notes.append(
            f"({', '.join(units)}): an epsilon of a single {' or '.join(units)}, drawn as a hollow point. It cannot be "
            "compared with an epsilon of a person."
        )
    if by := sorted({name for one in statements for name in one.asserted_by}):
        notes.append(f"Asserted by {', '.join(by)}, not proven by uldp.")
    notes.append("Metrics are of the test records. No epsilon covers a choice that was made by looking at them.")
    return notes


def _script_data(charts: Sequence[Chart]) -> dict[str, Any]:
    return {chart.key: chart.data for chart in charts if chart.data}


@cache
def environment() -> Environment:
    """The templates of the package; everything that is put into a page is escaped."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    made = Environment(
        loader=PackageLoader("uldp.reports"),
        autoescape=lambda name: name is not None and name.endswith(".html"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters.update(metric_name=metric_name, epsilon=show_epsilon)
    made.globals["show_metric"] = show_metric
    return made


def _render(template: str, **what: Any) -> str:
    return environment().get_template(template).render(**what)
