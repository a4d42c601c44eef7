"""Several methods on the same federation and seeds, side by side. What was trained already is not trained again.

A comparison is a folder with one run per variant and seed. A variant is a method, in a sweep with the values of the
settings that are varied. Variants and seeds may be added to it; what all variants share (data, privacy, the first seed,
but for settings that are varied) stays as it was, and so does each variant. What the runs cost together is counted over
all of them, also those that were asked for at another time.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import statistics
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import msgspec

from uldp.errors import ConfigError, RunError, error_context, first_line
from uldp.experiment.build import PreparedExperiment, prepare
from uldp.experiment.config import Experiment
from uldp.experiment.foreign import foreign_code
from uldp.privacy.accountants import account
from uldp.privacy.events import Event
from uldp.privacy.ledger import Ledger
from uldp.privacy.sentences import finite_or_none, guarantee, noise_kind, show_epsilon
from uldp.protocol.messages import PROTOCOL_VERSION
from uldp.runs.directory import RunDirectory
from uldp.runtimes.result import OnRound, Result
from uldp.runtimes.simulation import run

SETTINGS = "comparison.json"
OWN_SECTIONS: Final = ("method", "model", "aggregation")
"""Of an experiment, what each variant has for itself."""
NOT_VARIED: Final[Mapping[str, Mapping[str, Any]]] = MappingProxyType({})
_TOGETHER = " over all private runs of the folder together"


class ComparisonSettings(msgspec.Struct, forbid_unknown_fields=True):
    """What a folder was begun with: a fingerprint of all that the variants share, and one per variant and seed.

    ``noise`` is the noise multiplier of the methods that have one, ``varied`` are the shared settings that are varied.
    """

    shared: str
    methods: dict[str, list[str]]
    noise: float | None = None
    varied: list[str] = []


@dataclass(frozen=True)
class MethodRuns:
    """One variant's runs, one per seed: ``method`` is what it is called, ``values`` are its settings of the sweep."""

    method: str
    results: tuple[Result, ...]
    values: Mapping[str, Any] = field(default_factory=dict)

    @property
    def epsilon(self) -> float:
        """Of one run, for whoever sees the models."""
        return max(result.epsilon for result in self.results)

    @property
    def privacy_unit(self) -> str | None:
        """What the epsilon is about: a user, a record, or nothing."""
        return self.results[0].statement.privacy_unit

    @property
    def server_epsilon(self) -> float:
        """Of one run, for the server."""
        views = [{view.who: view.epsilon for view in result.statement.exposures} for result in self.results]
        return max(next((found[who] for who in found if "the server" in who), math.inf) for found in views)

    @property
    def server_mark(self) -> str:
        """A star where the server is shown record counts besides."""
        return next((exposure.mark for exposure in self.results[0].statement.exposures[1:2]), "")

    @property
    def metrics(self) -> dict[str, tuple[float, float | None]]:
        """Mean and standard deviation over the seeds (None of a single one), of metrics that every run has."""
        names = [name for name in self.results[0].metrics if all(name in result.metrics for result in self.results)]
        columns = {name: [result.metrics[name] for result in self.results] for name in names}
        return {
            name: (statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else None)
            for name, values in columns.items()
        }

    @property
    def seconds(self) -> float:
        return statistics.fmean(result.seconds for result in self.results)

    def to_json(self) -> dict[str, Any]:
        first = self.results[0]
        return {
            "method": self.method,
            **({"values": dict(self.values)} if self.values else {}),
            "dataset": first.dataset,
            "repeats": len(self.results),
            "rounds": first.rounds,
            "metrics": {name: mean for name, (mean, _) in self.metrics.items()},
            "deviations": {name: deviation for name, (_, deviation) in self.metrics.items()},
            "privacy": {
                "guarantee": first.statement.headline(),
                "noise": first.statement.noise,
                "epsilon": finite_or_none(self.epsilon),
                "server_epsilon": finite_or_none(self.server_epsilon),
                "delta": first.statement.delta,
            },
            "statement": first.statement.to_json(),
            "runs": [result.to_json() for result in self.results],
        }


@dataclass(frozen=True)
class ComparisonTotal:
    """What a person faces whose records were in all ``runs`` of a folder, at one run's delta.

    ``epsilon`` is of all of them, ``private_epsilon`` of those that protect a whole person at all.
    """

    runs: int
    private_runs: int
    epsilon: float
    private_epsilon: float
    delta: float
    simulated: bool
    asserted_by: tuple[str, ...] = ()
    """Methods that are not ours, where ``private_epsilon`` rests on them."""

    def to_json(self) -> dict[str, Any]:
        unit, simulated, by = "user" if self.private_runs else None, self.simulated, self.asserted_by
        words = guarantee(unit, self.private_epsilon, self.delta, simulated=simulated, scope=_TOGETHER, asserted_by=by)
        return {
            "runs": self.runs,
            "private_runs": self.private_runs,
            "guarantee": words,
            "noise": noise_kind(simulated=simulated),
            "epsilon": finite_or_none(self.epsilon),
            "private_epsilon": finite_or_none(self.private_epsilon),
            "delta": self.delta,
            "asserted_by": list(by),
        }

    def together(self, folder: str = "") -> str:
        """The total in words; ``folder`` is where the runs are."""
        if not self.private_runs:
            return "None of these runs protects a whole person: the total is infinite."
        if self.private_runs == 1:
            text = "Each further run on the same data adds to this epsilon, and choosing among the results does too."
        else:
            runs = f"{self.private_runs} private runs" + (f" in {folder}" if folder else "")
            text = (
                f"{f'On real data the {runs} would' if self.simulated else f'The {runs}'} together cost epsilon "
                f"{show_epsilon(self.private_epsilon)} (towards anyone who sees all models, at the same delta), not "
                "the epsilon of one: repeated training adds up, and choosing among the results does too."
            )
        if self.private_runs < self.runs:
            text += " The other runs protect no whole person: with them the total is infinite."
        return text


@dataclass(frozen=True)
class ComparedRuns:
    """The runs of each method, what all runs of the folder cost together, and the folder, where there is one."""

    methods: tuple[MethodRuns, ...]
    total: ComparisonTotal
    folder: RunDirectory | None


OnRun = Callable[[PreparedExperiment], AbstractContextManager[OnRound | None]]
"""Wraps each run: a progress bar, for instance."""
Prepare = Callable[[Experiment], PreparedExperiment]


def compare(
    experiments: Mapping[str, Sequence[Experiment]],
    folder: RunDirectory | None,
    on_run: OnRun = lambda _: nullcontext(),
    in_memory: Prepare | None = None,
    values: Mapping[str, Mapping[str, Any]] = NOT_VARIED,
) -> ComparedRuns:
    """Run (or resume, or only read) every experiment below ``folder``; experiments are grouped by variant.

    The first experiment of every method is prepared before the folder is touched, so that what is refused leaves none.
    Without a folder all runs are in memory. ``in_memory`` prepares experiments whose data or model are. ``values`` has
    the values of varied settings by variant.
    """
    ready = in_memory or prepare
    varied = sorted({key for one in values.values() for key in one if key.partition(".")[0] not in OWN_SECTIONS})
    first = _prepare_first(experiments, ready)
    _check_shared(experiments, varied)
    claimed = None if folder is None else _claim(folder, experiments, varied).methods
    series, unprotected = [], False
    for name, group in experiments.items():
        results = []
        for experiment in group:
            with error_context(f"method {name}"):
                prepared = first.pop(name, None) or ready(experiment)
                directory = None if folder is None else _directory(folder, name, experiment)
                with on_run(prepared) as on_round:
                    results.append(run(prepared, directory, on_round))
                unprotected |= bool(prepared.federation.no_guarantee)
        series.append(MethodRuns(name, tuple(results), values.get(name, {})))
    if folder is None:
        return ComparedRuns(tuple(series), _total_in_memory(series, group[0]), None)
    found = {name: _assertions(folder, name, experiments) for name in claimed or ()}
    # Where the data of one variant allow no guarantee, none is taken for granted for the whole folder.
    protected = {} if unprotected else {name: by for name, by in found.items() if by is not None}
    return ComparedRuns(tuple(series), _total(folder, group[0], protected), folder)


def _directory(folder: RunDirectory, name: str, experiment: Experiment) -> RunDirectory:
    directory = RunDirectory(_path(folder, name, experiment.run.seed))
    return directory if directory.is_started else RunDirectory.create(directory.path, experiment)


def _prepare_first(experiments: Mapping[str, Sequence[Experiment]], prepare: Prepare) -> dict[str, PreparedExperiment]:
    """Every variant's first experiment, ready to run. They share one copy of the records.

    Of variants with other data only the check remains: they are prepared again when it is their turn.
    """
    ready: dict[str, PreparedExperiment] = {}
    for name, group in experiments.items():
        with error_context(f"method {name}"):
            prepared = prepare(group[0])
        one = next(iter(ready.values()), prepared)
        if prepared.experiment.data != one.experiment.data or prepared.experiment.run.seed != one.experiment.run.seed:
            continue
        federation = replace(prepared.federation, silos=one.federation.silos, test=one.federation.test)
        ready[name] = replace(prepared, federation=federation)
    return ready


def _assertions(
    folder: RunDirectory, name: str, experiments: Mapping[str, Sequence[Experiment]]
) -> tuple[str, ...] | None:
    """Whose code the epsilon of a method in the folder rests on; None for one that protects no whole person.

    It is read from a statement, so that nothing runs that the folder names. A run that was stopped has none: without
    foreign code its settings say whom it protects, else nothing is taken for granted.
    """
    seed = next(iter(experiments.values()))[0].run.seed
    directory = RunDirectory(_path(folder, name, seed))
    if not directory.is_started:
        return None
    if not directory.has("statement.json"):
        foreign = foreign_code(directory.read_json("experiment.json"))
        return () if not foreign and directory.experiment().method.privacy_unit == "user" else None
    stated = directory.read_json("statement.json")
    by = stated.get("asserted_by", [])
    return tuple(map(str, by)) if stated.get("unit") == "user" and isinstance(by, list) else None


Released = Counter[tuple[str, frozenset[tuple[Event, int]]]]
"""How many runs of which method released what, by their ledgers."""


def _total(folder: RunDirectory, experiment: Experiment, protected: Mapping[str, tuple[str, ...]]) -> ComparisonTotal:
    """Over all runs that the folder's settings name, finished or not: what was released stays released."""
    released: Released = Counter()
    for name, digests in _read_settings(folder).methods.items():
        for repeat in range(len(digests)):
            directory = RunDirectory(_path(folder, name, experiment.run.seed + repeat))
            if entries := directory.log.ledger_entries() if directory.is_started else ():
                ledger = Ledger(experiment.privacy.delta, None, entries)
                released[name, frozenset(ledger.composition().items())] += 1
    return add_up(released, protected, experiment.privacy.delta, simulated=_simulated(experiment))


def _total_in_memory(series: Sequence[MethodRuns], experiment: Experiment) -> ComparisonTotal:
    released: Released = Counter()
    for one in series:
        for result in one.results:
            ledger = Ledger(experiment.privacy.delta, None, result.entries)
            released[one.method, frozenset(ledger.composition().items())] += 1
    protected = {
        one.method: one.results[0].statement.asserted_by
        for one in series
        if one.privacy_unit == "user" and not one.results[0].statement.no_guarantee
    }
    return add_up(released, protected, experiment.privacy.delta, simulated=_simulated(experiment))


def add_up(
    released: Released, protected: Mapping[str, tuple[str, ...]], delta: float, *, simulated: bool
) -> ComparisonTotal:
    """What these runs cost together. ``protected`` are those that protect a whole person, and whose code says so."""
    private, counted = Counter[Event](), Counter[str]()
    for (name, events), count in released.items():
        if name in protected and math.isfinite(account(dict(events), delta).value):
            counted[name] += count
            private.update({event: times * count for event, times in events})
    runs, private_runs = released.total(), counted.total()
    private_epsilon = account(private, delta).value if private_runs else math.inf
    epsilon = private_epsilon if private_runs == runs else math.inf
    by = tuple(dict.fromkeys(one for name in sorted(counted) for one in protected[name]))
    return ComparisonTotal(runs, private_runs, epsilon, private_epsilon, delta, simulated, by)


def _simulated(experiment: Experiment) -> bool:
    return experiment.run.secrets == "simulated"


def _path(folder: RunDirectory, method: str, seed: int) -> Path:
    return folder.path / folder_name(method) / f"seed-{seed}"


def folder_name(method: str) -> str:
    """The folder of a variant's runs.

    >>> folder_name("uldp-avg hidden=[8,4]")
    'uldp-avg hidden=-8-4-'
    """
    return re.sub(r"[^\w.=+ -]", "-", method)


def _check_shared(experiments: Mapping[str, Sequence[Experiment]], varied: Sequence[str]) -> tuple[str, float | None]:
    """A fingerprint of what the variants share, and the noise multiplier of those that have one."""
    firsts = [group[0] for group in experiments.values()]
    shared = {_shared_digest(one, varied) for one in firsts}
    noises = {
        one.privacy.noise_multiplier for one in firsts if one.method.privacy_unit is not None and not one.method.local
    }
    if "privacy.noise_multiplier" in varied or "privacy.epsilon" in varied:
        noises = {None}
    if len(shared) != 1 or len(noises) > 1:
        reason = "may differ in [method], [model], [aggregation] and in settings that are varied only"
        raise ConfigError(f"the methods of a comparison {reason}", location="comparison")
    return shared.pop(), next(iter(noises), None)


def _claim(
    folder: RunDirectory, experiments: Mapping[str, Sequence[Experiment]], varied: list[str]
) -> ComparisonSettings:
    """Take an empty folder, or one that was begun with the same settings; variants and seeds may be added to it."""
    shared, noise = _check_shared(experiments, varied)
    digests = {name: [experiment.digest() for experiment in group] for name, group in experiments.items()}
    wanted = ComparisonSettings(shared, digests, noise, varied)
    if not folder.has(SETTINGS):
        RunDirectory.check_free(folder.path)
        folder.make()
        folder.write_json(SETTINGS, msgspec.to_builtins(wanted))
        return wanted
    begun = _read_settings(folder)
    differ = (begun.shared, begun.varied) != (shared, varied)
    differ |= noise is not None and begun.noise not in (None, noise)
    for name, planned in wanted.methods.items():  # the seeds that both have
        differ |= any(one != other for one, other in zip(begun.methods.get(name, []), planned, strict=False))
    if differ:
        why = "holds another comparison; choose another directory, or repeat its settings to go on with it"
        raise RunError(why, location=str(folder.path), value=str(folder.path))
    known = {**wanted.methods, **begun.methods}
    methods = {name: max(digests, wanted.methods.get(name, []), key=len) for name, digests in known.items()}
    grown = ComparisonSettings(begun.shared, methods, begun.noise if begun.noise is not None else noise, varied)
    if grown != begun:
        folder.write_json(SETTINGS, msgspec.to_builtins(grown))
    return grown


def _shared_digest(experiment: Experiment, varied: Sequence[str]) -> str:
    """A fingerprint of what all variants of a comparison share, with the first seed.

    That is everything but ``[method]``, ``[model]`` and ``[aggregation]`` (some methods need others) and what is
    varied. The noise multiplier is compared apart, for some methods have none.
    """
    tree = {"protocol": PROTOCOL_VERSION, **experiment.to_tree()}
    for section in OWN_SECTIONS:
        tree.pop(section, None)
    apart = ["privacy.noise_multiplier", *varied]
    if set(varied) & {"privacy.epsilon", "privacy.noise_multiplier"}:
        apart += ["privacy.epsilon"]
    apart += ["data.data_dir"]  # where the files lie says nothing about what is in them
    for key in apart:
        _drop(tree, key.split("."))
    return hashlib.sha256(json.dumps(tree, sort_keys=True, default=str).encode()).hexdigest()


def _drop(tree: dict[str, Any], path: Sequence[str]) -> None:
    """Take the setting at ``path`` out, wherever it is."""
    for part in path[:-1]:
        below = tree.get(part)
        if not isinstance(below, dict):
            return
        tree = below
    tree.pop(path[-1], None)


def _read_settings(folder: RunDirectory) -> ComparisonSettings:
    try:
        return msgspec.convert(folder.read_json(SETTINGS), type=ComparisonSettings)
    except msgspec.ValidationError as error:
        why = f"is not the record of a comparison ({first_line(error)}); choose another directory"
        raise RunError(why, location=str(folder.path / SETTINGS), value=str(folder.path)) from error
