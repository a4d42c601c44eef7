"""Membership inference against people: several methods, on the same people, with the same halves of them."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from uldp.attacks.ceilings import ceiling
from uldp.attacks.lira import likelihood_ratios
from uldp.attacks.membership_result import Attack, KindAttack, MethodAttack
from uldp.attacks.rates import Array, Mask, Rates, rates_of
from uldp.attacks.shadows import STATISTICS, UTILITY_MODELS, Shadow, ShadowTraining, train_shadows
from uldp.attacks.targets import Targets
from uldp.errors import ConfigError, RunError
from uldp.experiment.build import PreparedExperiment, prepare
from uldp.experiment.config import Experiment
from uldp.limits import MAX_SEED, MAX_THREADS, check_whole
from uldp.rng import Streams
from uldp.runs.files import replace_file, report_disk_errors

MODELS: Final = 200
MIN_MODELS: Final = 16
MAX_MODELS: Final = 100_000
_SAVE_EVERY: Final = 10

ATTACKS: Final = {
    "loss": "loss",
    "loss, all rounds": "loss, all rounds",
    "LiRA": "confidence",
    "LiRA, all rounds": "confidence, all rounds",
    "LiRA, one record": "one record",
    "iterates": "iterates",
    "iterates, knows all others": "knows all others",
}
"""The attacks, and the statistic behind each. A threshold on the loss takes it as it is, all others as a likelihood
ratio that is calibrated on the other models."""
OnModel = Callable[[], None]


@dataclass(frozen=True)
class MembershipPlan:
    """An attack before it starts.

    Args:
        trainings: How shadow models are trained, by method.
        targets: The people.
        models: Shadow models of each method.
    """

    trainings: dict[str, ShadowTraining]
    targets: Targets
    models: int

    @property
    def trained(self) -> int:
        """How many models are trained altogether."""
        return len(self.trainings) * (self.models + UTILITY_MODELS)

    def __str__(self) -> str:
        each = f"{self.models} shadow models and {UTILITY_MODELS} with everybody"
        return (
            f"{self.trained:,} models ({len(self.trainings)} method{'s' * (len(self.trainings) > 1)}, {each}); "
            f"{self.targets.words()}"
        )


def plan_attack(experiments: dict[str, Experiment], targets: Targets, models: int, seed: int) -> MembershipPlan:
    """What will be trained.

    Raises:
        ConfigError: A number is out of range, or a method or its model cannot be attacked.
    """
    check_whole(models, MIN_MODELS, MAX_MODELS, "models")
    check_whole(seed, 0, MAX_SEED, "attack_seed")
    trainings = {}
    for name, experiment in experiments.items():
        if experiment.method.local:
            reason = "clients perturb by themselves; `uldp attack inference` is about them"
            raise ConfigError(reason, location="methods", value=name)
        trainings[name] = ShadowTraining.of(_on_targets(experiment, targets), targets, seed)
    return MembershipPlan(trainings, targets, models)


def _on_targets(experiment: Experiment, targets: Targets) -> PreparedExperiment:
    """The experiment with the targets for its data, and noise for the same epsilon."""
    tree = experiment.to_tree()
    known = {key: tree["data"][key] for key in ("base_rate", "label_mean") if key in tree["data"]}
    tree["data"] = {"given": targets.federation.name, "users": targets.federation.users, **known}
    # Adversaries see totals here, whatever protects what silos send.
    tree["aggregation"] = {"name": "masked"}
    return prepare(Experiment.from_tree(tree), targets.federation)


def run_attack(
    plan: MembershipPlan, *, workers: int = 1, folder: Path | None = None, on_model: OnModel = lambda: None
) -> Attack:
    """Train all models and attack every one of them.

    Args:
        plan: What :func:`plan_attack` gave.
        workers: Processes that train models.
        folder: Where statistics of models are kept, so that an attack that was stopped goes on.
        on_model: Called after every model.

    Raises:
        RunError: The folder cannot be written, or holds damaged files.
    """
    check_whole(workers, 1, MAX_THREADS, "workers")
    found = []
    for name, training in plan.trainings.items():
        shadows = list(_shadows(training, name, plan.models, workers, folder, on_model))
        utility = training.utility()
        for _ in range(UTILITY_MODELS):
            on_model()
        found.append(_attack_method(name, training, shadows, utility))
    first = next(iter(plan.trainings.values())).prepared
    return Attack(
        dataset=plan.targets.federation.name,
        people=plan.targets.words(),
        delta=first.experiment.privacy.delta,
        models=plan.models,
        methods=tuple(found),
    )


def _attack_method(
    name: str, training: ShadowTraining, shadows: Sequence[Shadow], utility: dict[str, float]
) -> MethodAttack:
    prepared, targets = training.prepared, training.targets
    included = np.stack([shadow.included for shadow in shadows])
    statistics = np.stack([shadow.statistics for shadow in shadows])
    scores = {attack: _scores(statistics, included, statistic) for attack, statistic in ATTACKS.items()}
    generator = Streams.from_seed(training.seed).child("bootstrap", name).generator()
    kinds = []
    for index, kind in enumerate(targets.kinds):
        mine = targets.kind == index
        rates: dict[str, Rates] = {
            attack: rates_of(values[:, mine], included[:, mine], generator) for attack, values in scores.items()
        }
        kinds.append(KindAttack(kind, int(mine.sum()), ceiling(prepared, kind.records), rates))
    statement = prepared.planned_statement()
    return MethodAttack(name, statement.privacy_unit, statement.epsilon, utility, tuple(kinds))


def _scores(statistics: Array, included: Mask, statistic: str) -> Array:
    values = statistics[:, STATISTICS.index(statistic)]
    return values if statistic.startswith("loss") else likelihood_ratios(values, included)


# --- what was trained before ------------------------------------------------------------------------------------------


def _shadows(
    training: ShadowTraining, name: str, models: int, workers: int, folder: Path | None, on_model: OnModel
) -> Iterator[Shadow]:
    """All shadow models; those that the folder has are not trained again."""
    file = None if folder is None else folder / f"{name.replace('/', '-').replace(':', '-')}-{training.digest[:16]}.npz"
    done = [] if file is None or not file.exists() else _read(file, training)[:models]
    for shadow in done:
        on_model()
        yield shadow
    for shadow in train_shadows(training, range(len(done), models), workers):
        done.append(shadow)
        on_model()
        if file is not None and (len(done) % _SAVE_EVERY == 0 or len(done) == models):
            _write(file, done)
        yield shadow


def _write(file: Path, shadows: Sequence[Shadow]) -> None:
    with report_disk_errors(file.parent):
        file.parent.mkdir(parents=True, exist_ok=True)
    data = io.BytesIO()
    np.savez_compressed(data, statistics=np.stack([shadow.statistics for shadow in shadows]))
    replace_file(file, data.getvalue(), mode=0o644)


def _read(file: Path, training: ShadowTraining) -> list[Shadow]:
    try:
        with np.load(file, allow_pickle=False) as stored:
            statistics = np.asarray(stored["statistics"], dtype=np.float64)
        if statistics.shape[1:] != (len(STATISTICS), training.targets.federation.users):
            raise ValueError(f"an array of shape {statistics.shape}")
    except (OSError, ValueError, KeyError, EOFError) as error:
        raise RunError(f"is damaged ({error}); delete it", location=str(file)) from error
    return [Shadow(training.included(number), values) for number, values in enumerate(statistics)]
