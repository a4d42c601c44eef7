"""scikit-learn estimators: ``fit(X, y, users=..., silos=...)`` trains with user-level differential privacy.

What an estimator learned from X and y outside of the noised rounds would be covered by no epsilon. So ranges of
features and labels are parameters, and values are clipped to them. What has to be read from the data all the same (the
number of columns; classes, users or silos that nobody listed) counts as public, and the statement says so.
"""

from __future__ import annotations

import hashlib
import secrets as system
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

import numpy as np
import numpy.typing as npt
import pandas as pd
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from uldp.caveats import Caveat, Severity
from uldp.data.columns import NumberColumn
from uldp.data.federation import Federation, People
from uldp.data.labels import ClassLabel, Label, NumberLabel
from uldp.data.memory import ARRAYS
from uldp.data.schema import Schema
from uldp.errors import ConfigError, DataError, format_value
from uldp.library.cells import (
    Range,
    clip_to_range,
    number_range,
    one_dimensional,
    text_columns,
    warn,
    without_cells,
)
from uldp.library.training import train
from uldp.methods.base import Method

if TYPE_CHECKING:
    from torch import nn

L = TypeVar("L", ClassLabel, NumberLabel)
CLASSES_FROM_DATA: Final = Caveat(
    "classes-from-data",
    "The list of classes was read from the labels, so the guarantee takes it for public which classes occur; the "
    "parameter classes lists them without a look at the data.",
    Severity.WEAKENS,
)
ROWS_AS_USERS: Final = Caveat(
    "rows-as-users",
    "No users were given, so each row counted as a user: of somebody who has several rows, single rows are hidden and "
    "not the person; and the number of rows counts as public.",
    Severity.LIMITS,
)
SILOS_FROM_DATA: Final = Caveat(
    "silos-from-data",
    "The list of silos was read from the rows, so the guarantee takes it for public which silos have records.",
    Severity.LIMITS,
)


@dataclass(kw_only=True, eq=False, repr=False)
class _Estimator(BaseEstimator):  # type: ignore[misc]
    """What both estimators share. A dataclass, for scikit-learn reads parameters off the signature of ``__init__``."""

    feature_range: Range | None = None
    schema: Schema | None = None
    roster: int | Sequence[str | int] | None = None
    epsilon: float | None = None
    delta: float | None = None
    rounds: int | None = None
    method: Method | str = "auto"
    model: nn.Module | str = "auto"
    options: Mapping[str, Any] | None = None
    secrets: str = "os"
    random_state: int | np.random.RandomState | None = None

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.non_deterministic = self.secrets != "simulated"
        cells = tags.input_tags
        cells.allow_nan = cells.string = cells.categorical = self.schema is not None
        return tags

    def _rows(self, X: Any, *, reset: bool) -> pd.DataFrame:
        """X as a table: as it is where a schema describes it, else of numbers."""
        if self.schema is not None:
            if not isinstance(X, pd.DataFrame):
                raise DataError(
                    f"a data frame with the schema's columns is needed, not {format_value(X)}", location="X"
                )
            validate_data(self, X, reset=reset, skip_check_array=True)
            return X.reset_index(drop=True)
        if isinstance(X, pd.DataFrame) and (texts := text_columns(X)):
            raise DataError(
                f"no numbers in column(s) {', '.join(texts)}: describe the columns by a schema "
                "(schema=uldp.Schema.classes(...).category(...).numeric(...)), or pass numbers only",
                location="X",
            )
        matrix = validate_data(self, X, reset=reset, dtype=np.float64, ensure_min_samples=2 if reset else 1)
        names = getattr(self, "feature_names_in_", [f"x{column}" for column in range(matrix.shape[1])])
        return pd.DataFrame(matrix, columns=list(names))

    def _train(self, X: Any, y: npt.NDArray[Any], label: Label, people: tuple[Any, Any], caveats: list[Caveat]) -> None:
        """Train on X and labels that were read; ``people`` are ``users`` and ``silos`` as they were passed."""
        rows = self._rows(X, reset=True)
        if len(rows) != len(y):
            raise DataError(f"X has {len(rows)} rows and y has {len(y)} labels", location="fit")
        schema = self._schema(rows, label)
        if self.schema is None:
            low, high = number_range(self.feature_range, len(schema.columns), "feature_range")
            rows = pd.DataFrame(clip_to_range(rows.to_numpy(), low, high, "X", "feature_range"), columns=rows.columns)
            caveats.append(ARRAYS)
        seed = self._seed()
        federation = self._federation(rows, y, schema, people, seed)
        federation = replace(federation, caveats=(*federation.caveats, *caveats))
        given = {name: getattr(self, name) for name in ("epsilon", "delta", "rounds", "options")}
        settings: Any = {name: value for name, value in given.items() if value is not None}
        settings |= {"method": self.method, "model": self.model, "secrets": self.secrets, "seed": seed}
        result = train(federation, progress=False, **settings)
        self.result_, self.epsilon_, self.statement_ = result, result.epsilon, result.statement
        if not result.complete:
            raise KeyboardInterrupt  # pressed during a round: whoever fits many estimators must stop too
        if result.total is not None and result.total > result.epsilon * (1 + 1e-9):
            warn(
                f"these people were trained on before in this process: together epsilon {result.total:.3g}; each fold "
                "of a cross-validation and each candidate of a search spends budget"
            )

    def _schema(self, rows: pd.DataFrame, label: Label) -> Schema:
        if self.schema is not None:
            return self.schema
        low, high = number_range(self.feature_range, len(rows.columns), "feature_range")
        limits = zip(rows.columns, low.tolist(), high.tolist(), strict=True)
        label = replace(label, name=_unused_name("label", list(rows.columns)))
        return Schema(tuple(NumberColumn(*column) for column in limits), label, outside="clip")

    def _federation(
        self, rows: pd.DataFrame, y: npt.NDArray[Any], schema: Schema, people: tuple[Any, Any], seed: int
    ) -> Federation:
        """The rows by silos, each with its user, and what a statement must say about that."""
        users, silos = people
        caveats: list[Caveat] = []
        roster = self.roster
        if users is None:
            warn("no users were given: each row counts as a user, so somebody who has several rows is not protected")
            if roster is not None:
                raise ConfigError("goes with users, the id of each row", location="roster")
            ids, roster = np.arange(len(rows)), range(len(rows))
            caveats.append(ROWS_AS_USERS)
        else:
            ids = one_dimensional(users, "users", len(rows))
        if silos is None:
            warn("no silos were given: all rows are one silo's")
            names = np.full(len(rows), "all")
        else:
            names = one_dimensional(silos, "silos", len(rows)).astype(str)
            caveats.append(SILOS_FROM_DATA)
        user = _unused_name("user", [*rows.columns, schema.label.name])
        table = rows.assign(**{schema.label.name: y, user: ids})
        federation = Federation.from_frames(
            {str(name): table[names == name] for name in np.unique(names)},
            user=user,
            label=schema.label.name,
            schema=schema,
            test_fraction=0,
            users=roster,
            seed=seed,
        )
        known = _row_digests(federation) if users is None else federation.people
        return replace(federation, caveats=(*federation.caveats, *caveats), people=known)

    def _seed(self) -> int:
        """The public seed. None draws one: with noise from the operating system no two fits are the same anyway."""
        state = self.random_state
        if isinstance(state, np.random.RandomState):
            return int(state.randint(2**31))
        return system.randbits(31) if state is None else state

    def _schema_label(self, parameter: str, kind: type[L]) -> L | None:
        """The label of the schema, where there is one; it must go with the other parameters."""
        if self.schema is None:
            return None
        if not isinstance(self.schema, Schema):
            raise ConfigError(f"a uldp.Schema, not {format_value(self.schema)}", location="schema")
        for name in ("feature_range", parameter):
            if getattr(self, name) is not None:
                raise ConfigError("is part of the schema; give one of them", location=name)
        label = self.schema.label
        if not isinstance(label, kind):
            other = "UldpRegressor" if kind is ClassLabel else "UldpClassifier"
            raise ConfigError(f"its label is for {other}", location="schema")
        return label


@dataclass(kw_only=True, eq=False, repr=False)
class UldpClassifier(ClassifierMixin, _Estimator):  # type: ignore[misc]
    """A scikit-learn classifier that is trained over silos with user-level differential privacy.

    Args:
        feature_range: (lowest, highest) of all features, or two lists with a number per column. Public; values beyond
            are clipped.
        classes: The public list of classes. Without it they are read from the labels, with a warning and a caveat.
        schema: Instead of both, for data frames with columns of several kinds (:class:`uldp.Schema`).
        roster: The public list of all user ids, or the number of users that ids are hashed into. Without it the ids in
            ``users`` count as public, and the statement says so.
        epsilon: The budget of one call of ``fit``; the noise is calibrated to it.
        delta: As for :func:`uldp.train`.
        rounds: How many.
        method: A name or a :class:`uldp.Method`.
        model: An ``nn.Module``, a name from the zoo, or "auto".
        options: Any other settings of an experiment file, such as ``{"aggregation.name": "plain"}``.
        secrets: "os" for secret noise, "simulated" for noise from ``random_state``: then nobody is protected.
        random_state: The public seed of everything that is not secret.

    Attributes:
        classes_, n_features_in_, feature_names_in_: As everywhere in scikit-learn.
        result_: The :class:`uldp.Result`, with ``module()``, ``history`` and ``total``.
        epsilon_, statement_: What was spent, and against whom it holds.

    Example:
        >>> import warnings
        >>> X, y = np.tile([[20.0], [60.0]], (50, 1)), np.tile([0, 1], 50)
        >>> model = UldpClassifier(feature_range=(0, 110), classes=[0, 1], epsilon=5.0, rounds=3)
        >>> with warnings.catch_warnings(action="ignore"):  # users and silos are not given
        ...     model = model.fit(X, y)
        >>> model.predict_proba(X).shape, round(model.epsilon_, 2)
        ((100, 2), 5.0)
    """

    classes: Sequence[Any] | None = None

    def fit(self, X: Any, y: Any, *, users: Any = None, silos: Any = None) -> Self:
        """Train, and spend ``epsilon`` on the users in these rows.

        Args:
            X: (rows, features): numbers, or a data frame as the schema says.
            y: The class of each row.
            users: Whose record each row is. Without it each row is a user.
            silos: Whose table each row is in. Without it there is one silo.

        Returns:
            This estimator.

        Raises:
            ValueError: X, y or a parameter is wrong; nothing was trained and nothing spent. No message shows a cell.
        """
        with without_cells("fit"):
            labels = one_dimensional(y, "y")
            check_classification_targets(labels)
            label, caveats = self._label(labels)
            self._train(X, labels, label, (users, silos), caveats)
        # Sorted, for tools of scikit-learn rely on it; the schema's own order need not be.
        self.classes_, self._order = np.unique(np.array(label.classes), return_index=True)
        return self

    def predict_proba(self, X: Any) -> npt.NDArray[np.float64]:
        """(rows, classes): the probability of each class, in the order of ``classes_``.

        Args:
            X: (rows, features), as for :meth:`fit`.
        """
        check_is_fitted(self)
        with without_cells("predict"):
            scores: npt.NDArray[np.float64] = self.result_.predict_proba(self._rows(X, reset=False))[:, self._order]
        return scores

    def predict(self, X: Any) -> npt.NDArray[Any]:
        """The likeliest class of each row.

        Args:
            X: (rows, features), as for :meth:`fit`.
        """
        likeliest = self.predict_proba(X).argmax(axis=1)
        classes: npt.NDArray[Any] = self.classes_[likeliest]
        return classes

    def _label(self, labels: npt.NDArray[Any]) -> tuple[ClassLabel, list[Caveat]]:
        label, caveats = self._schema_label("classes", ClassLabel), []
        if label is None and self.classes is not None:
            label = _class_label(one_dimensional(self.classes, "classes"), "classes")
        elif label is None:
            label, caveats = _class_label(np.unique(labels), "y"), [CLASSES_FROM_DATA]
            warn("no classes were given: those in y count as public")
        unknown = label.codes(pd.Series(labels)) < 0
        if unknown.any():
            where = "the schema" if self.schema is not None else "classes"
            reason = f"{int(unknown.sum())} labels are not among {where} (first: row {int(np.argmax(unknown))})"
            raise DataError(reason, location="y")
        return label, caveats


@dataclass(kw_only=True, eq=False, repr=False)
class UldpRegressor(RegressorMixin, _Estimator):  # type: ignore[misc]
    """A scikit-learn regressor that is trained over silos with user-level differential privacy.

    Args:
        feature_range: (lowest, highest) of all features, or two lists with a number per column. Public; values beyond
            are clipped.
        label_range: (lowest, highest) label. Public; labels beyond are clipped, and so are predictions.
        schema: Instead of both, for data frames with columns of several kinds (:class:`uldp.Schema`).
        roster: As for :class:`UldpClassifier`, and so are all others.
        epsilon: The budget of one call of ``fit``; the noise is calibrated to it.
        delta: As for :func:`uldp.train`.
        rounds: How many.
        method: A name or a :class:`uldp.Method`.
        model: An ``nn.Module``, a name from the zoo, or "auto".
        options: Any other settings of an experiment file, such as ``{"aggregation.name": "plain"}``.
        secrets: "os" for secret noise, "simulated" for noise from ``random_state``: then nobody is protected.
        random_state: The public seed of everything that is not secret.

    Example:
        >>> import warnings
        >>> X = np.linspace(0, 1, 200)[:, None]
        >>> model = UldpRegressor(feature_range=(0, 1), label_range=(0, 10), epsilon=5.0, rounds=3)
        >>> with warnings.catch_warnings(action="ignore"):  # users and silos are not given
        ...     model = model.fit(X, 10 * X[:, 0])
        >>> model.predict(X).shape, round(model.epsilon_, 2)
        ((200,), 5.0)
    """

    label_range: tuple[float, float] | None = None

    def fit(self, X: Any, y: Any, *, users: Any = None, silos: Any = None) -> Self:
        """Train, and spend ``epsilon`` on the users in these rows.

        Args:
            X: (rows, features): numbers, or a data frame as the schema says.
            y: The number to predict for each row.
            users: Whose record each row is. Without it each row is a user.
            silos: Whose table each row is in. Without it there is one silo.

        Returns:
            This estimator.

        Raises:
            ValueError: X, y or a parameter is wrong; nothing was trained and nothing spent. No message shows a cell.
        """
        with without_cells("fit"):
            labels = one_dimensional(one_dimensional(y, "y").astype(np.float64), "y")
            label = self._schema_label("label_range", NumberLabel)
            if label is None:
                low, high = number_range(self.label_range, 1, "label_range")
                labels, label = clip_to_range(labels, low, high, "y", "label_range"), NumberLabel("label", *low, *high)
            self._train(X, labels, label, (users, silos), [])
        return self

    def predict(self, X: Any) -> npt.NDArray[np.float64]:
        """The number for each row, within the label's range.

        Args:
            X: (rows, features), as for :meth:`fit`.
        """
        check_is_fitted(self)
        with without_cells("predict"):
            numbers: npt.NDArray[np.float64] = self.result_.predict(self._rows(X, reset=False))
        return numbers


def _class_label(found: npt.NDArray[Any], location: str) -> ClassLabel:
    if len(found) < 2:
        raise DataError(f"{len(found)} class; a classifier needs at least two classes", location=location)
    label: Label | None = None
    with suppress(ConfigError):  # it lists the classes, which may have been read from the data
        label = Schema.classes("label", found.tolist()).label
    if not isinstance(label, ClassLabel):
        raise DataError("classes are texts, numbers or true/false, each spelled in one way", location=location)
    return label


def _unused_name(name: str, names: Sequence[str]) -> str:
    """A name for a column that is not there yet."""
    while name in names:
        name += "_"
    return name


def _row_digests(federation: Federation) -> People:
    """Rows instead of ids: another fit on some of the same rows, a fold for instance, is about the same people."""
    digests = {
        hashlib.blake2b(features.tobytes() + label.tobytes(), digest_size=16).hexdigest()
        for silo in federation
        for features, label in zip(silo.features, silo.labels, strict=True)
    }
    assert federation.people is not None
    return People(frozenset(digests), federation.people.tables)
