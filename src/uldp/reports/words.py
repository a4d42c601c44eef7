"""What a run's numbers mean, in words: the verdict on its guarantee, what a guess can gain, what a metric says."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from uldp.privacy.sentences import NOT_SECRET, assertion, show_epsilon
from uldp.privacy.statement import Statement

METRIC_NAMES: Final = {
    "accuracy": "Accuracy",
    "balanced_accuracy": "Balanced accuracy",
    "roc_auc": "ROC AUC",
    "pr_auc": "PR AUC",
    "recall_at_precision": "Recall at precision 50 %",
    "c_index": "C-index",
    "r2": "R²",
    "mae": "Mean absolute error",
    "loss": "Loss",
}
_SHARES: Final = ("accuracy", "balanced_accuracy", "recall_at_precision")
_AT_MOST_ONE: Final = (*_SHARES, "roc_auc", "pr_auc", "c_index", "r2")
LOWER_IS_BETTER: Final = ("loss", "mae")
_CERTAIN: Final = 0.999
_WHOM: Final = {
    "user": ("Every person is protected", "whether a given person took part"),
    "record": ("Single records are protected, people are not", "whether a given record was used"),
    "client": ("Every client is protected", "which of two sets of records a client had"),
}


@dataclass(frozen=True)
class Verdict:
    """A verdict: ``level`` is ``good``, ``warn`` or ``bad``; ``sign`` stands beside the colour."""

    level: str
    title: str
    sentences: tuple[str, ...]

    @property
    def sign(self) -> str:
        return {"good": "✓", "warn": "!", "bad": "✕"}[self.level]


def best_guess(epsilon: float, delta: float) -> float:
    """How often a guess who took part, 50:50 before, can be right at most: (e^epsilon + delta) / (1 + e^epsilon).

    >>> round(best_guess(1.0, 0.0), 3), best_guess(0.0, 0.0), best_guess(1e6, 1e-5)
    (0.731, 0.5, 1.0)
    """
    if math.isinf(epsilon):
        return 1.0
    shrunk = math.exp(-epsilon)
    return min(1.0, (1.0 + delta * shrunk) / (1.0 + shrunk))


def show_guess(epsilon: float, delta: float) -> str:
    """The same for people, rounded up.

    >>> show_guess(4.0, 1e-5), show_guess(10.0, 1e-5), show_guess(math.inf, 1e-5)
    ('98.3 %', 'over 99.9 %', 'always')
    """
    chance = best_guess(epsilon, delta)
    if chance >= 1.0:
        return "always"
    return f"over {100 * _CERTAIN:g} %" if chance > _CERTAIN else f"{math.ceil(1000 * chance) / 10:.1f} %"


def verdict(statement: Statement) -> Verdict:
    """The guarantee of a run in words."""
    if not statement.holds:
        return _no_guarantee(statement)
    title, what = _WHOM.get(
        str(statement.privacy_unit), (f"Every {statement.privacy_unit} is protected", "its records")
    )
    chance = show_guess(statement.epsilon, statement.delta)
    right = "always, by this bound" if chance == "always" else f"at most {chance} of the time"
    sentences = [
        f"Whoever sees the released models and guesses {what}, starting from 50:50, is right {right}. That is the "
        "worst case, over all attacks and all knowledge about everybody else."
    ]
    if statement.epsilon > 10:
        sentences.append("The bound says next to nothing about a single guess.")
    if statement.asserted_by:
        sentences.insert(0, f"{assertion(statement.asserted_by)} this guarantee.")
    if statement.simulated:
        hypothetical = f"With secret noise it would hold that: {title[0].lower()}{title[1:]}. {sentences.pop(0)}"
        return Verdict("warn", "A rehearsal: nobody is protected", (f"{NOT_SECRET}.", hypothetical, *sentences))
    weak = statement.epsilon > 4 or statement.privacy_unit == "record" or bool(statement.asserted_by)
    if statement.epsilon > 10:
        return Verdict("bad", f"{title}, but weakly", tuple(sentences))
    if weak or statement.weakening_caveats():
        return Verdict("warn", title if statement.epsilon <= 4 else f"{title}, but not strongly", tuple(sentences))
    return Verdict("good", f"{title}, strongly" if statement.epsilon <= 1 else title, tuple(sentences))


def _no_guarantee(statement: Statement) -> Verdict:
    if statement.privacy_unit is None:
        text = "This method bounds nobody's influence and adds no noise: whoever sees the model may recognise a person."
        return Verdict("bad", "Nobody is protected", (text,))
    if statement.no_guarantee:
        return Verdict("bad", "There is no guarantee", (statement.headline(),))
    return Verdict("bad", "Nobody is protected", ("The noise is zero, so epsilon is infinite.",))


def metric_name(name: str) -> str:
    """A metric's name for people.

    >>> metric_name("roc_auc"), metric_name("holdout_accuracy")
    ('ROC AUC', 'Accuracy, held-out people')
    """
    plain = name.removeprefix("holdout_")
    shown = METRIC_NAMES.get(plain, plain.replace("_", " ").capitalize())
    return f"{shown}, held-out people" if plain != name else shown


def show_metric(name: str, value: float) -> str:
    """A metric's value for people.

    >>> show_metric("accuracy", 0.78740), show_metric("loss", 0.5572295)
    ('78.7 %', '0.557')
    """
    return f"{100 * value:.1f} %" if name.removeprefix("holdout_") in _SHARES else f"{value:.3g}"


def show_value(name: str, value: float) -> str:
    """A metric's value, or ``epsilon``, for people."""
    return show_epsilon(value) if name == "epsilon" else show_metric(name, value)


def most_of(name: str) -> float:
    """The largest value that a metric can have.

    >>> most_of("roc_auc"), most_of("loss")
    (1.0, inf)
    """
    return 1.0 if name.removeprefix("holdout_") in _AT_MOST_ONE else math.inf


def show_tick(name: str, value: float) -> str:
    """A value on the axis of a chart.

    >>> show_tick("accuracy", 0.825), show_tick("loss", 0.5)
    ('82.5 %', '0.5')
    """
    return f"{100 * value:g} %" if name.removeprefix("holdout_") in _SHARES else f"{value:g}"


def show_with_spread(name: str, mean: float, deviation: float) -> str:
    """A mean and its deviation over seeds, with as many decimals as the mean.

    >>> show_with_spread("accuracy", 0.9412, 0.0139), show_with_spread("loss", 0.15021, 0.0251)
    ('94.1 ± 1.4 %', '0.150 ± 0.025')
    """
    if name.removeprefix("holdout_") in _SHARES:
        return f"{100 * mean:.1f} ± {100 * deviation:.1f} %"
    decimals = 3 if abs(mean) < 10 else 1
    return f"{mean:.{decimals}f} ± {deviation:.{decimals}f}"


def metric_sentence(metrics: Mapping[str, float], no_better: str) -> str:
    """What the first metric says about the model; empty without metrics."""
    if not metrics:
        return ""
    if no_better:
        return f"{no_better}."
    name = next(iter(metrics))
    value = show_metric(name, metrics[name])
    return {
        "accuracy": f"The model is right about {value} of the test records.",
        "roc_auc": f"Of a positive and a negative test record the model ranks the positive one higher with "
        f"probability {value}.",
        "pr_auc": f"Of the records that the model calls positive {value} are, averaged over thresholds; if it guessed, "
        "that would be the share of positives.",
        "c_index": f"Of two people the model knows who has the event first with probability {value}.",
        "r2": f"The model explains {value} of the variance of the test labels.",
    }.get(name, f"{metric_name(name)} on the test records: {value}.")


def shown_epsilon(statement: Statement) -> str:
    """Epsilon for a headline."""
    return show_epsilon(statement.epsilon) if statement.holds else "no bound"
