"""Made-up data of any size that a model can learn: labels by a random smooth rule, with some noise."""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from uldp.data.federation import FloatArray, LabelArray, Records, Task
from uldp.data.sets.base import SPLIT_OPTIONS, DatasetInfo, Options, Pool, PooledDataset, split
from uldp.data.store import Located
from uldp.elementary import Floats, log, tanh
from uldp.errors import ConfigError, format_value
from uldp.rng import Streams

OPTIONS: Final = {"records": 5000, "features": 20, "classes": 2}

MAX_VALUES: Final = 100_000_000
_SHARPNESS: Final = 6.0  # how clearly the rule decides: a perfect model reaches about 90 % in two classes
_NOISE: Final = 0.1


def _read(found: Located, streams: Streams, options: Options) -> Pool:
    records, width, classes = (_whole(options, name) for name in OPTIONS)
    if (records + classes) * (width + classes) > MAX_VALUES:
        reason = f"{records} records of {width} features in {classes} classes are more than {MAX_VALUES} numbers"
        raise ConfigError(reason, location="data.options.records", value=records)
    streams = streams.child("synthetic")
    drawn = _normal(streams.child("features"), records, width) / 3
    features = np.clip(drawn, -1, 1).astype(np.float32)
    labels = _classes(features, classes, streams) if classes else _numbers(features, streams)
    parts = split(Records(features, labels), options["test_fraction"], streams, stratify=classes > 0)
    return Pool(*parts, Task(classes))


def _normal(streams: Streams, *shape: int) -> Floats:
    """Standard normal numbers, cut off at 3.65: beyond 3.6542 numpy takes them from the C library's logarithm, whose
    last bits depend on the machine."""
    return np.clip(streams.generator().standard_normal(shape), -3.65, 3.65)


def _scores(features: FloatArray, outputs: int, streams: Streams) -> Floats:
    """A linear rule with a bend, of about unit variance."""
    width = features.shape[1]
    straight, bent = _normal(streams.child("rule"), 2, width, outputs) * 3 / math.sqrt(width)
    return _product(features, straight) + 0.5 * tanh(_product(features, bent))


def _product(features: FloatArray, rule: Floats) -> Floats:
    """features @ rule, one feature after the other: a library for products would add in an order of its own."""
    total = np.zeros((len(features), rule.shape[1]))
    for column, weights in zip(features.T, rule, strict=True):
        total += column[:, None] * weights
    return total


def _classes(features: FloatArray, classes: int, streams: Streams) -> LabelArray:
    scores = _SHARPNESS * _scores(features, classes, streams)
    # The largest score plus Gumbel noise is a draw from the softmax of the scores.
    gumbel = -log(-log(1.0 - streams.child("labels").generator().random(scores.shape)))
    labels: npt.NDArray[np.int64] = np.argmax(scores + gumbel, axis=1).astype(np.int64)
    return labels


def _numbers(features: FloatArray, streams: Streams) -> LabelArray:
    noise = _normal(streams.child("labels"), len(features))
    labels = tanh(_scores(features, 1, streams)[:, 0] / 2) + _NOISE * noise
    return np.clip(labels, -1, 1).astype(np.float32)


def _whole(options: Options, name: str) -> int:
    value: Any = options[name]
    least = {"records": 10, "features": 1, "classes": 0}[name]
    if isinstance(value, bool) or not isinstance(value, int) or value < least or (name, value) == ("classes", 1):
        what = "0 (a numeric label) or from 2 up" if name == "classes" else f"from {least} up"
        raise ConfigError(
            f"a whole number {what}, not {format_value(value)}", location=f"data.options.{name}", value=value
        )
    return value


DATASET: Final = PooledDataset(
    DatasetInfo(
        name="synthetic",
        description="made-up records of any size; classes = 0 gives a numeric label",
        source="drawn from the seed of the run",
        licence="none needed",
        records=OPTIONS["records"],
        features=(OPTIONS["features"],),
        classes=OPTIONS["classes"],
    ),
    _read,
    {**SPLIT_OPTIONS, **OPTIONS},
)
