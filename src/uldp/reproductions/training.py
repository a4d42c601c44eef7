"""Panels in which models are trained: comparisons and sweeps, with one run directory per variant and seed."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from uldp.data.builtin import dataset as find_dataset
from uldp.data.sets.base import Dataset
from uldp.data.store import locate
from uldp.errors import ConfigError, DataError, error_context
from uldp.experiment.config import Experiment
from uldp.experiment.presets import preset
from uldp.experiment.sections import Tree
from uldp.experiment.sweeps import check_vary, grid, with_values
from uldp.library.comparing import ComparedVariant, run_comparison
from uldp.methods.base import settings
from uldp.methods.registry import lookup
from uldp.reproductions.rows import MeasuredRow, PanelRows, finite
from uldp.runs.directory import RunDirectory
from uldp.runtimes.compare import MethodRuns

STAND_INS: Mapping[str, str] = {"mnist": "digits", "cifar10": "digits", "medical-mnist": "digits"}
STAND_IN = "breast-cancer"


@dataclass(frozen=True)
class ReproductionPlace:
    """Where a reproduction runs: its folder, where the data sets' files are, how many seeds, and what it says."""

    folder: Path
    data_dir: Path | None = None
    repeats: int | None = None
    progress: bool | None = None


def available(dataset: str, data_dir: Path | None) -> bool:
    """Whether a data set's files are there."""
    files = find_dataset(dataset).files
    if files is None:
        return True
    try:
        locate(files, data_dir)
    except DataError:
        return False
    return True


class Training(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A comparison: ``settings`` are for all methods that have them, ``own`` for one of them, by ``section.key``.

    ``methods`` may be ``LABEL=METHOD`` where a method occurs twice.
    """

    dataset: str
    methods: list[str]
    preset: str = "paper"
    settings: dict[str, Any] = {}
    own: dict[str, dict[str, Any]] = {}
    vary: dict[str, list[Any]] = {}
    repeats: int = 1


def compare(place: ReproductionPlace, name: str, panel: Training) -> PanelRows:
    """Train what a panel names, or read what was trained before."""
    here = available(panel.dataset, place.data_dir)
    used = panel.dataset if here else STAND_INS.get(panel.dataset, STAND_IN)
    variants = variants_of(panel, used, place)
    folder = RunDirectory(place.folder / "".join(sign if sign.isalnum() else "-" for sign in name))
    found = run_comparison(
        variants, place.repeats or panel.repeats, folder, progress=place.progress, warn=lambda text: None
    )
    rows = [row_of(series) for series in found.methods]
    return PanelRows(name=name, rows=rows, dataset=used, stand_in=not here)


def variants_of(panel: Training, used: str, place: ReproductionPlace) -> list[ComparedVariant]:
    """What a panel compares, on the data set that is used."""
    named = {label: method or label for label, _, method in (one.partition("=") for one in panel.methods)}
    varied = check_vary(panel.vary, list(named.values()))
    variants = []
    for label, method in named.items():
        chosen = _fitting({**panel.settings, **panel.own.get(label, {})}, method)
        for values_label, values in grid(varied, method).items():
            with error_context(label):
                tree = with_values(with_values(_tree(panel, used, method, place), chosen), values)
                tree = tree if used == panel.dataset else _for_stand_in(tree)
                experiment = Experiment.from_tree(tree, place.folder)
            variants.append(ComparedVariant(" ".join(filter(None, (label, values_label))), experiment, values))
    return variants


def row_of(series: MethodRuns) -> MeasuredRow:
    """A variant's means, deviations and curves of the mean over seeds."""
    results = series.results
    metrics: dict[str, float | None] = {key: finite(mean) for key, (mean, _) in series.metrics.items()}
    deviations = {key: deviation for key, (_, deviation) in series.metrics.items() if deviation is not None}
    rounds = min(len(result.reports) for result in results)
    curves: dict[str, list[float | None]] = {}
    for key in metrics:
        columns = [[report.metrics.get(key, math.nan) for report in result.reports[:rounds]] for result in results]
        curves[key] = [finite(sum(at) / len(at)) for at in zip(*columns, strict=True)]
    curves["epsilon"] = [finite(report.epsilon) for report in results[0].reports[:rounds]]
    whole = {**metrics, "epsilon": finite(series.epsilon), "server_epsilon": finite(series.server_epsilon)}
    for key in metrics:  # the mean over the rounds says how fast it learns
        series_of = [[report.metrics.get(key, math.nan) for report in one.reports] for one in results]
        over_rounds = np.array([np.mean(values) for values in series_of])
        whole[f"mean_{key}"] = finite(float(over_rounds.mean()))
        if len(results) > 1 and np.isfinite(over_rounds).all():
            deviations[f"mean_{key}"] = float(over_rounds.std(ddof=1))
    return MeasuredRow(
        name=series.method, metrics=whole, deviations=deviations, values=dict(series.values), curves=curves
    )


def _tree(panel: Training, used: str, method: str, place: ReproductionPlace) -> Tree:
    try:
        tree = preset(panel.dataset, method, panel.preset)
    except ConfigError:  # no published settings: a rival that the paper does not have, or a wrong name
        tree = preset(panel.dataset, method)
    tree["data"]["dataset"] = used
    if place.data_dir is not None:
        tree["data"]["data_dir"] = str(place.data_dir)
    if used != panel.dataset:
        own: Dataset = find_dataset(panel.dataset)
        tree["data"] = {"silos": own.info.silos, "users": min(own.info.users, 100), **tree["data"]}
    return tree


def _for_stand_in(tree: Tree) -> Tree:
    """Without what only the real data set allows: its model and its number of users."""
    data = {key: value for key, value in tree["data"].items() if key != "data_dir"}
    if data.get("users", 0) > 1000:
        data["users"] = 1000
    return {key: value for key, value in {**tree, "data": data}.items() if key != "model"}


def _fitting(chosen: Tree, method: str) -> Tree:
    """The settings that this method has."""
    known = settings(lookup(method).method)
    return {
        key: value for key, value in chosen.items() if not key.startswith("method.") or key.partition(".")[2] in known
    }
