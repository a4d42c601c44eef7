"""What there is to know about a data set as it is loaded: ``uldp data describe``."""

from __future__ import annotations

from typing import Any

import numpy as np

from uldp.data.federation import Federation, IntArray, LabelArray
from uldp.data.sets.base import DatasetInfo


def data_card(info: DatasetInfo, federation: Federation, allocation: str, seed: int) -> dict[str, Any]:
    """Source, licence, scaling, and how records and labels lie over users and silos."""
    counts = federation.counts()
    return {
        "dataset": info.name,
        "description": info.description,
        "source": info.source,
        "licence": info.licence,
        "scaling": info.scaling or "see the loader",
        "quirks": list(info.quirks),
        "features": list(federation.feature_shape),
        "task": federation.task.kind,
        "allocation": allocation,
        "seed": seed,
        "users": federation.users,
        "users_without_records": int((counts.sum(axis=0) == 0).sum()),
        "records": int(counts.sum()),
        "records_per_user": _spread(counts.sum(axis=0)),
        "records_per_user_and_silo": _spread(counts[counts > 0]),
        "silos": [
            {
                "name": silo.name,
                "records": len(silo),
                "users": int((own > 0).sum()),
                "labels": _labels(silo.labels, info, federation),
            }
            for silo, own in zip(federation, counts, strict=True)
        ],
        "test": {"records": len(federation.test), "labels": _labels(federation.test.labels, info, federation)},
    }


def _spread(counts: IntArray) -> dict[str, float]:
    if not len(counts):
        return {"min": 0, "median": 0, "max": 0}
    return {"min": int(counts.min()), "median": float(np.median(counts)), "max": int(counts.max())}


def _labels(labels: LabelArray, info: DatasetInfo, federation: Federation) -> dict[str, int] | dict[str, float]:
    """How often each class occurs; events and censored records of survival data; the range of a number."""
    task = federation.task
    if task.kind == "survival":
        return {"event": int((labels > 0).sum()), "censored": int((labels < 0).sum())}
    if task.kind == "regression":
        units = task.label_offset + task.label_scale * np.asarray(labels, dtype=np.float64)
        return {"min": float(units.min()), "max": float(units.max())} if len(units) else {}
    names = info.labels if len(info.labels) == task.classes else tuple(map(str, range(task.classes)))
    counts = np.bincount(np.asarray(labels, dtype=np.int64), minlength=task.classes)
    return {name: int(count) for name, count in zip(names, counts, strict=True)}
