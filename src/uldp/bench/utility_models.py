"""What ``uldp bench utility`` compares: base rates, pooled models of scikit-learn, and settings of private training."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from uldp.data.federation import Federation, Records
from uldp.experiment.sections import Tree
from uldp.learners.metrics import base_loss

Floats = npt.NDArray[np.float64]
DELTA: Final = 1e-5

LINEAR: Final = "pooled linear"
BOOSTING: Final = "pooled boosting"
POOLED: Final = (LINEAR, BOOSTING)


@dataclass(frozen=True)
class Contender:
    """Settings of private training."""

    name: str
    method: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    numbers: Mapping[str, Any] = field(default_factory=dict)
    """What differs where the label is a number."""
    per_silo: tuple[str, ...] = ()
    """Settings that are multiplied by the number of silos."""
    linear: bool = False
    """Whether the model is logistic or linear, whatever ``auto`` means."""
    base_rate: bool = False

    def tree(self, federation: Federation, epsilon: float, seed: int) -> Tree:
        """The experiment on this federation, as a file has it."""
        number = federation.task.kind == "regression"
        chosen = {**self.settings, **(self.numbers if number else {})}
        chosen |= {key: chosen[key] * len(federation.silos) for key in self.per_silo}
        data: dict[str, Any] = {"given": federation.name, "users": federation.users}
        if self.base_rate:
            data["label_mean" if number else "base_rate"] = public_base_rate(federation)
        model = ("linear" if number else "logistic") if self.linear else "auto"
        return {
            "data": data,
            "method": {"name": self.method, **chosen},
            "model": {"name": model},
            "privacy": {"epsilon": epsilon, "delta": DELTA},
            "aggregation": {"name": "plain"},
            "run": {"seed": seed, "threads": 1},
        }


# ULDP-FL's scripts for the smallest of its tables (experiment/presets.py), on all sets.
PAPERS: Final = Contender(
    "papers",
    "uldp-avg-w",
    {"rounds": 50, "local_epochs": 50, "local_lr": 0.001, "batch_size": 4, "clip": 0.1, "global_lr": 10.0},
    linear=True,
)
# What `uldp new` drafted for own tables before there was `auto`. There the server's step is 40 per silo for ten buckets
# a person; here users are people, so 4 per silo is the same step.
PREVIOUS: Final = Contender(
    "previous",
    "uldp-avg-w",
    {"rounds": 20, "local_epochs": 10, "local_lr": 0.5, "clip": 1.0, "global_lr": 4.0},
    {"local_lr": 0.05, "clip": 0.1},
    per_silo=("global_lr",),
    linear=True,
)
AUTO: Final = Contender("auto", "auto")
WITH_BASE_RATE: Final = Contender("auto, base rate known", "auto", base_rate=True)
CONTENDERS: Final = (PAPERS, PREVIOUS, AUTO, WITH_BASE_RATE)

# Among these, and all others, is "the best tuned", by a look at the test sets: nobody could tune like that.
TUNED: Final = tuple(
    Contender(f"tuned {rounds} {step:g}", "auto", {"rounds": rounds, "server_lr": step})
    for rounds, step in ((100, 0.4), (100, 2.5), (40, 1.0), (250, 1.0))
)


def pooled_records(federation: Federation) -> Records:
    """All silos' training records in one place, as nobody has them."""
    return Records.joined([Records(silo.features, silo.labels) for silo in federation])


def public_base_rate(federation: Federation) -> float | list[float]:
    """What a public source would say of the labels: shares of the classes, or their mean, to two digits."""
    labels = pooled_records(federation).labels
    if federation.task.kind == "regression":
        return _two_digits(federation.task.label_offset + federation.task.label_scale * float(labels.mean()))
    shares = np.bincount(labels.astype(np.int64), minlength=federation.task.classes) / len(labels)
    rounded = [_two_digits(share) for share in shares]
    return rounded[1] if len(shares) == 2 else [share / sum(rounded) for share in rounded]


def _two_digits(value: float) -> float:
    return float(f"{value:.1e}")


def log_loss(chances: Floats, classes: npt.NDArray[np.int64]) -> float:
    """Mean negative logarithm of the chance that was given to what happened."""
    own = chances[np.arange(len(classes)), classes]
    return float(-np.log(np.clip(own, 1e-15, 1.0)).mean())


def skill(federation: Federation, loss: float) -> float:
    """1 - loss / loss of the base rate: 0 is guessing, 1 is perfect. With squared errors it is R2."""
    known, test = pooled_records(federation).labels, federation.test.labels
    return 1.0 - loss / base_loss(federation.task, known, test) if math.isfinite(loss) else -math.inf


def pooled_loss(name: str, federation: Federation, seed: int) -> float:
    """Test loss of a model of scikit-learn on all records in one place, without privacy."""
    train, test = pooled_records(federation), federation.test
    model = _estimator(name, federation.task.kind == "regression", seed).fit(train.features, train.labels)
    if federation.task.kind == "regression":
        return float(np.square(model.predict(test.features) - test.labels).mean())
    chances = np.zeros((len(test), federation.task.classes))
    chances[:, model.classes_] = model.predict_proba(test.features)
    return log_loss(chances, test.labels.astype(np.int64))


def _estimator(name: str, number: bool, seed: int) -> Any:
    from sklearn import ensemble, linear_model, model_selection

    if name == BOOSTING:
        kind = ensemble.HistGradientBoostingRegressor if number else ensemble.HistGradientBoostingClassifier
        return kind(max_iter=60, learning_rate=0.1, random_state=seed)
    if number:
        return linear_model.RidgeCV(np.logspace(-4, 3, 15))
    logistic = linear_model.LogisticRegression(solver="newton-cholesky")
    strengths = {"C": np.logspace(-1, 4, 6)}
    return model_selection.GridSearchCV(logistic, strengths, scoring="neg_log_loss", cv=3)
