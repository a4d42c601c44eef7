"""Reports: what may be shown of a run is read, rendered as a page, and written with a model card beside it.

Nothing is imported that a run names, no record is read, and nothing in ``private`` is: the page of a run directory is
the same with and without that folder.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from uldp.data.schema import Schema
from uldp.errors import ConfigError, RunError, format_value
from uldp.privacy.events import Event
from uldp.privacy.ledger import Entry, Ledger
from uldp.privacy.statement import Statement
from uldp.reports.card import model_card
from uldp.reports.holdings import Holdings
from uldp.reports.page import comparison_page, run_page
from uldp.reports.registry import registry_record
from uldp.reports.view import RoundRow, RunView
from uldp.runs.directory import RunDirectory, versions
from uldp.runs.files import replace_file, report_disk_errors
from uldp.runtimes.result import RoundReport, metric_names

if TYPE_CHECKING:
    from uldp.runtimes.result import Result

AUDIT: Final = "audit.json"
"""Of a run directory: what ``uldp audit RUN`` found."""
PAGE: Final = ".html"
CARD: Final = ".md"
RECORD: Final = ".registry.json"


@dataclass(frozen=True)
class Written:
    """The files of a report."""

    page: Path
    card: Path | None = None
    record: Path | None = None
    missing: tuple[str, ...] = ()
    """What a record of the registry needs besides, and uldp does not know."""

    def to_json(self) -> dict[str, Any]:
        files = {"report": self.page, "card": self.card, "registry": self.record}
        return {name: None if file is None else str(file) for name, file in files.items()}


def view_of_directory(path: Path | str) -> RunView:
    """What may be shown of a finished run.

    Raises:
        RunError: No finished run of this version is there, or its files are damaged.
    """
    directory = RunDirectory.open(path)
    directory.check_version()
    if not directory.finished:
        raise RunError("has no result yet; finish it with `uldp resume`", location=str(path), value=str(path))
    tree, written = directory.read_json("experiment.json"), directory.read_json("result.json")
    statement = Statement.from_json(directory.read_json("statement.json"))
    audit = directory.read_json(AUDIT) if directory.has(AUDIT) else None
    try:
        planned = int(tree["method"]["rounds"])
        return RunView(
            name=directory.path.resolve().name,
            dataset=str(written["dataset"]),
            method=str(written["method"]),
            statement=statement,
            rounds=_rounds(_reports(directory, planned, int(written["rounds"]))),
            planned=planned,
            settings=_settings(tree),
            versions={str(key): str(value) for key, value in directory.read_json("versions.json").items()},
            released=_released(directory.log.ledger_entries(), statement),
            silos=tuple(map(str, written.get("silos", ()))),
            users=None if written.get("users") is None else int(written["users"]),
            parameters=int(directory.load_model().size) if directory.has("model.npz") else None,
            no_better=str(written.get("no_better", "")),
            constant_loss=None if written.get("constant_loss") is None else float(written["constant_loss"]),
            task=directory.read_json("task.json") if directory.has("task.json") else None,
            schema=_schema(directory),
            audit=_checked_audit(audit, written, statement, str(directory.path / AUDIT)),
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
    return RunView(
        name="" if result.run is None else Path(result.run).resolve().name,
        dataset=result.dataset,
        method=result.method,
        statement=result.statement,
        rounds=_rounds(result.reports),
        planned=experiment.method.rounds,
        settings=_settings(experiment.to_tree()),
        versions=versions(),
        released=_released(result.entries, result.statement),
        silos=result.silos,
        users=result.users,
        parameters=int(result.model.size),
        no_better=result.constant_model_note,
        constant_loss=result.constant_loss,
        task=task,
        schema=schema,
        audit=_checked_audit(audit, about, result.statement, "audit"),
    )


def _reports(directory: RunDirectory, planned: int, rounds: int) -> list[RoundReport]:
    """The reports of all rounds, in their order."""
    reports = [RoundReport.from_json(line, planned) for line in directory.log.metrics()]
    if [one.round for one in reports] != list(range(1, rounds + 1)):
        why = f"does not hold the metrics of rounds 1 to {rounds}; restore it, or train again"
        raise RunError(why, location=str(directory.path / "metrics.jsonl"))
    return reports


def _schema(directory: RunDirectory) -> dict[str, Any] | None:
    if not directory.has("schema.json"):
        return None
    location = str(directory.path / "schema.json")
    return Schema.from_dict(directory.read_json("schema.json"), location=location).to_dict()


def _rounds(reports: Sequence[RoundReport]) -> tuple[RoundRow, ...]:
    return tuple(
        RoundRow(one.round, {name: one.metrics[name] for name in metric_names(one.metrics)}, one.epsilon, one.missing)
        for one in reports
    )


def _settings(tree: Mapping[str, Any]) -> dict[str, Any]:
    """The sections of an experiment, without the folders of the machine."""
    sections = {key: part for key, part in tree.items() if key not in ("name", "base")}
    if not all(isinstance(part, Mapping) for part in sections.values()):
        raise TypeError("a section that is no table")
    return sections


def _released(entries: Sequence[Entry], statement: Statement) -> dict[Event, int]:
    return dict(Ledger(statement.delta, None, tuple(entries)).composition())


def _checked_audit(
    audit: Mapping[str, Any] | None, run: Mapping[str, Any], statement: Statement, location: str
) -> Mapping[str, Any] | None:
    """The audit, if it is about this run's experiment, and on synthetic people."""
    if audit is None:
        return None
    own = (run.get("method"), run.get("rounds"), statement.delta)
    if (audit.get("method"), audit.get("rounds"), audit.get("delta")) != own:
        raise RunError("is an audit of another experiment; take it away, or audit this run again", location=location)
    try:
        found = [(str(one["who"]), str(one["verdict"])) for one in audit["adversaries"]]
        found += [(str(one["check"]), str(one["found"])) for one in audit["checks"] if one["failed"] in (True, False)]
        whole = isinstance(audit["headline"], str) and len(found) == len(audit["adversaries"]) + len(audit["checks"])
    except (KeyError, TypeError):
        whole = False
    if not whole:
        raise RunError("is damaged; take it away, or audit this run again", location=location)
    if audit.get("records") != "synthetic":
        raise RunError("was made on real records and is not for a report; audit synthetic people", location=location)
    return audit


def check_targets(path: object, kinds: Sequence[str], *, force: bool) -> Path:
    """The page's path, if it and the files of these kinds beside it can be written."""
    if not isinstance(path, Path | str):
        raise ConfigError(f"the path of a file, not {format_value(path)}", location="path")
    target = Path(path)
    if target.suffix != PAGE:
        raise ConfigError(f"a name that ends in {PAGE}, not {format_value(str(target))}", location="--out")
    for file in (target.with_suffix(kind) for kind in (PAGE, *kinds)):
        with report_disk_errors(file):
            exists, folder = file.exists(), file.parent.is_dir()
            unfit = exists and not file.is_file()
        if unfit or (exists and not force):
            remedy = "choose another name" if unfit else "choose another name, or replace it (--force)"
            raise RunError(f"exists already; {remedy}", location=str(file), value=str(file))
        if not folder:
            raise RunError(f"no folder {str(file.parent)!r}; make it first", location=str(file), value=str(file))
    return target


def write_run_report(view: RunView, path: Path | str, *, registry: bool = False, force: bool = False) -> Written:
    """Write the page of one run with its card and, where it is wanted, a draft for the registry of deployments."""
    target = check_targets(path, (CARD, RECORD) if registry else (CARD,), force=force)
    page, card = run_page(view), model_card(view)
    draft = registry_record(view) if registry else None
    files = {PAGE: page, CARD: card} | ({} if draft is None else {RECORD: json.dumps(draft.record, indent=2) + "\n"})
    for kind, text in files.items():
        replace_file(target.with_suffix(kind), text.encode(), mode=0o644)
    record, missing = (None, ()) if draft is None else (target.with_suffix(RECORD), draft.missing)
    return Written(target, target.with_suffix(CARD), record, missing)


def write_holder_report(view: RunView, held: Holdings, path: Path | str, *, force: bool = False) -> Written:
    """Write the page for the holder of the data, readable by its owner only."""
    target = check_targets(path, (), force=force)
    replace_file(target, run_page(view, held).encode(), mode=0o600)
    return Written(target)


def write_comparison(views: Sequence[RunView], path: Path | str, together: str, *, force: bool = False) -> Written:
    """Write the page of several runs. ``together`` says what they cost."""
    target = check_targets(path, (), force=force)
    title = f"{len(views)} runs on {views[0].dataset}"
    replace_file(target, comparison_page(views, title, together).encode(), mode=0o644)
    return Written(target)
