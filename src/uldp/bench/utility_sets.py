"""The data sets of ``uldp bench utility``: people with several records in several silos, under public ranges.

Ranges are round numbers that somebody who knows the field would write down before seeing the records, never their
minimum and maximum; values outside are clipped. The families are made up, each with what real tables have: skewed and
correlated columns, people whose records resemble each other, silos that differ.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from uldp.data.allocate import allocate
from uldp.data.builtin import load_builtin
from uldp.data.federation import Federation, IntArray, Records, SiloData
from uldp.data.schema import Schema
from uldp.data.sets.base import split
from uldp.elementary import exp, logistic
from uldp.rng import Streams

if TYPE_CHECKING:
    import pandas as pd

Floats = npt.NDArray[np.float64]
Ranges = Mapping[str, tuple[float, float]]
TEST_SHARE: Final = 0.3
FILES: Final = "ULDP-FL"


@dataclass(frozen=True)
class UtilitySet:
    """A data set of the benchmark; ``make`` draws people, silos and the division from streams.

    ``files`` says that it is read from files that may not be here, ``searched`` that settings were chosen by looking at
    it: the others judge what was chosen.
    """

    name: str
    about: str
    make: Callable[[Streams], Federation]
    files: bool = False
    searched: bool = False


# --- scikit-learn's sets --------------------------------------------------------------------------------------

IRIS: Final[Ranges] = {
    "sepal length": (3, 9),
    "sepal width": (1, 6),
    "petal length": (0, 8),
    "petal width": (0, 3),
}  # cm
WINE: Final[Ranges] = {
    "alcohol": (8, 16),  # % by volume
    "malic acid": (0, 8),  # g/l, as the further ones where nothing else is said
    "ash": (0.5, 4.5),
    "alcalinity of ash": (5, 35),
    "magnesium": (50, 200),  # mg/l
    "phenols": (0, 5),
    "flavanoids": (0, 6),
    "other phenols": (0, 1),
    "proanthocyanins": (0, 5),
    "colour": (0, 15),
    "hue": (0, 2),
    "od280/od315": (1, 5),
    "proline": (100, 2000),  # mg/l
}
DIABETES: Final[Ranges] = {
    "age": (18, 90),
    "sex": (1, 2),
    "body mass index": (15, 50),
    "blood pressure": (50, 150),  # mean arterial, mm Hg
    "cholesterol": (80, 320),  # mg/dl
    "ldl": (30, 260),
    "hdl": (15, 110),
    "cholesterol / hdl": (1, 10),
    "log triglycerides": (3, 6.5),
    "glucose": (50, 150),
}
_NUCLEI: Final = {  # mean, standard error, worst; lengths in micrometres
    "radius": ((5, 30), (0, 3), (5, 40)),
    "texture": ((5, 45), (0, 5), (5, 55)),
    "perimeter": ((30, 200), (0, 25), (30, 280)),
    "area": ((50, 2700), (0, 600), (50, 4500)),
    "smoothness": ((0, 0.2), (0, 0.04), (0, 0.25)),
    "compactness": ((0, 0.4), (0, 0.15), (0, 1.2)),
    "concavity": ((0, 0.5), (0, 0.4), (0, 1.4)),
    "concave points": ((0, 0.25), (0, 0.06), (0, 0.35)),
    "symmetry": ((0, 0.4), (0, 0.1), (0, 0.8)),
    "fractal dimension": ((0.03, 0.12), (0, 0.03), (0.03, 0.25)),
}
NUCLEI: Final[Ranges] = {
    f"{part} {name}": ranges[place]
    for place, part in enumerate(("mean", "error of", "worst"))
    for name, ranges in _NUCLEI.items()
}


def _scikit(name: str, ranges: Ranges, people: int, silos: int, classes: int, streams: Streams) -> Federation:
    """A set that comes with scikit-learn; its records are dealt to people and silos by a Zipf law."""
    import pandas as pd
    from sklearn import datasets

    options = {"scaled": False} if name == "diabetes" else {}
    features, labels = getattr(datasets, f"load_{name}")(return_X_y=True, **options)
    schema = _schema(ranges, "label", range(classes) if classes else (0.0, 400.0))  # 400: of diabetes, its only number
    frame = pd.DataFrame(features, columns=list(ranges)).assign(label=labels)
    records = Records(schema.features(frame, name), schema.labels(frame, name))
    train, test = split(records, TEST_SHARE, streams, stratify=classes > 0)
    strata = train.labels if classes else np.zeros(len(train), np.int64)
    user, silo = allocate(strata, people, silos, "zipf", streams.child("people"), user_exponent=0.5, silo_exponent=1.0)
    return _federation(name, SiloData("", train.features, train.labels, user), silo, people, test, schema)


def _schema(ranges: Ranges, label: str, values: range | tuple[float, float]) -> Schema:
    schema = Schema.classes(label, list(values)) if isinstance(values, range) else Schema.numbers(label, *values)
    for name, (low, high) in ranges.items():
        schema = schema.numeric(name, low, high)
    return replace(schema, outside="clip")


def _federation(name: str, train: SiloData, silo: IntArray, people: int, test: Records, schema: Schema) -> Federation:
    silos = tuple(replace(train.take(silo == s), name=f"silo-{s + 1}") for s in range(int(silo.max()) + 1))
    return Federation(name, silos, people, schema.label.task, test, schema=schema)


# --- the papers' sets -----------------------------------------------------------------------------------------


def _built_in(name: str, people: int, streams: Streams) -> Federation:
    """By its own loader, which scales by constants that it documents."""
    return load_builtin(name, people, None, None, streams)


# --- families -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Family:
    """Made-up tables. ``width`` is how many times the ranges are wider than they need be.

    ``label`` is ``classes`` (with their ``shares``), ``dollars`` (skewed amounts) or ``counts``; numbers are in a
    ``unit`` of their own.
    """

    people: int
    records: int
    features: int
    silos: int = 4
    shares: tuple[float, ...] = (0.5, 0.5)
    label: str = "classes"
    strength: float = 3.0
    bend: float = 0.0
    width: float = 1.0
    unit: float = 1.0


def made_up(name: str, family: Family, streams: Streams) -> Federation:
    generator = streams.child("family", name).generator()
    count = family.people * family.records
    tested = max(2000, count // 10)
    user = np.concatenate([np.arange(family.people), generator.integers(family.people, size=count - family.people)])
    # A person is mostly in one silo, and sometimes elsewhere.
    home = generator.integers(family.silos, size=family.people)
    silo = np.where(generator.random(count) < 0.8, home[user], generator.integers(family.silos, size=count))
    shifts = 0.4 * generator.standard_normal((family.silos, family.features))
    own = 0.5 * generator.standard_normal((family.people, family.features))
    z = generator.standard_normal((count + tested, family.features))
    z += generator.standard_normal((count + tested, 1)) * generator.uniform(
        -0.7, 0.7, family.features
    )  # a common cause
    z[:count] += own[user] + shifts[silo]
    z[count:] += 0.64 * generator.standard_normal((tested, family.features))  # people who are not in training
    z /= math.sqrt(1.6)
    schema, frame = _table(family, z, generator)
    features, labels = schema.features(frame, name), schema.labels(frame, name)
    train, test = SiloData("", features[:count], labels[:count], user), Records(features[count:], labels[count:])
    return _federation(name, train, silo, family.people, test, schema)


def _table(family: Family, z: Floats, generator: np.random.Generator) -> tuple[Schema, pd.DataFrame]:
    """The columns in units of their own: a third each normal, skewed, yes or no; and the label."""
    import pandas as pd

    columns: dict[str, Floats] = {}
    ranges: dict[str, tuple[float, float]] = {}
    for j, column in enumerate(z.T):
        unit = 10.0 ** (j % 5 - 1)
        values = (column, exp(0.6 * column), (column > 0.3).astype(np.float64))[j % 3]
        low, high = ((-3.5, 3.5), (0.0, 6.0), (0.0, 1.0))[j % 3]
        spare = (family.width - 1) * (high - low) / 2
        columns[f"x{j}"], ranges[f"x{j}"] = unit * values, (unit * (low - spare), unit * (high + spare))
    labels, values = _labels(family, z, generator)
    return _schema(ranges, "label", values), pd.DataFrame(columns).assign(label=labels)


def _labels(family: Family, z: Floats, generator: np.random.Generator) -> tuple[Any, range | tuple[float, float]]:
    outputs = len(family.shares) if family.label == "classes" and len(family.shares) > 2 else 1
    rule = generator.standard_normal((family.features, outputs)) / math.sqrt(family.features)
    bent = generator.standard_normal((2, family.features)) / math.sqrt(family.features)
    scores = family.strength * (z @ rule) + family.bend * (z @ bent[0])[:, None] * (z @ bent[1])[:, None]
    if family.label == "dollars":
        amounts = 40_000.0 * exp(0.25 * scores[:, 0] + 0.3 * generator.standard_normal(len(z)))
        return family.unit * amounts, (0.0, 250_000.0 * family.unit * family.width)
    if family.label == "counts":
        counts = generator.poisson(exp(np.minimum(0.8 + 0.25 * scores[:, 0], 5.0)))
        return family.unit * counts, (0.0, 20.0 * family.unit * family.width)
    if outputs == 1:
        offset = _offset(scores[:, 0], family.shares[1])
        return (generator.random(len(z)) < logistic(scores[:, 0] + offset)).astype(np.int64), range(2)
    gumbel = generator.gumbel(size=scores.shape)
    return np.argmax(scores + np.log(family.shares) + gumbel, axis=1), range(outputs)


def _offset(scores: Floats, share: float) -> float:
    """So that ``share`` of the records are positive."""
    low, high = -30.0, 30.0
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if float(logistic(scores + middle).mean()) < share else (low, middle)
    return low


# --- all of them ----------------------------------------------------------------------------------------------

FAMILIES: Final = {
    "balanced-50": Family(50, 6, 4),
    "balanced-1000": Family(1000, 4, 10),
    "balanced-50000": Family(50_000, 2, 20, silos=6),
    "imbalanced-2000": Family(2000, 5, 20, shares=(0.92, 0.08)),
    "rare-10000": Family(10_000, 3, 12, shares=(0.98, 0.02), silos=8),
    "classes-3000": Family(3000, 4, 10, shares=(0.4, 0.25, 0.15, 0.12, 0.08)),
    "bent-20000": Family(20_000, 2, 8, strength=1.5, bend=2.0),
    "wide-2000": Family(2000, 5, 15, width=5.0),
    "dollars-2000": Family(2000, 4, 12, label="dollars"),
    "counts-5000": Family(5000, 3, 10, label="counts"),
    "dollars-100": Family(100, 10, 6, label="dollars"),
    # Drawn after all constants were chosen.
    "balanced-400": Family(400, 5, 14),
    "classes-800": Family(800, 5, 8, shares=(0.5, 0.3, 0.2), silos=5),
    "rare-4000": Family(4000, 4, 16, shares=(0.95, 0.05), silos=5),
    "counts-700": Family(700, 4, 9, label="counts"),
}
_ABOUT: Final = {"classes": "", "dollars": "amounts of money, ", "counts": "counts, "}


def _about(family: Family) -> str:
    shares = ", ".join(f"{100 * share:g}" for share in family.shares)
    what = _ABOUT[family.label] or f"classes of {shares} %, "
    wide = f", ranges {family.width:g} times too wide" if family.width > 1 else ""
    return f"made up: {what}{family.records} records a person{wide}"


SEARCHED: Final = (
    *("iris", "wine", "breast-cancer", "diabetes", "heart-disease", "creditcard"),
    *("balanced-50", "dollars-100", "imbalanced-2000", "rare-10000"),
)
_PIXELS: Final[Ranges] = {f"pixel {j}": (0, 16) for j in range(64)}
_MAKERS: Final[tuple[tuple[str, str, Callable[[Streams], Federation]], ...]] = (
    ("iris", "scikit-learn", partial(_scikit, "iris", IRIS, 50, 3, 3)),
    ("wine", "scikit-learn", partial(_scikit, "wine", WINE, 60, 3, 3)),
    ("digits", "scikit-learn", partial(_scikit, "digits", _PIXELS, 300, 4, 10)),
    ("breast-cancer", "scikit-learn", partial(_scikit, "breast_cancer", NUCLEI, 150, 4, 2)),
    ("diabetes", "scikit-learn", partial(_scikit, "diabetes", DIABETES, 150, 3, 0)),
    ("heart-disease", FILES, partial(_built_in, "heart-disease", 200)),
    ("creditcard", FILES, partial(_built_in, "creditcard", 2000)),
    *((name, _about(family), partial(made_up, name, family)) for name, family in FAMILIES.items()),
)
SETS: Final = tuple(
    UtilitySet(name, about, make, files=about == FILES, searched=name in SEARCHED) for name, about, make in _MAKERS
)


def _random(streams: Streams) -> Federation:
    """Anything: 20 to 20,000 people, 1 to 100 silos, ranges up to ten times too wide, 1 to 50 % positives, any unit."""
    draw = streams.child("random").generator()
    people, silos = round(20 * 1000 ** draw.random()), round(100 ** draw.random())
    rare = 0.01 * 50 ** draw.random()
    family = Family(
        people,
        max(1, round(10 ** draw.random() * min(1.0, 20_000 / people))),
        round(2 * 15 ** draw.random()),
        min(silos, people),
        (1 - rare, rare),
        str(draw.choice(["classes", "classes", "dollars", "counts"])),
        float(draw.uniform(1, 4)),
        float(draw.uniform(0, 1)),
        float(10 ** draw.random()),
        float(10 ** draw.uniform(-3, 6)),
    )
    return made_up("random", family, streams)


RANDOM: Final = UtilitySet("random", "made up: anything", _random)
