"""A description of the data, computed from one vector of noised tallies: it costs no more than that vector did.

Every column's bins hold the same people, so their totals are estimated together. A column's counts are then the nearest
ones that are not negative and have this total. What is said beside an estimate as its error is 1.96 standard deviations
of the noise: the estimate is off by no more in 95 of 100 cases.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from html import escape
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from uldp.data.tallies import ABSENT_BIN, OFFSET_WEIGHT, NumberTally, Tally, tallies
from uldp.errors import RunError
from uldp.privacy.statement import Statement

if TYPE_CHECKING:
    import pandas as pd

    from uldp.data.schema import Schema
    from uldp.vectors import Vector

WITHIN_95: Final = 1.96
QUANTILES: Final = (0.05, 0.25, 0.5, 0.75, 0.95)


@dataclass(frozen=True)
class QuantileEstimate:
    """A quantile of people's numbers, and the edges of bins between which it lies.

    Args:
        share: Which quantile: 0.5 for the median.
        value: The estimate.
        low: It is not below this, in 95 of 100 cases.
        high: Nor above this.

    Example:
        >>> QuantileEstimate(0.5, 61.2, 55.0, 66.0).value
        61.2
    """

    share: float
    value: float
    low: float
    high: float


@dataclass(frozen=True)
class ColumnDescription:
    """What is known of one column.

    Args:
        name: The column.
        bins: What its bins are called, from the schema.
        counts: About how many people are in each; someone with several records counts for a part in several bins.
        missing: The share of records that have no value, where every person counts the same.
        mean: Of a column of numbers, where what is outside the range counts as its end; None without a usable estimate.
        mean_error: It is off by no more in 95 of 100 cases.
        quantiles: Likewise of numbers.

    Example:
        >>> ColumnDescription("sex", ("f", "m", "missing"), (40.0, 50.0, 10.0), 0.1).shares
        (0.4, 0.5, 0.1)
    """

    name: str
    bins: tuple[str, ...]
    counts: tuple[float, ...]
    missing: float
    mean: float | None = None
    mean_error: float | None = None
    quantiles: tuple[QuantileEstimate, ...] = ()

    @property
    def shares(self) -> tuple[float, ...]:
        """The share of people in each bin."""
        people = sum(self.counts)
        return tuple(count / people for count in self.counts)

    @property
    def is_number(self) -> bool:
        return bool(self.quantiles)

    @classmethod
    def from_json(cls, tree: dict[str, Any]) -> ColumnDescription:
        """The column in a document.

        Args:
            tree: What :func:`dataclasses.asdict` made of it.
        """
        quantiles = tuple(QuantileEstimate(**one) for one in tree["quantiles"])
        return cls(**{**tree, "bins": tuple(tree["bins"]), "counts": tuple(tree["counts"]), "quantiles": quantiles})


@dataclass(frozen=True, repr=False)
class Description:
    """Counts, histograms, means and quantiles of all columns, with user-level differential privacy.

    Args:
        people: About how many people have records.
        people_error: Off by no more in 95 of 100 cases.
        count_error: The same for the count of one bin.
        columns: A description of each column, the label's last.
        statement: Which epsilon holds against which adversary.
        run: The run directory, where there is one.
        hashed_ids: Whether people whose ids share a bucket count as one.

    Example:
        >>> import pandas as pd
        >>> from uldp import Schema, describe
        >>> frame = pd.DataFrame({"id": range(400), "age": [30, 60] * 200, "ill": [0, 1] * 200})
        >>> schema = Schema.classes("ill", [0, 1]).numeric("age", 0, 100)
        >>> found = describe({"north": frame[:200], "south": frame[200:]}, user="id", label="ill", schema=schema,
        ...                  users=4000, epsilon=1.0, secrets="simulated")
        >>> abs(found.people - 400) < 2 * found.people_error, abs(found["age"].mean - 45) < 2 * found["age"].mean_error
        (True, True)
    """

    people: float
    people_error: float
    count_error: float
    columns: tuple[ColumnDescription, ...]
    statement: Statement
    run: str | None = None
    hashed_ids: bool = False

    @classmethod
    def of(
        cls, schema: Schema, totals: Vector, deviation: float, users: int, statement: Statement, hashed_ids: bool
    ) -> Description:
        """The description in noised tallies.

        Args:
            schema: The schema of the tallies.
            totals: The noised sums, one for each feature of the schema.
            deviation: Of the noise in each of them.
            users: |U|; there are no more people.
            statement: Of the run.
            hashed_ids: Whether two people may share a user index.
        """
        columns, parts = tallies(schema), list(_parts(tallies(schema), totals))
        inverse = sum(1 / len(bins) for bins, _ in parts)
        people = sum(float(bins.sum()) / len(bins) for bins, _ in parts) / inverse
        people = min(max(people, 1.0), float(users))
        described = tuple(
            _describe(column, bins, place, people, deviation)
            for column, (bins, place) in zip(columns, parts, strict=True)
        )
        errors = people_error(columns, deviation), count_error(deviation)
        return cls(people, *errors, described, statement, hashed_ids=hashed_ids)

    @property
    def epsilon(self) -> float:
        """What this description cost, against anyone who sees it."""
        return self.statement.epsilon

    @property
    def share_error(self) -> float:
        """The error of a share of people, such as that of missing values."""
        return min(1.0, self.count_error / self.people)

    def __getitem__(self, name: str) -> ColumnDescription:
        """The column of this name."""
        return next(column for column in self.columns if column.name == name)

    def table(self) -> pd.DataFrame:
        """One row for each column: missing, mean, quantiles."""
        import pandas as pd

        rows = [
            {
                "column": one.name,
                "missing": one.missing,
                "mean": one.mean,
                "mean_error": one.mean_error,
                **{f"{found.share:.0%}": found.value for found in one.quantiles},
            }
            for one in self.columns
        ]
        return pd.DataFrame(rows).set_index("column")

    def histogram(self, name: str) -> pd.Series:
        """About how many people are in each bin of a column.

        Args:
            name: The column.
        """
        import pandas as pd

        column = self[name]
        return pd.Series(column.counts, index=pd.Index(column.bins), name=name)

    def sentences(self) -> list[str]:
        """How many people there are, and how far each number may be off."""
        return [
            f"About {self.people:.0f} people (± {self.people_error:.0f}). Every count is off by at most "
            f"{self.count_error:.0f} people, every share by {self.share_error:.1%}, in 95 of 100 cases.",
            "A person counts once in each column, however many records there are."
            + (" People whose ids share a bucket count as one." if self.hashed_ids else ""),
        ]

    def rows(self) -> list[tuple[str, str, str, str, str]]:
        """(column, missing, mean, 5 % / median / 95 %, the rest) for people."""
        return [_row(column) for column in self.columns]

    def __repr__(self) -> str:
        return f"<Description: {len(self.columns)} columns, {self.sentences()[0]} {self.statement.headline()}>"

    def _repr_html_(self) -> str:
        head = "".join(f"<th>{escape(name)}</th>" for name in HEADERS)
        body = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in self.rows())
        lines = "".join(f"<p>{escape(line)}</p>" for line in [*self.sentences(), self.statement.headline()])
        return f"<table><tr>{head}</tr>{body}</table>{lines}"

    def to_json(self) -> dict[str, Any]:
        """What ``description.json`` of a run directory says; all of it may be shown."""
        about = {"people": self.people, "people_error": self.people_error, "count_error": self.count_error}
        return {**about, "hashed_ids": self.hashed_ids, "columns": [asdict(one) for one in self.columns]}

    @classmethod
    def from_json(cls, tree: dict[str, Any], statement: Statement, run: str | None) -> Description:
        """The description in a run directory.

        Args:
            tree: ``description.json``.
            statement: ``statement.json``.
            run: The directory.

        Raises:
            RunError: The document is damaged.
        """
        try:
            columns = tuple(ColumnDescription.from_json(one) for one in tree["columns"])
            errors = float(tree["people_error"]), float(tree["count_error"])
            return cls(float(tree["people"]), *errors, columns, statement, run, bool(tree["hashed_ids"]))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise RunError("is damaged; restore it", location="description.json") from error


HEADERS: Final = ("column", "missing", "mean", "5 % / median / 95 %", "shares")


def count_error(deviation: float) -> float:
    """How far the count of one bin may be off, in 95 of 100 cases: the noise of one bin."""
    return WITHIN_95 * deviation


def people_error(columns: Sequence[Tally], deviation: float) -> float:
    """The same for the number of people, which is estimated from all columns together."""
    return WITHIN_95 * deviation / math.sqrt(sum(1 / len(column.bins) for column in columns))


def _parts(columns: Sequence[Tally], totals: Vector) -> Iterator[tuple[Vector, float]]:
    """Each column's bins, and the sum of places within them."""
    start = 0
    for column in columns:
        end = start + len(column.feature_names())
        bins = totals[start : start + len(column.bins)]
        yield bins, float(totals[end - 1]) / OFFSET_WEIGHT if isinstance(column, NumberTally) else 0.0
        start = end


def nearest_counts(bins: Vector, people: float) -> Vector:
    """The nearest counts that are not negative and add up to ``people``.

    >>> nearest_counts(np.array([8.0, 4.0, -3.0]), 10.0).tolist()
    [7.0, 3.0, 0.0]
    """
    ordered = np.sort(bins)[::-1]
    surplus = (np.cumsum(ordered) - people) / np.arange(1, len(bins) + 1)
    level = surplus[np.flatnonzero(ordered > surplus)[-1]]
    return np.asarray(np.maximum(bins - level, 0.0))


def _describe(column: Tally, bins: Vector, place: float, people: float, deviation: float) -> ColumnDescription:
    counts = nearest_counts(bins, people)
    missing = float(counts[column.bins.index(ABSENT_BIN)]) / people
    plain = ColumnDescription(column.name, column.bins, tuple(counts.tolist()), missing)
    if not isinstance(column, NumberTally):
        return plain
    known = counts[: column.parts + 2]
    total = float(known.sum())
    if total <= count_error(deviation):  # nobody is known to have a number
        return plain
    edges, half = column.edges, (column.source.high - column.source.low) / column.parts / 2
    middles = np.concatenate([edges[:1], (edges[1:] + edges[:-1]) / 2, edges[-1:]])
    mean = (float((known * middles).sum()) + half * min(max(place, -total), total)) / total
    noise = math.fsum(((middles - mean) ** 2).tolist()) + (half / OFFSET_WEIGHT) ** 2
    error = min(WITHIN_95 * deviation * math.sqrt(noise) / total, column.source.high - column.source.low)
    mean = min(max(mean, column.source.low), column.source.high)
    quantiles = tuple(_quantile(share, known, edges, deviation) for share in QUANTILES)
    return ColumnDescription(column.name, column.bins, plain.counts, missing, mean, error, quantiles)


def _quantile(share: float, known: Vector, edges: Vector, deviation: float) -> QuantileEstimate:
    """Within a bin people are taken to lie evenly; the limits are edges of bins, where nothing is assumed."""
    total = float(known.sum())
    upto = np.cumsum(known)[:-1] / total  # the share of people below each edge
    # The shares below and above an edge add up to 1, so noise moves them against each other.
    below = np.arange(1, len(known))
    errors = WITHIN_95 * deviation / total * np.sqrt(below * (len(known) - below) / len(known))
    reached = np.flatnonzero(upto + errors >= share)
    surely = np.flatnonzero(upto - errors >= share)
    low = float(edges[max(int(reached[0]) - 1, 0)]) if len(reached) else float(edges[-1])
    high = float(edges[int(surely[0])]) if len(surely) else float(edges[-1])
    value = float(np.interp(share, upto, edges))
    return QuantileEstimate(share, min(max(value, low), high), low, high)


def _row(column: ColumnDescription) -> tuple[str, str, str, str, str]:
    missing = f"{column.missing:.1%}"
    if not column.is_number:
        return column.name, missing, "", "", _shares(column, range(len(column.bins) - 1))
    mean = "" if column.mean is None else f"{column.mean:.4g} ± {column.mean_error:.2g}"
    low, median, high = (found.value for found in column.quantiles if found.share in (0.05, 0.5, 0.95))
    outside = _shares(column, (0, len(column.bins) - 3, len(column.bins) - 1))
    return column.name, missing, mean, f"{low:.4g} / {median:.4g} / {high:.4g}", outside


def _shares(column: ColumnDescription, places: Sequence[int]) -> str:
    return ", ".join(f"{column.bins[place]} {column.shares[place]:.1%}" for place in places if column.counts[place] > 0)
