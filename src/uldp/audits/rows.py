"""Updates of single users: how far one of them moves a noiseless total, and whether others' change with it.

This asks what a canary cannot: a canary's update is fixed, a method of one's own may make anything of a user's records.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from typing import Final

import numpy as np

from uldp.audits.checks import Check
from uldp.data.federation import Federation, IntArray, SiloData
from uldp.errors import foreign_exceptions
from uldp.experiment.build import PreparedExperiment
from uldp.methods.base import Method, State
from uldp.privacy.gaussian import unsampled_mu
from uldp.privacy.releases import NoisedModel, Release
from uldp.privacy.releases.sums import IntegerSum
from uldp.rng import Secrets, Streams
from uldp.vectors import Integers, Rows, Vector

USERS: Final = 8
"""How many users are left out, one after the other, of each kind of records."""
EXTREMES: Final = (1e6, -1e6, 1e30, np.inf, np.nan)
"""Values of the features of adversarial users."""


def row_checks(prepared: PreparedExperiment, people: Federation, streams: Streams) -> list[Check]:
    """Sensitivity over random and adversarial users, and dependence of updates on other users."""
    release = prepared.plan.release
    if isinstance(release, NoisedModel):
        return []  # noise and batches are inside its rows
    noise = release.noise_variance(release.facts.silos) ** 0.5
    allowed = noise / multiplier_of(release) / release.encoding.limit * release.encoding.integer_limit
    furthest, tried = 0.0, 0
    changed: set[int] = set()
    whole: list[_Part] = []
    for federation, x in product(_kinds(people, streams), _broadcasts(prepared, people)):
        whole = _parts(prepared, federation, x)
        for user in np.unique(np.concatenate([silo.users for silo in federation.silos]))[:USERS]:
            without = _parts(prepared, federation.without(int(user)), x)
            moved = np.sum([a.total - b.total for a, b in zip(whole, without, strict=True)], axis=0)
            furthest = max(furthest, float(np.linalg.norm(moved.astype(np.float64))))
            changed |= {
                other
                for one, two in zip(whole, without, strict=True)
                for other in one.updates.keys() | two.updates.keys()
                if other != user and not _equal(one.updates.get(other), two.updates.get(other))
            }
            tried += 1
    found = f"at most {furthest / allowed:.6f} of what the event allows, over {tried} random and adversarial users"
    checks = [Check("sensitivity to one user, without noise", float(furthest <= allowed * (1 + 1e-9)), found)]
    if any(part.updates for part in whole):
        found = f"{len(changed)} users' updates changed when another user left" if changed else "none changed"
        checks.append(Check("dependence of an update on other users", float(not changed), found))
    return checks


def multiplier_of(release: Release) -> float:
    """The noise multiplier of a round by its event, for a user who is in the sample."""
    return 1 / unsampled_mu({release.event(release.facts.silos): 1})


def _equal(one: Vector | None, other: Vector | None) -> bool:
    return one is not None and other is not None and np.array_equal(one, other, equal_nan=True)


class _Part:
    """A silo's noiseless sum, and the updates of users that went into it."""

    def __init__(self, weighted: IntegerSum) -> None:
        self._sum = weighted
        self.updates: dict[int, Vector] = {}

    def add(self, users: IntArray | None, rows: Rows) -> None:
        self._sum.add(users, rows)
        if users is not None:
            self.updates |= {int(user): row for user, row in zip(users, np.array(rows), strict=True)}

    @property
    def total(self) -> Integers:
        return self._sum.total


def _broadcasts(prepared: PreparedExperiment, people: Federation) -> list[Vector]:
    """What the server would send in the first two rounds; of a method that sends more than the model, in others too.

    Then in rounds 4, 8 and so on, and in the last one: whatever rows are about in turn is among them.
    """
    plan, facts = prepared.plan, prepared.plan.facts
    state = State(prepared.learner.initial(prepared.streams.child("model")))
    found = [plan.method.broadcast(state, facts.in_round(1, facts.silos))]
    rounds = min(plan.rounds, 2) if type(plan.method).broadcast is Method.broadcast else plan.rounds
    for round_ in range(1, rounds):
        parts = _parts(prepared, people, plan.method.broadcast(state, facts.in_round(round_, facts.silos)))
        total = plan.release.encoding.decode(np.sum([part.total for part in parts], axis=0))
        state = plan.method.server(state, total, facts.in_round(round_, facts.silos))
        if (round_ + 1) & round_ == 0 or round_ + 1 == rounds:
            found.append(plan.method.broadcast(state, facts.in_round(round_ + 1, facts.silos)))
    return found


def _parts(prepared: PreparedExperiment, federation: Federation, x: Vector) -> list[_Part]:
    """What every silo would add up in the round of this broadcast, without noise, sample or masks."""
    plan, release = prepared.plan, prepared.plan.release
    streams = prepared.streams
    counts = federation.counts()
    told = None if release.exchange is None else release.exchange.totals(counts)
    parts = []
    for index, silo in enumerate(federation.silos):
        mine = None if told is None else told[index]
        own, secrets = streams.child("silo", index), Secrets.simulated_from_seed(0).child("silo", index)
        data = release.select(silo, mine, own.child("kept"))
        part = _Part(IntegerSum(release.encoding, plan.facts.dimension, release.weights(counts[index], mine)))
        with foreign_exceptions(plan.method, release, location="method.silo"):
            for users, rows in release.rows(plan.method, x, data, prepared.learner, own.child("round", 1), secrets):
                part.add(users, rows)
        parts.append(part)
    return parts


def _kinds(people: Federation, streams: Streams) -> Iterator[Federation]:
    """People as they are, and people whose records are as far out as numbers go."""
    yield people
    generator = streams.child("extremes").generator()
    silos = []
    for silo in people.silos:
        features = silo.features.copy()
        with np.errstate(over="ignore"):
            extreme = generator.choice(EXTREMES, size=features.shape).astype(np.float32)
        some = generator.random(len(features)) < 0.5
        features[some] = extreme[some]
        silos.append(SiloData(silo.name, features, silo.labels, silo.users))
    yield replace(people, silos=tuple(silos))
