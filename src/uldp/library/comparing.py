"""Several methods on the same people and seeds: a data frame, a figure, and what all runs cost together."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from html import escape
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Unpack

from uldp.errors import ConfigError, error_context, format_value, warn_caller
from uldp.experiment.build import PreparedExperiment
from uldp.experiment.config import Experiment
from uldp.experiment.sweeps import Vary, check_vary, grid
from uldp.library.arguments import CallArguments, Settings, method_name
from uldp.library.progress import progress_bar
from uldp.library.training import checked_path, warnings_after, warnings_before
from uldp.limits import MAX_REPEATS, check_whole
from uldp.methods.base import Method, settings
from uldp.privacy.sentences import NOT_SECRET, show_epsilon
from uldp.reports.figures import comparison_figure, save_figure
from uldp.reports.sweeps import sweep_figure
from uldp.runs.directory import RunDirectory
from uldp.runtimes import compare as runtime
from uldp.runtimes.compare import ComparisonTotal, MethodRuns, OnRun
from uldp.runtimes.result import OnRound, Result, checked_metric, metric_names

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from uldp.library.arguments import Silos

NO_VARIATION: Final[Vary] = MappingProxyType({})
Methods = Sequence[Method | str] | Mapping[str, Method | str]
Warn = Callable[[str], object]


def compare(
    silos: Silos,
    methods: Methods,
    *,
    vary: Vary = NO_VARIATION,
    repeats: int = 1,
    directory: Path | str | None = None,
    progress: bool | None = None,
    **what: Unpack[Settings],
) -> Comparison:
    """Train several methods on the same people, with the same budget and the same seeds.

    On your own data every run is a release: the comparison's ``total`` says what all of them cost together.

    Args:
        silos: As for :func:`train`.
        methods: Names or :class:`uldp.Method` objects; or a mapping from what you call them.
        vary: Lists of values by setting, such as ``{"method.sample_rate": [0.1, 0.5]}``: every method is trained with
            every combination (of the settings that it has).
        repeats: How many seeds for each method, from ``seed`` up.
        directory: A folder with one run directory per method, combination and seed. What it holds already is not
            trained again, and methods, values and seeds can be added.
        progress: Whether to show a progress bar; by default in terminals and notebooks.
        what: As for :func:`train`, without ``method``.

    Returns:
        The results: a data frame (``frame``), a figure (``plot()``), and all results by method (``results``).

    Raises:
        InputError: Arguments, data or model are wrong; nothing was trained.

    Example:
        >>> comparison = compare("synthetic", ["uldp-avg", "uldp-sgd"], noise_multiplier=5.0, rounds=2)
        >>> list(comparison.frame.index), round(comparison.total.epsilon, 2)
        (['uldp-avg', 'uldp-sgd'], 1.55)
        >>> swept = compare("synthetic", ["uldp-avg"], vary={"data.silos": [2, 5]}, noise_multiplier=5.0, rounds=1)
        >>> swept.frame["data.silos"].to_dict()
        {'uldp-avg silos=2': 2, 'uldp-avg silos=5': 5}
    """
    check_whole(repeats, 1, MAX_REPEATS, "repeats")
    if "method" in what:
        raise ConfigError("name the methods in `methods`", location="method")
    labelled = label_methods(methods)
    check_vary(vary, [method_name(method) for method in labelled.values()])
    if not {"epsilon", "noise_multiplier"} & what.keys():  # one that is varied need not be given besides
        for key in ("epsilon", "noise_multiplier"):
            if listed := vary.get(f"privacy.{key}"):
                what = {**what, key: listed[0]}  # type: ignore[misc]
    variants: list[ComparedVariant] = []
    base = None if isinstance(silos, str) else CallArguments.of(silos, what, "compare")
    for name, method in labelled.items():
        with error_context(f"method {name}"):
            request = (
                base.with_method(method) if base else CallArguments.of(silos, {**what, "method": method}, "compare")
            )
            for label, values in grid(vary, method_name(method)).items():
                one = request.with_values(values).experiment
                variants.append(ComparedVariant(" ".join(filter(None, (name, label))), one, values))
    folder = None if directory is None else RunDirectory(checked_path(directory))
    return run_comparison(variants, repeats, folder, request, progress)


@dataclass(frozen=True)
class ComparedVariant:
    """What is compared: a method, in a sweep with one combination of values. ``experiment`` has the first seed."""

    name: str
    experiment: Experiment
    values: Mapping[str, Any]


def run_comparison(
    variants: Sequence[ComparedVariant],
    repeats: int,
    folder: RunDirectory | None,
    request: CallArguments | None = None,
    progress: bool | None = None,
    warn: Warn | None = None,
) -> Comparison:
    """The comparison of these variants."""
    say = warn or warn_caller
    if len({runtime.folder_name(one.name) for one in variants}) < len(variants):
        raise ConfigError("names and values must differ in letters, digits or one of .=+-", location="comparison")
    firsts = {one.name: one.experiment for one in variants}
    experiments = {
        name: [first.with_seed(first.run.seed + repeat) for repeat in range(repeats)] for name, first in firsts.items()
    }
    shown = _show_warnings_and_progress(progress, say)
    values = {one.name: one.values for one in variants}
    found = runtime.compare(experiments, folder, shown, None if request is None else request.prepare, values)
    for series in found.methods:
        for experiment, result in zip(experiments[series.method], series.results, strict=True):
            for text in warnings_after(result, experiment.method.rounds):
                say(f"{series.method} seed {experiment.run.seed}: {text}")
    comparison = Comparison(found.methods, found.total, None if folder is None else str(folder.path))
    if folder is not None:
        if comparison.metrics:
            comparison.picture = save_figure(comparison.plot(), folder.path / "comparison.png")
            if swept := comparison.plot_sweep():
                comparison.picture = save_figure(swept, folder.path / "sweep.png")
        folder.write_json("result.json", comparison.to_json())
    return comparison


def _show_warnings_and_progress(progress: bool | None, warn: Warn) -> OnRun:
    """Before each run its warnings, each once; then its progress."""
    said: set[str] = set()

    @contextmanager
    def shown_run(prepared: PreparedExperiment) -> Iterator[OnRound | None]:
        for text in warnings_before(prepared):
            if text not in said:
                warn(text)
            said.add(text)
        experiment = prepared.experiment
        label = f"{experiment.method_name} seed {experiment.run.seed}"
        with progress_bar(label, experiment.method.rounds, progress) as bar:
            yield bar

    return shown_run


def label_methods(methods: Methods) -> dict[str, Method | str]:
    """The methods by what they are called: their names, with the settings in which namesakes differ."""
    if isinstance(methods, Mapping):
        labelled = {str(name): method for name, method in methods.items()}
    elif isinstance(methods, str | Method) or not isinstance(methods, Sequence):
        raise ConfigError(f"a list of names or uldp.Method objects, not {format_value(methods)}", location="methods")
    else:
        names = [method_name(method) for method in methods]
        times = Counter(names)
        alike = {name: [m for m, n in zip(methods, names, strict=True) if n == name] for name in times}
        labels = [_distinguish(m, n, alike[n]) for m, n in zip(methods, names, strict=True)]
        if twice := [label for label, times in Counter(labels).items() if times > 1]:
            raise ConfigError(f"{twice[0]} is there twice; name each method once", location="methods")
        labelled = dict(zip(labels, methods, strict=True))
    if not labelled:
        raise ConfigError("name at least one method", location="methods")
    return labelled


def _distinguish(method: Method | str, name: str, alike: Sequence[Method | str]) -> str:
    """``uldp-avg clip=0.1`` beside ``uldp-avg clip=0.5``."""
    if isinstance(method, str) or len(alike) == 1:
        return name
    others = [other for other in alike if isinstance(other, Method)]
    own = {key: getattr(method, key) for key in settings(type(method))}
    differ = [key for key, value in own.items() if any(getattr(other, key) != value for other in others)]
    return " ".join([name, *(f"{key}={own[key]:g}" if _is_number(own[key]) else f"{key}={own[key]}" for key in differ)])


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


@dataclass(repr=False)
class Comparison:
    """Several methods side by side. Made by :func:`compare`; shown as a table in a notebook.

    Args:
        methods: The runs of each method.
        total: What all runs cost together (of the whole folder, where there is one).
        folder: Where the run directories are.
        picture: The file of the figure, where there is one.

    Example:
        >>> comparison = compare("synthetic", {"all": "uldp-avg", "weighted": "uldp-avg-w"}, epsilon=3.0, rounds=2)
        >>> comparison.results["weighted"][0].method, "accuracy" in comparison.frame.columns
        ('uldp-avg-w', True)
    """

    methods: tuple[MethodRuns, ...]
    total: ComparisonTotal
    folder: str | None = None
    picture: Path | None = None

    @property
    def results(self) -> dict[str, tuple[Result, ...]]:
        """The results of each method, one per seed."""
        return {series.method: series.results for series in self.methods}

    @cached_property
    def metrics(self) -> list[str]:
        """The names of the metrics, the first one first."""
        return metric_names(self.methods[0].metrics)

    @cached_property
    def frame(self) -> pd.DataFrame:
        """One row per method (and combination of varied settings, in columns of their own).

        Metrics (mean over the seeds; with several also ``_std``), epsilon, server's epsilon.
        """
        import pandas as pd

        rows = []
        for series in self.methods:
            row: dict[str, Any] = {"method": series.method, **dict.fromkeys(self.varied), **series.values}
            for name in self.metrics:
                mean, deviation = series.metrics.get(name, (math.nan, None))
                row |= {name: mean} | ({} if deviation is None else {f"{name}_std": deviation})
            spent = {
                "epsilon": series.epsilon,
                "server_epsilon": series.server_epsilon,
                "privacy_unit": series.privacy_unit,
            }
            rows.append(row | spent | {"seconds": series.seconds})
        return pd.DataFrame(rows).set_index("method")

    @property
    def varied(self) -> list[str]:
        """The settings that are varied."""
        return list(dict.fromkeys(key for series in self.methods for key in series.values))

    def plot(self, metric: str = "") -> Figure:
        """Test metric and loss (mean, and a band of one standard deviation) and epsilon over the rounds.

        Args:
            metric: Which one, such as ``accuracy``; by default the task's own.
        """
        return comparison_figure(self.methods, checked_metric(metric, self.methods[0].metrics))

    def plot_sweep(self, metric: str = "", setting: str = "") -> Figure | None:
        """Metric and loss at the end over a varied setting, and the metric over epsilon; None if nothing is varied.

        Args:
            metric: Of the first and the last panel; by default the first one.
            setting: By default the first one that is a number.

        Raises:
            ConfigError: No such metric, or a setting that is not varied.
        """
        if not self.varied:
            return None
        if setting and setting not in self.varied:
            reason = f"{setting!r} is not varied. Varied: {', '.join(self.varied)}"
            raise ConfigError(reason, location="setting", value=setting)
        chosen = setting or next((key for key in self.varied if self._numeric(key)), self.varied[0])
        return sweep_figure(self.methods, checked_metric(metric, self.methods[0].metrics), chosen)

    def _numeric(self, key: str) -> bool:
        return all(_is_number(series.values.get(key, 0)) for series in self.methods)

    def rows(self) -> list[tuple[str, ...]]:
        """The table for people, without its head."""
        rows = []
        for series in self.methods:
            values = [_cell(series.metrics.get(name)) for name in self.metrics]
            unit = f" ({series.privacy_unit})" if series.privacy_unit in ("record", "client") else ""
            epsilon, server = show_epsilon(series.epsilon), show_epsilon(series.server_epsilon) + series.server_mark
            rows.append((series.method, *values, epsilon + unit, server + unit, f"{series.seconds:.1f} s"))
        return rows

    @property
    def head(self) -> tuple[str, ...]:
        return ("method", *self.metrics, "epsilon", "server", "time per run")

    @property
    def title(self) -> str:
        results = [series.results[0] for series in self.methods]
        repeats = len(self.methods[0].results)
        seeds = "1 seed" if repeats == 1 else f"{repeats} seeds, mean and standard deviation"
        datasets = ", ".join(dict.fromkeys(result.dataset for result in results))
        rounds = sorted({result.rounds for result in results})
        span = str(rounds[0]) if len(rounds) == 1 else f"{rounds[0]} to {rounds[-1]}"
        return f"{datasets}: {span} rounds, {seeds}"

    def notes(self) -> list[str]:
        """What must stand beside the table."""
        found, units = [], {series.privacy_unit for series in self.methods}
        if self.total.simulated and any(series.results[0].statement.holds for series in self.methods):
            found.append(f"{NOT_SECRET}.")
        by = {name for series in self.methods for name in series.results[0].statement.asserted_by}
        if by := by | set(self.total.asserted_by):
            found.append(f"Asserted by {', '.join(sorted(by))}, not proven by uldp.")
        if units != {"client"}:
            found.append(
                "epsilon is towards anyone who sees the released models of one run; server is towards the server."
            )
        if "client" in units:
            found.append(
                "(client): a client's, whose values are perturbed before anybody sees them; epsilon is everybody's, "
                "server is less only behind a shuffler."
            )
        if any(series.server_mark for series in self.methods):
            found.append("* of the noised numbers: the server also sees record counts, and no epsilon covers those.")
        return found

    def together(self) -> str:
        """What all runs cost together, in words."""
        return self.total.together(self.folder or "")

    def to_json(self) -> dict[str, Any]:
        """The document of ``uldp compare --json``."""
        return {
            "results": [series.to_json() for series in self.methods],
            "total": self.total.to_json(),
            "figure": None if self.picture is None else str(self.picture),
            "folder": self.folder,
        }

    def __repr__(self) -> str:
        shown = "; ".join(", ".join(filter(None, row)) for row in self.rows())
        return f"<Comparison: {self.title}: {shown}>"

    def __str__(self) -> str:
        return "\n".join([self.title, self.frame.to_string(), *self.notes(), self.together()])

    def _repr_html_(self) -> str:
        head = "".join(f"<th>{escape(name)}</th>" for name in self.head)
        body = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in self.rows())
        lines = "".join(f"<p>{escape(line)}</p>" for line in [*self.notes(), self.together()])
        return f"<b>{escape(self.title)}</b><table><tr>{head}</tr>{body}</table>{lines}"


def _cell(value: tuple[float, float | None] | None) -> str:
    if value is None:
        return ""
    mean, deviation = value
    return f"{mean:.4f}" if deviation is None else f"{mean:.4f} ± {deviation:.4f}"
