"""Coefficients with their uncertainty, from the last totals of ``uldp coefficients``; all of it is post-processing.

With the totals U, A, B of the last round (:mod:`uldp.methods.newton`) and the last step d = A^-1 U, an estimate is off
by A^-1 (the sum of the scores at the true coefficients + the noise of U - the noise of A times d). The first has the
variance B, the others' is known::

    variance = A^-1 (S + u^2 I + a^2 / 2 (|d|^2 I + d d')) A^-1      u, a: the deviations of the noise in U and in A

S is A tr B / tr A, as if one dispersion did for all coefficients; or B, which allows for columns that do not change
within a person and for a model that is not quite right, where it is larger by more than its noise.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from html import escape
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from uldp.data.contrasts import contrasts
from uldp.errors import RunError
from uldp.methods.newton import NewtonSteps, NewtonTotals
from uldp.privacy.statement import Statement

if TYPE_CHECKING:
    import pandas as pd

    from uldp.data.schema import Schema
    from uldp.vectors import Vector

WITHIN_95: Final = 1.96
INTERCEPT: Final = "intercept"
SURE: Final = 1.5
"""How many times A's smallest eigenvalue must be the largest one of its noise, for intervals to be stated."""
UNFINISHED: Final = 0.3
"""The part of an interval's half width that the steps may have left over."""
HEADERS: Final = ("coefficient", "estimate", "95 % interval", "of it noise")
_RATIOS: Final = {"logistic": "odds ratio", "cox": "hazard ratio"}
_COVERS: Final = {
    "linear": "of least squares, where every person counts the same",
    "logistic": "of maximum likelihood, where every person counts the same",
    "cox": "of a partial likelihood with a stratum for each person and silo, where every person counts the same",
}


@dataclass(frozen=True)
class Coefficient:
    """One coefficient in the units of its column.

    Args:
        name: The column, or a category and the one with which it is compared.
        estimate: Of the coefficient.
        error: Its standard error, of which noise is a part; None where there is no interval.
        noise: The part of the error's square that is noise added for privacy.

    Example:
        >>> [round(limit, 2) for limit in Coefficient("age", 5.0, 1.0, 0.25).interval]
        [3.04, 6.96]
    """

    name: str
    estimate: float
    error: float | None
    noise: float

    @property
    def interval(self) -> tuple[float, float] | None:
        """The limits of a 95 % interval; None where nothing is known."""
        if self.error is None:
            return None
        return self.estimate - WITHIN_95 * self.error, self.estimate + WITHIN_95 * self.error


@dataclass(frozen=True, repr=False)
class CoefficientTable:
    """The coefficients of a linear, logistic or Cox model, with 95 % intervals, released with user-level DP.

    Args:
        kind: ``linear``, ``logistic`` or ``cox``.
        coefficients: The intercept first (Cox models have none), then one for each column or category.
        statement: Which epsilon holds against which adversary.
        finished: Whether the steps have come to an end; if not, the last one was too long for the intervals.
        run: The run directory, where there is one.

    Example:
        >>> import numpy as np
        >>> import pandas as pd
        >>> from uldp import Schema, coefficients, train
        >>> age = np.linspace(20, 80, 2000)
        >>> frame = pd.DataFrame({"id": range(2000), "age": age, "cost": 100 + 5 * age})
        >>> about = {"user": "id", "label": "cost", "schema": Schema.numbers("cost", 0, 600).numeric("age", 0, 100),
        ...          "users": [str(i) for i in range(2000)], "test_fraction": 0, "secrets": "simulated"}
        >>> silos = {"north": frame[::2], "south": frame[1::2]}
        >>> found = coefficients(train(silos, epsilon=2.0, rounds=20, **about), silos, epsilon=2.0, **about)
        >>> low, high = found["age"].interval
        >>> low < 5 < high, [one.name for one in found.coefficients]
        (True, ['intercept', 'age'])
    """

    kind: str
    coefficients: tuple[Coefficient, ...]
    statement: Statement
    finished: bool = True
    run: str | None = None

    @classmethod
    def of(
        cls, schema: Schema, method: NewtonSteps, x: Vector, noise_variance: float, statement: Statement
    ) -> CoefficientTable:
        """The table in the totals of the last round.

        Args:
            schema: Of the tables, for their units.
            method: The steps, as the plan has them.
            x: What was released last: coefficients and totals.
            noise_variance: Of each of its numbers.
            statement: Of the run.
        """
        totals, units = method.totals(x, noise_variance), _units(schema, method)
        estimates = units @ x[: len(method.start)]
        if method.kind == "linear":
            estimates[0] += schema.label.task.label_offset
        sampling, noise = _variances(totals, units)
        sure = totals.smallest_information > SURE * totals.information_error
        known = totals.known if method.kind == "cox" else np.full(len(estimates), totals.known.all())
        errors = np.sqrt(sampling + noise)
        listed = tuple(
            Coefficient(
                name,
                float(estimates[place]),
                float(errors[place]) if sure and known[place] and math.isfinite(errors[place]) else None,
                float(noise[place] / max(errors[place] ** 2, 1e-300)),
            )
            for place, name in enumerate(_names(schema, method))
        )
        return cls(method.kind, listed, statement, finished=_finished(method.kind, totals))

    @property
    def epsilon(self) -> float:
        """What this table cost, against anyone who sees it; the training of its model cost something beside it."""
        return self.statement.epsilon

    def __getitem__(self, name: str) -> Coefficient:
        """The coefficient of this name."""
        return next(one for one in self.coefficients if one.name == name)

    def table(self) -> pd.DataFrame:
        """One row for each coefficient: estimate, standard error, limits, the noise's part."""
        import pandas as pd

        rows = []
        for one in self.coefficients:
            low, high = one.interval or (math.nan, math.nan)
            error = math.nan if one.error is None else one.error
            rows.append(
                {
                    "coefficient": one.name,
                    "estimate": one.estimate,
                    "error": error,
                    "low": low,
                    "high": high,
                    "noise": one.noise,
                }
            )
        return pd.DataFrame(rows).set_index("coefficient")

    def rows(self) -> list[tuple[str, ...]]:
        """Name, estimate, interval and the noise's part of it, for people; then odds or hazard ratios."""
        return [self._row(one) for one in self.coefficients]

    def headers(self) -> tuple[str, ...]:
        """What the entries of :meth:`rows` are."""
        return (*HEADERS, *([_RATIOS[self.kind]] if self.kind in _RATIOS else []))

    def _row(self, one: Coefficient) -> tuple[str, ...]:
        shown = "" if one.interval is None else f"{one.interval[0]:.4g} to {one.interval[1]:.4g}"
        plain = (one.name, f"{one.estimate:.4g}", shown, "" if one.interval is None else f"{one.noise:.0%}")
        if self.kind not in _RATIOS:
            return plain
        return (*plain, "" if one.name == INTERCEPT else _ratio(one))

    def sentences(self) -> list[str]:
        """What the intervals cover, and what they do not."""
        lines = [
            f"Estimates {_COVERS[self.kind]}; no interval depends on how well the model was trained. An interval "
            "covers who happens to be in the tables and the noise; not a wrong model, missing values or confounding."
        ]
        if any(one.error is None for one in self.coefficients):
            own = " A column that is the same in all records of a person has none." if self.kind == "cox" else ""
            lines.append(
                "NO INTERVAL where none is shown: with this noise the records say too little about it, or about some "
                f"combination of columns, and the estimate means nothing. More epsilon or people may help.{own}"
            )
        elif not self.finished:
            lines.append("NOT FINISHED: the last step was so long that another one may move the estimates; add rounds.")
        return lines

    def __repr__(self) -> str:
        shown = "; ".join(f"{one.name} {' '.join(self._row(one)[1:3])}" for one in self.coefficients)
        return f"<CoefficientTable: {shown}. {self.statement.headline()}>"

    def _repr_html_(self) -> str:
        head = "".join(f"<th>{escape(name)}</th>" for name in self.headers())
        body = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in self.rows())
        lines = "".join(f"<p>{escape(line)}</p>" for line in [*self.sentences(), self.statement.headline()])
        return f"<table><tr>{head}</tr>{body}</table>{lines}"

    def to_json(self) -> dict[str, Any]:
        """What ``coefficients.json`` of a run directory says; all of it may be shown."""
        listed = [asdict(one) for one in self.coefficients]
        return {"kind": self.kind, "finished": self.finished, "coefficients": listed}

    @classmethod
    def from_json(cls, tree: Mapping[str, Any], statement: Statement, run: str | None) -> CoefficientTable:
        """The table in a run directory.

        Args:
            tree: ``coefficients.json``.
            statement: ``statement.json``.
            run: The directory.

        Raises:
            RunError: The document is damaged.
        """
        try:
            listed = tuple(Coefficient(**one) for one in tree["coefficients"])
            _ = [(str(one.name), float(one.estimate), one.interval, float(one.noise)) for one in listed]
            kind = next(name for name in _COVERS if name == tree["kind"])
            return cls(kind, listed, statement, bool(tree["finished"]), run)
        except (KeyError, TypeError, ValueError, AttributeError, StopIteration) as error:
            raise RunError("is damaged; restore it", location="coefficients.json") from error


def _ratio(one: Coefficient) -> str:
    numbers = (one.estimate, *(one.interval or ()))
    shown = [f"{math.exp(min(number, 700.0)):.3g}" for number in numbers]
    return shown[0] if len(shown) == 1 else f"{shown[0]} ({shown[1]} to {shown[2]})"


def _variances(totals: NewtonTotals, units: Vector) -> tuple[Vector, Vector]:
    """What sampling and what noise contribute to the variance of each coefficient, in the columns' units."""
    inverse, step = totals.inverse(), totals.step()
    rows = units @ inverse
    dispersion = max(float(np.trace(totals.squares) / np.trace(totals.information)), 0.0)
    by_model = dispersion * _diagonal(units, inverse)
    by_scores = _diagonal(rows, totals.squares) - totals.squares_noise * (rows * rows).sum(axis=1)
    identity, energy = np.eye(len(step)), float(step @ step)
    noise = totals.score_noise**2 * identity
    noise += totals.information_noise**2 / 2 * (energy * identity + np.outer(step, step))
    return np.maximum(by_model, by_scores), _diagonal(rows, noise)


def _diagonal(rows: Vector, matrix: Vector) -> Vector:
    """The diagonal of rows matrix rows'."""
    return np.asarray(((rows @ matrix) * rows).sum(axis=1))


def _finished(kind: str, totals: NewtonTotals) -> bool:
    """Whether another step would stay within the intervals. Newton's error goes with the square of the last step.

    A step makes up for the noise of the one before, too: as far as noise explains it, it does not count.
    """
    if kind == "linear":
        return True
    step, known = totals.step(), totals.known
    sampling, noise = _variances(totals, np.eye(len(step)))
    left = max(float(step @ step) - 4 * float(noise.sum()), 0.0) / 4
    errors = np.sqrt(sampling + noise)[known]
    return bool(left <= UNFINISHED * WITHIN_95 * errors.min(initial=math.inf))


def _units(schema: Schema, method: NewtonSteps) -> Vector:
    """The matrix from coefficients of features to those in the columns' own units."""
    of_feature = {one.feature: one for one in contrasts(schema)}
    chosen = [of_feature[feature] for feature in method.features]
    units = np.diag([one.scale for one in chosen])
    if method.kind != "cox":
        shifts = np.array([[1.0, *(one.shift for one in chosen)]])
        units = np.concatenate([shifts, np.concatenate([np.zeros((len(chosen), 1)), units], axis=1)])
    return units * (schema.label.task.label_scale if method.kind == "linear" else 1.0)


def _names(schema: Schema, method: NewtonSteps) -> list[str]:
    of_feature = {one.feature: one.name for one in contrasts(schema)}
    return [*([] if method.kind == "cox" else [INTERCEPT]), *(of_feature[feature] for feature in method.features)]
