"""Made-up federations that have the public shape of a real one: to try settings on, without reading anybody's records.

What is public of a table (people, silos, records per person, columns, classes) is kept. What is not is drawn anew for
every federation, as widely as real tables differ: where in its range a column lies and how far it spreads, what goes
together, how much of the label the columns explain, and how rare the rarer class is.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import numpy.typing as npt

from uldp.data.columns import CategoryColumn
from uldp.data.federation import Federation, IntArray, LabelArray, Records, SiloData, Task
from uldp.data.schema import Schema
from uldp.data.vector_columns import VectorColumn
from uldp.elementary import exp, log, logistic, row_sums
from uldp.rng import Streams

Floats = npt.NDArray[np.float64]
TEST_RECORDS: Final = 2000
CAUSES: Final = 8
STRANGERS: Final = 0.2  # of the people, who are in silos other than their own


@dataclass(frozen=True)
class TableShape:
    """What is public about the tables of a federation.

    Args:
        people: How many there are.
        silos: How many organisations.
        records: Per person, on average, over all silos.
        numbers: Columns of numbers.
        categories: For each column of categories, how many it has.
        classes: Of the label; 0 for a number.
        base_rate: Shares of the classes, or the mean of the label scaled to [-1, 1], where that is public.
        vectors: For each column of vectors, how long they are.

    Example:
        >>> TableShape(people=100, silos=3, records=4.0, numbers=5, categories=(2, 3), classes=2).features
        10
    """

    people: int
    silos: int
    records: float
    numbers: int
    categories: tuple[int, ...] = ()
    classes: int = 2
    base_rate: tuple[float, ...] | None = None
    vectors: tuple[int, ...] = ()

    @classmethod
    def of_schema(cls, schema: Schema, people: int, silos: int, records: float) -> TableShape:
        """The shape of tables under a schema."""
        categories = tuple(len(one.categories) for one in schema.columns if isinstance(one, CategoryColumn))
        vectors = tuple(one.length for one in schema.columns if isinstance(one, VectorColumn))
        numbers = len(schema.columns) - len(categories) - len(vectors)
        return cls(people, silos, records, numbers, categories, schema.label.task.classes, vectors=vectors)

    @property
    def features(self) -> int:
        return self.numbers + sum(self.categories) + sum(self.vectors)

    @property
    def causes(self) -> int:
        """How many numbers everything in a record follows from: one for a column, some for a vector."""
        return self.numbers + len(self.categories) + sum(min(length, CAUSES) for length in self.vectors)


def draw_federation(shape: TableShape, streams: Streams) -> Federation:
    """A federation of this shape; another one for other streams.

    >>> drawn = draw_federation(TableShape(50, 2, 3.0, numbers=4), Streams.from_seed(0))
    >>> drawn.users, len(drawn.silos), drawn.feature_shape
    (50, 2, (4,))
    """
    # What the tables are like does not depend on how many records there are, so that sizes can be compared.
    design, generator = (streams.child("synthetic-tables", part).generator() for part in ("design", "records"))
    count = max(shape.people, round(shape.people * shape.records))
    total = count + TEST_RECORDS
    # Who has a record, in which silo; most people are in one silo, some in others too.
    owner = np.concatenate([np.arange(shape.people), generator.integers(shape.people, size=count - shape.people)])
    home = generator.integers(shape.silos, size=shape.people)
    elsewhere = generator.random(count) < STRANGERS
    silo = np.where(elsewhere, generator.integers(shape.silos, size=count), home[owner])
    signs = design.choice([-1.0, 1.0], shape.causes)
    latent = _latent(owner, silo, total, signs, design, generator)
    columns = (*_number_columns(shape, latent, design), *_categories(shape, latent, design))
    features = np.concatenate([*columns, *_vectors(shape, latent, design)], 1)
    labels = _labels(shape, latent, signs, design, generator)
    records = SiloData("", features[:count].astype(np.float32), labels[:count], owner)
    silos = tuple(replace(records.take(silo == s), name=f"silo-{s + 1}") for s in range(shape.silos))
    test = Records(features[count:].astype(np.float32), labels[count:])
    return Federation("synthetic tables", silos, shape.people, Task(shape.classes), test)


def _latent(
    owner: IntArray, silo: IntArray, total: int, signs: Floats, design: np.random.Generator, draw: np.random.Generator
) -> Floats:
    """(records, columns) of about unit variance: a common cause, what a person and a silo have of their own, chance."""
    columns, count = len(signs), len(owner)
    common, personal, local = design.uniform(0, 0.7), design.uniform(0, 0.2), design.uniform(0, 0.1)
    latent = math.sqrt(1 - common - local - personal) * draw.standard_normal((total, columns))
    latent += math.sqrt(common) * draw.standard_normal((total, 1)) * signs
    person = draw.standard_normal((int(owner.max()) + 1, columns))
    shift = draw.standard_normal((int(silo.max()) + 1, columns))
    latent[:count] += math.sqrt(personal) * person[owner] + math.sqrt(local) * shift[silo]
    latent[count:] += math.sqrt(personal + local) * draw.standard_normal((total - count, columns))
    return latent


def _number_columns(shape: TableShape, latent: Floats, design: np.random.Generator) -> list[Floats]:
    """Each somewhere in its range, and with a spread of a twentieth to a half of it; a third of them are skewed."""
    columns = []
    for column in latent.T[: shape.numbers]:
        spread = 0.1 * 10 ** design.uniform(0, 0.8)
        centre = design.uniform(-0.6, 0.6)
        values = column if design.random() < 2 / 3 else exp(0.7 * column) - 1.28
        columns.append(np.clip(centre + spread * values, -1, 1)[:, None])
    return columns


def _categories(shape: TableShape, latent: Floats, design: np.random.Generator) -> list[Floats]:
    """One-hot, by cutting a latent number where the categories' shares say."""
    columns = []
    first = shape.numbers + len(shape.categories)
    for column, size in zip(latent.T[shape.numbers : first], shape.categories, strict=True):
        shares = design.dirichlet(np.full(size, 2.0))
        cuts = np.quantile(column, np.cumsum(shares)[:-1])
        columns.append(np.eye(size)[np.searchsorted(cuts, column)])
    return columns


def _vectors(shape: TableShape, latent: Floats, design: np.random.Generator) -> list[Floats]:
    """Of norm 1, each a linear map of some causes."""
    columns, start = [], shape.numbers + len(shape.categories)
    for length in shape.vectors:
        stop = start + min(length, CAUSES)
        column = latent[:, start:stop] @ design.standard_normal((stop - start, length))
        columns.append(column / (np.sqrt(row_sums(np.square(column))) + 1e-9)[:, None])
        start = stop
    return columns


def _labels(
    shape: TableShape, latent: Floats, signs: Floats, design: np.random.Generator, draw: np.random.Generator
) -> LabelArray:
    """By a linear rule with a bend, of a strength between hardly any and nearly all.

    The rule is about single columns, about what they have in common, or both: real tables have either.
    """
    outputs = shape.classes if shape.classes > 2 else 1
    width = latent.shape[1]
    rule = design.standard_normal((width, outputs)) * (design.random((width, 1)) < max(0.3, 3 / width))
    rule += 2 * design.random() * signs[:, None] * design.standard_normal(outputs)
    rule /= np.sqrt(np.square(latent @ rule).mean(0)) + 1e-9
    bent = design.standard_normal((width, outputs)) / math.sqrt(width)
    scores = latent @ rule + design.uniform(0, 0.4) * (np.square(latent @ bent) - 1)
    if not shape.classes:
        noise = 0.2 * 10 ** design.uniform(0, 1) * draw.standard_normal(len(scores))
        spread, centre = 0.05 * 10 ** design.uniform(0, 0.9), design.uniform(-0.5, 0.5)
        centre = centre if shape.base_rate is None else shape.base_rate[0]
        return np.asarray(np.clip(centre + spread * (scores[:, 0] + noise), -1, 1), dtype=np.float32)
    scores *= 10 ** design.uniform(0, 1.3)
    if outputs == 1:
        rare = 0.5 * 10 ** design.uniform(-1, 0) if shape.base_rate is None else shape.base_rate[-1]
        chance = logistic(scores[:, 0] + _offset(scores[:, 0], rare))
        return np.asarray(draw.random(len(scores)) < chance, dtype=np.int64)
    shares = design.dirichlet(np.full(outputs, 4.0)) if shape.base_rate is None else np.array(shape.base_rate)
    gumbel = -log(-log(1.0 - draw.random(scores.shape)))
    labels: npt.NDArray[np.int64] = np.argmax(scores + log(np.maximum(shares, 1e-6)) + gumbel, axis=1).astype(np.int64)
    return labels


def _offset(scores: Floats, share: float) -> float:
    """What is added to the scores so that ``share`` of the records are positive."""
    low, high = -40.0, 40.0
    for _ in range(40):  # by hand: scipy's root finders may round differently on another processor, and so would tables
        middle = (low + high) / 2
        low, high = (middle, high) if float(logistic(scores + middle).mean()) < share else (low, middle)
    return low
