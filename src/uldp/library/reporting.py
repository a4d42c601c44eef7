"""Reports from Python and from the command line: run directories, folders of them, results and comparisons."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from uldp.data.federation import Federation
from uldp.errors import ConfigError, RunError, format_value
from uldp.experiment.loading import load_federation
from uldp.library.comparing import Comparison
from uldp.reports.holdings import Holdings
from uldp.reports.view import RunView
from uldp.runs.directory import RunDirectory
from uldp.runs.totals import runs_below
from uldp.runtimes.compare import Released, add_up
from uldp.runtimes.reporting import (
    Written,
    check_targets,
    view_of_directory,
    view_of_result,
    write_comparison,
    write_holder_report,
    write_run_report,
)
from uldp.runtimes.result import Result

NAME: Final = "report.html"
MAX_RUNS: Final = 2000


def report(
    *runs: Result | Comparison | Path | str,
    path: Path | str | None = None,
    holder: bool | Federation = False,
    force: bool = False,
) -> Path:
    """Write a page about one run, or about several side by side. It opens from disk and loads nothing.

    The page of one run comes with a model card (``.md``). It holds only what may be shown: settings, ledger, test
    metrics, and the privacy statement.

    Args:
        runs: Run directories, folders that hold some (such as a comparison's), results or comparisons.
        path: A file that ends in ``.html``; by default ``report.html`` in the run directory or folder.
        holder: Also show how many records people have in which silo. That page is for the holder of the data only:
            by default it is written to the run's private folder. A :class:`uldp.Federation` where the data are in
            memory.
        force: Replace files that are there.

    Returns:
        The path of the page.

    Raises:
        RunError: There is no finished run of this version, or the file is there already; nothing was written.

    Example:
        >>> import tempfile, uldp
        >>> result = uldp.train("synthetic", epsilon=3.0, rounds=2)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     page = uldp.report(result, path=f"{folder}/report.html")
        ...     page.name, sorted(file.name for file in page.parent.iterdir())
        ('report.html', ['report.html', 'report.md'])
    """
    return make_report(runs, path, holder, force=force).page


def make_report(
    runs: Sequence[object],
    path: Path | str | None,
    holder: bool | Federation = False,
    *,
    registry: bool = False,
    force: bool = False,
) -> Written:
    """The report of these runs, with the files that were written."""
    found = _flat(runs)
    if len(found) > 1 and (registry or holder is not False):
        option = "--registry" if registry else "--holder"
        raise ConfigError("is about one run; name a single run directory", location=option)
    target = _target(runs, found, path, holder is not False)
    if len(found) > 1:
        check_targets(target, (), force=force)
        views = [_view(one) for one in found]
        data = sorted({view.dataset for view in views})
        if len(data) > 1:
            reason = f"these runs are about different data ({', '.join(data)}); report each on its own"
            raise ConfigError(reason, location="runs")
        return write_comparison(views, target, spent_together(views), force=force)
    if holder is False:
        return write_run_report(_view(found[0]), target, registry=registry, force=force)
    if registry:
        raise ConfigError("is for what may be shown; leave --holder out", location="--registry")
    check_targets(target, (), force=force)
    _check_holder_target(target, found[0])
    return write_holder_report(_view(found[0]), _holdings(found[0], holder), target, force=force)


def _view(run: Result | Path) -> RunView:
    return view_of_result(run) if isinstance(run, Result) else view_of_directory(run)


def spent_together(views: Sequence[RunView]) -> str:
    """What these runs cost a person who is in all of them, by their ledgers."""
    private = [view for view in views if view.statement.privacy_unit == "user" and view.statement.holds]
    if len({view.statement.simulated for view in private}) > 1:
        return (
            "The noise of some of these runs is secret, that of others was generated from their seeds: for a person "
            "in all of them nothing is guaranteed together."
        )
    released: Released = Counter()
    for number, view in enumerate(views):
        if view.released:
            released[str(number), frozenset(view.released.items())] += 1
    protected = {str(number): view.statement.asserted_by for number, view in enumerate(views) if view in private}
    delta = min(view.statement.delta for view in views)
    total = add_up(released, protected, delta, simulated=any(view.statement.simulated for view in private))
    return total.together()


def _flat(runs: Sequence[object]) -> list[Result | Path]:
    """Every run once, folders and comparisons opened."""
    found: list[Result | Path] = []
    for one in runs:
        if isinstance(one, Result):
            found.append(one)
        elif isinstance(one, Comparison):
            found += [result for series in one.methods for result in series.results]
        elif isinstance(one, Path | str):
            found += _directories(Path(one))
        else:
            raise ConfigError(f"run directories, results or comparisons, not {format_value(one)}", location="runs")
    if not found:
        raise ConfigError("name at least one run", location="runs")
    if len(found) > MAX_RUNS:
        raise ConfigError(f"at most {MAX_RUNS:,} runs on a page, not {len(found):,}", location="runs", value=len(found))
    paths = [one.resolve() for one in found if isinstance(one, Path)]
    if twice := [path for path, times in Counter(paths).items() if times > 1]:
        raise ConfigError("is given twice; name each run once", location=str(twice[0]), value=str(twice[0]))
    return found


def _directories(path: Path) -> list[Path]:
    """A run directory, or those below a folder."""
    if not path.is_dir() or RunDirectory(path).is_started:
        return [path]
    below = sorted(runs_below(path))
    if not below:
        why = "is not a run directory, and holds none (a folder with experiment.json)"
        raise RunError(why, location=str(path), value=str(path))
    return below


def _target(runs: Sequence[object], found: Sequence[object], path: object, private: bool) -> Any:
    """Where the page goes; by default into the run directory or the folder that was given."""
    if path is not None:
        return path
    if len(runs) > 1 or not isinstance(runs[0], Path | str):
        raise ConfigError("say where the page goes: a file that ends in .html", location="--out")
    folder = Path(runs[0])
    if len(found) == 1 and isinstance(found[0], Path):
        folder = found[0]
        RunDirectory.open(folder)
    return (folder / "private" if private else folder) / NAME


def _check_holder_target(target: Any, run: Result | Path) -> None:
    """A page with record counts does not go among files that may be shown."""
    folder = Path(target).resolve().parent
    if (folder / "experiment.json").exists() or (isinstance(run, Path) and folder == run.resolve()):
        why = "what lies at the top of a run directory may be shown; write a holder's page to its private folder"
        raise ConfigError(why, location="--out", value=str(target))


def _holdings(run: Result | Path, holder: bool | Federation) -> Holdings:
    """How records lie over users and silos."""
    if isinstance(holder, Federation):
        return Holdings.of(holder)
    if isinstance(run, Result):
        raise ConfigError("the data of this result are in memory; hand the Federation over", location="holder")
    directory = RunDirectory.open(run)
    if directory.is_served:
        raise RunError("the records of this run are with its silos, not here", location=str(run), value=str(run))
    return Holdings.of(load_federation(directory.experiment()))
