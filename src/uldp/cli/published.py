"""``uldp published``: algorithms as printed that keep no guarantee, to compare with."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from uldp.cli import options as opt
from uldp.cli.output import name_options, print_json, print_metrics, report_errors, warn
from uldp.cli.source import experiment_from
from uldp.errors import ConfigError, format_value

if TYPE_CHECKING:
    from uldp.experiment.config import Experiment
    from uldp.research.published_subjects import PublishedSettings


@report_errors
def published(
    algorithm: Annotated[str, typer.Argument(help="central-sub-dp or local-sub-dp.")],
    dataset: Annotated[str, typer.Option(help="Use this built-in data set.")] = "breast-cancer",
    data_dir: opt.DataDir = None,
    overrides: opt.Set = [],  # noqa: B006
    seed: Annotated[int, typer.Option(help="Seed of data, model, batches and noise.")] = 0,
    as_json: opt.Json = False,
) -> None:
    """Train an algorithm as printed. It has NO guarantee: its claimed epsilon is shown beside what holds.

    --set takes epsilon, delta, rounds, clip, batch_size, global_lr, local_lr, local_steps, and data.users,
    data.silos, data.allocation, model.name.
    """
    from uldp.experiment.build import build_learner
    from uldp.experiment.loading import load_federation
    from uldp.library.progress import progress_bar
    from uldp.research.published_subjects import train
    from uldp.runtimes.result import RoundReport

    with name_options({"run.seed": "--seed", "algorithm": "ALGORITHM"}):
        settings = _settings(algorithm, [text for text in overrides if not _is_experiment_setting(text)])
        experiment = _experiment(dataset, data_dir, [text for text in overrides if _is_experiment_setting(text)], seed)
        federation = load_federation(experiment)
        learner = build_learner(experiment, federation.feature_shape, federation.task)
        if not len(federation.test):
            raise ConfigError("the test set has no records", location="data.test")
        with progress_bar(algorithm, settings.rounds) as show:

            def on_round(round_: int, metrics: Mapping[str, float]) -> None:
                show(RoundReport(round_, settings.rounds, metrics, math.inf, 0.0))

            outcome = train(settings, federation, learner, seed, on_round)
    warn("NO GUARANTEE: no finite epsilon holds, because the noise depends on the data (errata D1).")
    if as_json:
        print_json({"dataset": federation.name, **outcome.to_json()})
        return
    typer.echo(f"{algorithm} as printed, on {federation.name}: {settings.rounds} rounds")
    print_metrics(outcome.metrics)
    for line in outcome.claimed_and_true:
        typer.echo(textwrap.fill(line, 100, initial_indent="- ", subsequent_indent="  "))


def _is_experiment_setting(assignment: str) -> bool:
    """Whether it is ``section.key=value``, and no setting of the algorithm."""
    return "." in assignment.partition("=")[0]


def _settings(algorithm: str, assignments: list[str]) -> PublishedSettings:
    from uldp.errors import check_keys
    from uldp.experiment.sections import parse_value, read_section
    from uldp.research.published_subjects import PublishedSettings

    chosen: dict[str, Any] = {}
    for assignment in assignments:
        key, equals, text = (part.strip() for part in assignment.partition("="))
        if not key or not equals:
            raise ConfigError("write key=value, for instance epsilon=3", location="--set", value=assignment)
        chosen[key] = parse_value(text)
    keys = [item.name for item in fields(PublishedSettings) if item.name != "algorithm"]
    check_keys(chosen, sorted(keys), "--set")
    with name_options({f"published.{key}": key for key in keys}):
        return read_section(PublishedSettings, {**chosen, "algorithm": algorithm}, "published")


def _experiment(dataset: str, data_dir: Path | None, assignments: list[str], seed: int) -> Experiment:
    """Data and model. Everything else of an experiment is the algorithm's own, or has no meaning here."""
    from uldp.experiment.variants import assigned_key

    for assignment in assignments:
        if assigned_key(assignment).partition(".")[0] not in ("data", "model"):
            raise ConfigError(
                "only data.key=value, model.key=value and the algorithm's own, such as epsilon=3, not "
                f"{format_value(assigned_key(assignment))}",
                location="--set",
                value=assignment,
            )
    return experiment_from(None, dataset, "fedavg", [*assignments, f"run.seed={seed}"], data_dir=data_dir)
