"""Reports: what may be shown of a run is read, rendered as a page, and written with a model card beside it.

Nothing is imported that a run names, no record is read, and nothing in ``private`` is: the page of a run directory is
the same with and without that folder.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from uldp.errors import ConfigError, RunError, format_value
from uldp.experiment.config import in_todays_words
from uldp.privacy.ledger import Entry, Ledger
from uldp.privacy.statement import Statement
from uldp.reports.card import model_card
from uldp.reports.holdings import Holdings
from uldp.reports.page import comparison_page, run_page
from uldp.reports.view import Round, RunView
from uldp.runs.directory import RunDirectory, versions
from uldp.runs.files import replace_file, report_disk_errors
from uldp.runtimes.result import RoundReport, metric_names

if TYPE_CHECKING:
    from uldp.runtimes.result import Result

AUDIT: Final = "audit.json"
"""Of a run directory: what ``uldp audit RUN`` found."""
PAGE: Final = ".html"
CARD: Final = ".md"


@dataclass(frozen=True)
class Written:
    """The files of a report."""

    page: Path
    card: Path | None

    def to_json(self) -> dict[str, Any]:
        return {"report": str(self.page), "card": None if self.card is None else str(self.card)}


def view_of_directory(path: Path | str) -> RunView:
    """What may be shown of a finished run.

    Raises:
        RunError: No finished run of this version is there, or its files are damaged.
    """
    directory = RunDirectory.open(path)
    directory.check_version()
    if not directory.finished:
        raise RunError("has no result yet; finish it with `uldp resume`", location=str(path), value=str(path))
    tree, written = in_todays_words(directory.read_json("experiment.json")), directory.read_json("result.json")
    statement = Statement.from_json(directory.read_json("statement.json"))
    audit = directory.read_json(AUDIT) if directory.has(AUDIT) else None
    try:
        planned = int(tree["method"]["rounds"])
        return _view(
            name=directory.path.resolve().name,
            dataset=str(written["dataset"]),
            method=str(written["method"]),
            statement=statement,
            reports=[RoundReport.from_json(line, planned) for line in directory.log.metrics()],
            entries=directory.log.ledger_entries(),
            settings=tree,
            versions={str(key): str(value) for key, value in directory.read_json("versions.json").items()},
            about={
                "planned": planned,
                "silos": tuple(map(str, written.get("silos", ()))),
                "users": written.get("users"),
                "parameters": int(directory.load_model().size) if directory.has("model.npz") else None,
                "no_better": str(written.get("no_better", "")),
                "task": directory.read_json("task.json") if directory.has("task.json") else None,
                "schema": directory.read_json("schema.json") if directory.has("schema.json") else None,
                "audit": _checked_audit(audit, written, statement, str(directory.path / AUDIT)),
            },
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        why = "holds settings or results that this version of uldp does not know; restore it, or train again"
        raise RunError(why, location=str(path), value=str(path)) from error


def view_of_result(result: Result, audit: Mapping[str, Any] | None = None) -> RunView:
    """What may be shown of a result: the same as of the run directory that it would be saved to."""
    if result.spent is None:
        if result.run is None:
            raise RunError("nobody knows this run's settings; report its run directory", location="result")
        return view_of_directory(result.run)
    experiment, fitted = result.spent.people.experiment, result.fitted
    task = None if fitted is None else {"features": list(fitted.feature_shape), **asdict(fitted.task)}
    schema = fitted.schema.to_dict() if fitted is not None and fitted.schema is not None else None
    about = {"method": result.method, "rounds": result.rounds}
    return _view(
        name="" if result.run is None else Path(result.run).resolve().name,
        dataset=result.dataset,
        method=result.method,
        statement=result.statement,
        reports=result.reports,
        entries=result.entries,
        settings=experiment.to_tree(),
        versions=versions(),
        about={
            "planned": experiment.method.rounds,
            "silos": result.silos,
            "users": result.users,
            "parameters": int(result.model.size),
            "no_better": result.no_better,
            "task": task,
            "schema": schema,
            "audit": _checked_audit(audit, about, result.statement, "audit"),
        },
    )


def _view(
    *,
    name: str,
    dataset: str,
    method: str,
    statement: Statement,
    reports: Sequence[RoundReport],
    entries: Sequence[Entry],
    settings: Mapping[str, Any],
    versions: Mapping[str, str],
    about: Mapping[str, Any],
) -> RunView:
    rounds = tuple(
        Round(one.round, {name: one.metrics[name] for name in metric_names(one.metrics)}, one.epsilon, one.missing)
        for one in reports
    )
    ledger = Ledger(statement.delta, None, tuple(entries))
    return RunView(
        name=name,
        dataset=dataset,
        method=method,
        statement=statement,
        rounds=rounds,
        settings={key: part for key, part in settings.items() if key not in ("name", "base")},
        versions=versions,
        released=dict(ledger.composition()),
        **about,
    )


def _checked_audit(
    audit: Mapping[str, Any] | None, run: Mapping[str, Any], statement: Statement, location: str
) -> Mapping[str, Any] | None:
    """The audit, if it is about this run's experiment, and on synthetic people."""
    if audit is None:
        return None
    own = (run.get("method"), run.get("rounds"), statement.delta)
    if (audit.get("method"), audit.get("rounds"), audit.get("delta")) != own:
        raise RunError("is an audit of another experiment; take it away, or audit this run again", location=location)
    if audit.get("records") != "synthetic":
        raise RunError("was made on real records and is not for a report; audit synthetic people", location=location)
    return audit


def check_target(path: object, *, card: bool, force: bool) -> Path:
    """The page's path, if it and the card beside it can be written."""
    if not isinstance(path, Path | str):
        raise ConfigError(f"the path of a file, not {format_value(path)}", location="path")
    target = Path(path)
    if target.suffix != PAGE:
        raise ConfigError(f"a name that ends in {PAGE}, not {str(target)!r}", location="--out", value=str(target))
    for file in (target, *([target.with_suffix(CARD)] if card else [])):
        with report_disk_errors(file):
            exists, folder = file.exists(), file.parent.is_dir()
            unfit = exists and not file.is_file()
        if unfit or (exists and not force):
            remedy = "choose another name" if unfit else "choose another name, or replace it (--force)"
            raise RunError(f"exists already; {remedy}", location=str(file), value=str(file))
        if not folder:
            raise RunError(f"no folder {str(file.parent)!r}; make it first", location=str(file), value=str(file))
    return target


def write_report(
    views: Sequence[RunView],
    path: Path | str,
    *,
    together: str = "",
    title: str = "",
    held: Holdings | None = None,
    force: bool = False,
) -> Written:
    """Write the page of one run with its card, or of several; with ``held`` it is readable by its owner only."""
    single = len(views) == 1
    shown_card = single and held is None
    target = check_target(path, card=shown_card, force=force)
    page = run_page(views[0], held) if single else comparison_page(views, title, together)
    replace_file(target, page.encode(), mode=0o644 if held is None else 0o600)
    if not shown_card:
        return Written(target, None)
    card = target.with_suffix(CARD)
    replace_file(card, model_card(views[0]).encode(), mode=0o644)
    return Written(target, card)
