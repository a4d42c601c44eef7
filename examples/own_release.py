"""A method with a release type of its own (see docs/add-a-method.md): every silo adds all of the noise itself.

    uldp run --dataset breast-cancer --method own_release:NoisyGradients

Silo s sends sum_u clip(g_su, C) + N(0, sigma^2 C^2), in floating point. A user with records in every silo moves each of
the |S| sums by up to C, and each has noise of its own: together a Gaussian of multiplier sigma / sqrt(|S|). uldp cannot
know that this is true, so plan, statement and result name this file.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from uldp import Adversary, Method, PublicFacts, Release, State
from uldp.data.federation import SiloData
from uldp.learners.base import Learner
from uldp.mechanisms.gaussian import sample_gaussian
from uldp.privacy.events import Event, NonPrivate, sampled_gaussian
from uldp.privacy.releases import Contribution, SiloPart
from uldp.rng import Secrets, Streams
from uldp.vectors import FixedPoint, Vector, clip_rows


@dataclass(frozen=True, kw_only=True)
class NoisySiloSum(Release):
    """One noised sum of clipped rows per silo."""

    clip: float
    noise_multiplier: float

    @property
    def privacy_unit(self) -> str:
        return "user"

    @property
    def encoding(self) -> FixedPoint:
        """How a silo's vector becomes integers: coordinates up to 2^20 clips, in steps of 2^-28 of that."""
        return FixedPoint(limit=self.clip * 2.0**20, bits=48, saturate=True)

    def rows(
        self, method: SiloPart, x: Vector, data: SiloData, learner: Learner, streams: Streams, secrets: Secrets
    ) -> Iterator[Contribution]:
        """The silo's one row (users are None). ``secrets`` differ for every silo and round."""
        total = np.zeros(len(x))
        for _, rows in method.silo(x, data, learner, streams):
            finite = np.isfinite(rows).all(axis=1)
            for row in clip_rows(rows[finite], self.clip):
                total += row
        if self.noise_multiplier:
            noise = secrets.child("noise").stream()
            total = total + sample_gaussian(self.noise_multiplier * self.clip, len(x), noise)
        yield None, total[None, :]

    def noise_variance(self, silos_heard: int) -> float:
        """Of a total, for each number; nobody else knows, because the noise is drawn in the rows."""
        return silos_heard * (self.noise_multiplier * self.clip) ** 2

    def event(self, silos_heard: int) -> Event:
        """What is released when this many silos take part."""
        if silos_heard <= 0 or self.noise_multiplier == 0:
            return NonPrivate()
        return sampled_gaussian(self.noise_multiplier / math.sqrt(silos_heard))

    def view(self, adversary: Adversary) -> Event:
        """The same for everybody: nobody can subtract another silo's noise."""
        return self.event(self.facts.silos)


@dataclass(frozen=True, kw_only=True)
class NoisyGradients(Method):
    """One gradient per user and silo."""

    clip: float = 0.3
    global_lr: float = 10.0

    summary: ClassVar[str] = "one clipped gradient per user, every silo adds all of the noise"
    paper: ClassVar[str] = "an example"

    def release(self, facts: PublicFacts) -> NoisySiloSum:
        return NoisySiloSum(facts=facts, clip=self.clip, noise_multiplier=self.noise_multiplier)

    def silo(self, x: Vector, data: SiloData, learner: Learner, streams: Streams) -> Iterator[Contribution]:
        for users, gradients in learner.user_gradients(x, data, streams):
            yield users, -gradients

    def server(self, state: State, total: Vector, facts: PublicFacts) -> State:
        return State(state.x + self.global_lr / (facts.users * facts.silos) * total)
