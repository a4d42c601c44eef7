"""What several runs on the same people cost together: run directories, results in memory, or both."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from uldp.errors import ConfigError, format_value
from uldp.experiment.config import Experiment
from uldp.privacy.accountants import check_delta
from uldp.privacy.sentences import NOT_SECRET, finite_or_infinite, show_epsilon
from uldp.runs import spending
from uldp.runs.directory import RunDirectory
from uldp.runs.totals import SpentRun, group_runs, no_runs, runs_below
from uldp.runtimes.result import Result

if TYPE_CHECKING:
    import pandas as pd

APART: Final = (
    "These totals are about different people: no id is in two of them (by keyed digests in the runs' private folders), "
    "or they are of different data sets. A person who has another id in other tables is not recognised: give such "
    "experiments the same data.population, or add the totals up."
)


def total(*runs: Result | Path | str | Sequence[Result], delta: float = 0.0) -> Total:
    """Add up the privacy that runs on the same people have spent: trials, comparisons and tuning count too.

    Args:
        runs: Results (or lists of them), run directories, or folders that hold some at any depth. Without any: all
            that this process has trained or loaded.
        delta: Of the total; 0 takes the smallest delta of the runs.

    Returns:
        A total for each group of runs that are, or may be, about the same people.

    Raises:
        RunError: A folder holds no run, or a run's files are damaged.

    Example:
        >>> from uldp import train
        >>> first = train("synthetic", epsilon=3.0, rounds=2)
        >>> second = train("synthetic", epsilon=3.0, rounds=2)
        >>> round(total(first).epsilon, 2), round(total(first, second).epsilon, 2)
        (3.0, 4.46)
    """
    if delta:
        check_delta(delta)
    return add_up(_collect_runs(runs), delta)


def add_up(runs: list[SpentRun], delta: float = 0.0) -> Total:
    """The totals of these runs."""
    return Total(tuple(GroupTotal(group.to_json(delta)) for group in group_runs(runs)))


def read_runs(
    folders: list[Path], load: Callable[[RunDirectory], Experiment] = RunDirectory.experiment
) -> list[SpentRun]:
    """All runs below these folders."""
    paths = sorted({path.resolve() for folder in folders for path in runs_below(folder)})
    if not paths:
        raise no_runs(", ".join(str(folder) for folder in folders))
    return [SpentRun.read(path, load) for path in paths]


def _collect_runs(runs: Sequence[object]) -> list[SpentRun]:
    """Every run once: as it was last charged in this process, and as its directory says."""
    folders, found = [], {}
    for one in _flat(runs):
        if isinstance(one, Result):
            if one.spent is None:
                reason = "the silos of this run are elsewhere; give its run directory instead of its result"
                raise ConfigError(reason, location="runs")
            latest = spending.latest(one.spent)
            found[latest.identity] = latest
        elif isinstance(one, Path | str):
            folders.append(Path(one))
        else:
            raise ConfigError(f"results or run directories, not {format_value(one)}", location="runs")
    if not runs:
        found = {run.identity: run for run in spending.all_runs()}
    for run in read_runs(folders) if folders else []:
        known = found.get(run.identity)
        if known is None or known.releases <= run.releases:
            found[run.identity] = run
    return list(found.values())


def _flat(runs: Iterable[Any]) -> Iterator[Any]:
    for one in runs:
        if isinstance(one, list | tuple):
            yield from _flat(one)
        else:
            yield one


@dataclass(frozen=True)
class GroupTotal:
    """Runs that are, or may be, about the same people. ``summary`` is their part of ``uldp total --json``."""

    summary: dict[str, Any]

    @property
    def epsilon(self) -> float:
        """Of a person whose records were in all of these runs, against anyone who sees the released models."""
        return finite_or_infinite(self.summary["epsilon"])

    @property
    def delta(self) -> float:
        return float(self.summary["delta"])

    @property
    def title(self) -> str:
        return f"on {self.summary['data']}"

    @property
    def _simulated(self) -> bool:
        return any(run["noise"] == "simulated" and run["epsilon"] is not None for run in self.summary["runs"])

    def rows(self) -> list[tuple[str, str, str, str]]:
        """(run, method, rounds, epsilon) of each run, for people."""
        rows = []
        for run in self.summary["runs"]:
            marks = [run["unit"]] if run["unit"] == "client" else []
            if run["noise"] == "simulated" and run["epsilon"] is not None:
                marks.append("simulated noise")
            mark = f" ({', '.join(marks)})" if marks else ""
            rows.append((run["run"], run["method"], str(run["rounds"]), _format_epsilon(run) + mark))
        return rows

    def sentences(self) -> list[str]:
        """The total in words, with what must stand beside it."""
        found, lines = self.summary, []
        if any(run["unit"] != "client" for run in found["runs"]):
            lines.append(
                f"together: epsilon {_format_epsilon(found)} at delta {found['delta']:g}, towards anyone who sees the "
                "released models, for a person whose records were in all of them."
            )
            if found["hashed"]:
                lines.append(
                    "(ids were hashed: for two people who share a bucket the larger numbers hold that each run's "
                    "statement gives under replace-one adjacency)"
                )
        lines += self._why_unbounded()
        if by := {*found["asserted_by"], *(found["clients"] or {}).get("asserted_by", [])}:
            lines.append(f"Asserted by {', '.join(sorted(by))}, not proven by uldp.")
        lines += [
            f"(added up because nobody knows that they are about different people: {why})" for why in found["doubts"]
        ]
        if clients := found["clients"]:
            number = len(clients["runs"])
            runs = f"{number} client-level runs" if number > 1 else "one client-level run"
            lines.append(
                f"{runs}: epsilon {_format_epsilon(clients)} at delta {clients['delta']:g}, towards everybody, for a "
                "client that was in all of them; s times as much for a person with records at s clients."
            )
        return [*lines, f"{NOT_SECRET} (where it is marked as simulated)."] if self._simulated else lines

    def _why_unbounded(self) -> list[str]:
        """Why a person's total is infinite."""
        of_people = [run for run in self.summary["runs"] if run["unit"] != "client"]
        if len({run["noise"] for run in self.summary["runs"]}) > 1 and self.summary["epsilon"] is None:
            return ["(infinite: the noise of some runs was generated from their seeds)"]
        if any(run["epsilon"] is None or run["unit"] == "record" for run in of_people):
            return ["(infinite: a run without noise or guarantee, or one that protects records and not people)"]
        if of_people and self.summary["clients"]:
            return ["(infinite: some runs protect clients, and a person may have records with several)"]
        return []


@dataclass(frozen=True, repr=False)
class Total:
    """What several runs cost together. Made by :func:`total`; shown as a table in a notebook.

    Args:
        groups: A total for each group of runs that are, or may be, about the same people.

    Example:
        >>> from uldp import train
        >>> found = total(train("synthetic", epsilon=3.0, rounds=2))
        >>> len(found.groups), found.groups[0].delta
        (1, 1e-05)
    """

    groups: tuple[GroupTotal, ...]

    @property
    def epsilon(self) -> float:
        """The largest of the groups' epsilons; 0 where nothing was released."""
        return max((group.epsilon for group in self.groups), default=0.0)

    @property
    def frame(self) -> pd.DataFrame:
        """One row per run: on whose data, what it released."""
        import pandas as pd

        columns = ("data", "run", "method", "unit", "rounds", "epsilon", "delta", "noise")
        rows = [
            {**run, "data": group.summary["data"], "epsilon": finite_or_infinite(run["epsilon"])}
            for group in self.groups
            for run in group.summary["runs"]
        ]
        return pd.DataFrame(rows, columns=list(columns))

    @property
    def group_note(self) -> str | None:
        """What several groups mean."""
        return APART if len(self.groups) > 1 else None

    def to_json(self) -> dict[str, Any]:
        """The document of ``uldp total --json``."""
        return {"totals": [group.summary for group in self.groups], "apart": self.group_note}

    def __str__(self) -> str:
        lines = []
        for group in self.groups:
            rows = [f"  {run}: {method}, {rounds} rounds, epsilon {e}" for run, method, rounds, e in group.rows()]
            lines += [group.title, *rows, *group.sentences()]
        return "\n".join([*lines, *([self.group_note] if self.group_note else [])]) or "nothing was released"

    def __repr__(self) -> str:
        spent = ", ".join(f"epsilon {show_epsilon(one.epsilon)} {one.title}" for one in self.groups)
        return f"<Total: {spent or 'nothing was released'}>"

    def _repr_html_(self) -> str:
        parts = []
        for group in self.groups:
            head = "<tr><th>run</th><th>method</th><th>rounds</th><th>epsilon</th></tr>"
            rows = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in group.rows())
            lines = "".join(f"<p>{escape(line)}</p>" for line in group.sentences())
            parts.append(f"<b>{escape(group.title)}</b><table>{head}{rows}</table>{lines}")
        return "".join(parts) + (f"<p>{escape(self.group_note)}</p>" if self.group_note else "")


def _format_epsilon(privacy: dict[str, Any]) -> str:
    return show_epsilon(finite_or_infinite(privacy["epsilon"]))
