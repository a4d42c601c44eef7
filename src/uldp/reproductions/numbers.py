"""Panels without training: epsilons, attacks, and how long things take."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np

from uldp.aggregation.paillier import SECURE_BITS
from uldp.attacks.estimators import ADVERSARIES
from uldp.attacks.inference import Scene
from uldp.attacks.series import mechanisms_of, play
from uldp.bench.protocol_run import Run, Shape
from uldp.experiment.build import build_learner
from uldp.experiment.calculator import PrivacyQuery, Side, side_by_side
from uldp.experiment.config import Experiment
from uldp.experiment.loading import load_federation
from uldp.experiment.presets import preset
from uldp.experiment.sweeps import with_values
from uldp.mechanisms.local_registry import local_mechanism
from uldp.reproductions.rows import MeasuredRow, PanelRows, averaged, finite
from uldp.reproductions.training import ReproductionPlace, available
from uldp.research.published_noise import item_epsilon, published_noise
from uldp.research.published_subjects import PublishedSettings, train
from uldp.rng import Secrets, Streams

_ATTACK = {"center": 0.0, "radius": 1.0, "groups": 10, "delta": None, "precision": 4}


class GroupEpsilons(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A run of DP-SGD, and group sizes up to ``largest``."""

    noise: float
    rate: float
    steps: int
    largest: int


def group_epsilons(place: ReproductionPlace, name: str, panel: GroupEpsilons) -> PanelRows:
    """ULDP-GROUP's epsilons by group size: the published formula, valid ones and the tight value."""
    settings = {"record_rate": panel.rate, "local_steps": panel.steps, "group_size": panel.largest}
    table = side_by_side(PrivacyQuery.of("uldp-group", rounds=1, settings=settings, side=Side(silos=1)), panel.noise)
    rows = [
        MeasuredRow(
            name=f"k={size}",
            metrics={key: finite(value) for key, value in zip(table.columns, values, strict=True)},
            values={"k": size},
            line="ULDP-GROUP",
        )
        for size, values in table.rows
    ]
    return PanelRows(name=name, rows=rows)


class AttackPanel(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Scenes have a label, an epsilon, and what differs from 1,000 clients and 50 rounds."""

    scenes: list[dict[str, Any]]
    mechanisms: tuple[str, ...] = ("two-point",)
    adversary: str = "frequency"
    trials: int = 100


def attack(place: ReproductionPlace, name: str, panel: AttackPanel) -> PanelRows:
    """The inference attack."""
    rows = []
    for chosen in panel.scenes:
        epsilon, label = float(chosen["epsilon"]), str(chosen["label"])
        own = {key: value for key, value in chosen.items() if key not in ("epsilon", "label")}
        scene = Scene(**{"trials": panel.trials, **own})
        built = mechanisms_of(list(panel.mechanisms), [epsilon], dict(_ATTACK))
        for outcome in play(built, [ADVERSARIES[panel.adversary]], scene, 0):
            label_here = label if len(panel.mechanisms) == 1 else f"{outcome.mechanism} {label}"
            metrics = {"error_percent": 100 * outcome.error, "confidence": outcome.confidence}
            spread = {} if outcome.standard_error is None else {"error_percent": 100 * outcome.standard_error}
            shown = {key: value for key, value in metrics.items() if value is not None}
            about: dict[str, Any] = {"values": dict(chosen), "line": outcome.mechanism}
            rows.append(MeasuredRow(name=label_here, metrics=dict(shown), deviations=spread, **about))
    return PanelRows(name=name, rows=rows)


class Protocol(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Shapes have a label, ``dimension``, ``users``, perhaps ``silos`` (three), and a ``line`` of the picture."""

    shapes: list[dict[str, Any]]
    key_bits: int = SECURE_BITS


def protocol(place: ReproductionPlace, name: str, panel: Protocol) -> PanelRows:
    """Seconds of each phase of the private weighting protocol, one round after its setup (errata U14 to U17 mended)."""
    rows = []
    for chosen in panel.shapes:
        about = {key: value for key, value in chosen.items() if key not in ("label", "line")}
        shape = Shape(**{"silos": 3, **about}, rounds=1)
        if panel.key_bits < SECURE_BITS:
            shape = replace(shape.with_small_key(), key_bits=panel.key_bits)
        run = Run(shape)
        times = {**run.setup(), **run.round(1)}
        metrics: dict[str, float | None] = {str(phase): seconds for phase, seconds in times.items()}
        line = str(chosen.get("line", "measured"))
        rows.append(MeasuredRow(name=str(chosen["label"]), metrics=metrics, values=about, line=line))
    notes = [f"A key of {panel.key_bits} bits, all parties in one process; silos' times are added up."]
    if panel.key_bits < SECURE_BITS:
        notes.append("Keys of this size are for tests: the published times are for 3072 bits.")
    return PanelRows(name=name, rows=rows, notes=notes)


class Latency(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Numbers of weights, and the mechanism that perturbs them."""

    weights: list[int]
    mechanism: str = "srr"
    epsilon: float = 5.0


def latency(place: ReproductionPlace, name: str, panel: Latency) -> PanelRows:
    """How long a client takes to perturb all weights of a model, best of three."""
    law, stream = local_mechanism(panel.mechanism, epsilon=panel.epsilon), Secrets.from_os().stream()
    rows = []
    for count in panel.weights:
        values = Streams.from_seed(0).child("latency").generator().uniform(-0.08, 0.08, count)
        times = []
        for _ in range(3):
            start = time.perf_counter()
            law.perturb(np.asarray(values), stream)
            times.append(time.perf_counter() - start)
        about: dict[str, Any] = {"values": {"weights": count}, "line": panel.mechanism}
        rows.append(MeasuredRow(name=f"{count:,} weights", metrics={"seconds": min(times)}, **about))
    return PanelRows(name=name, rows=rows)


class SubjectEpsilons(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What the paper claims, for which run, and for whom it is looked at."""

    claimed: float
    rate: float
    steps: int
    group: int = 3
    items: list[int] = []
    silos: list[int] = []
    delta: float = 1e-5

    def noise(self, group: int) -> float:
        """The paper's noise for a largest group of this size in a batch."""
        return published_noise(self.claimed, self.delta, group, self.rate, self.steps)


def subject_epsilons(place: ReproductionPlace, name: str, panel: SubjectEpsilons) -> PanelRows:
    """What a subject with many items, or in several silos, faces where the paper claims ``claimed``.

    The noise is that of the paper for a largest group of ``group`` items in a batch, held fixed: as published it
    depends on the data, and no finite epsilon holds.
    """
    noise, alone, delta = panel.noise(panel.group), panel.noise(1), panel.delta
    items = [("items", at, item_epsilon(noise, panel.rate, panel.steps, delta, items=at)) for at in panel.items]
    silos = [("silos", at, item_epsilon(alone, panel.rate, panel.steps * at, delta)) for at in panel.silos]
    rows = [
        MeasuredRow(
            name=f"{number} {what}",
            metrics={"claimed": panel.claimed, "true": finite(value)},
            values={what: number},
            line="a subject",
        )
        for what, number, value in [*items, *silos]
    ]
    notes = [f"sigma_Z = {noise:.3g} for groups of {panel.group}, {alone:.3g} for 1."]
    return PanelRows(name=name, rows=rows, notes=notes)


class PublishedSubjects(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Algorithms as printed: ``settings`` are theirs, ``own`` one's, ``data`` the experiment's by ``section.key``."""

    dataset: str
    algorithms: list[str]
    settings: dict[str, Any]
    own: dict[str, dict[str, Any]] = {}
    data: dict[str, Any] = {}
    repeats: int = 1


def published_subjects(place: ReproductionPlace, name: str, panel: PublishedSubjects) -> PanelRows:
    """The algorithms of subject-level DP as printed: no epsilon holds for them."""
    here = available(panel.dataset, place.data_dir)
    used = panel.dataset if here else "breast-cancer"
    rows = []
    for algorithm in panel.algorithms:
        chosen = PublishedSettings(algorithm=algorithm, **{**panel.settings, **panel.own.get(algorithm, {})})
        runs = []
        for seed in range(place.repeats or panel.repeats):
            tree = with_values(preset(used, "fedavg"), {"run.seed": seed, **panel.data})
            if place.data_dir is not None and here:
                tree["data"]["data_dir"] = str(place.data_dir)
            experiment = Experiment.from_tree(tree, place.folder)
            federation = load_federation(experiment)
            learner = build_learner(experiment, federation.feature_shape, federation.task)
            runs.append(dict(train(chosen, federation, learner, seed).metrics))
        rows.append(averaged(f"{algorithm} as printed", runs))
    return PanelRows(name=name, rows=rows, dataset=used, stand_in=not here)
