"""DP-SGD inside each silo: what ULDP-GROUP and record-level DP share.

Abadi et al., "Deep Learning with Differential Privacy", CCS 2016. In every step each record is taken with probability
q on its own, gradients are clipped record by record, and noise is added to their sum::

    x <- x - eta_l / B (sum_i g_i min(1, C / |g_i|) + N(0, sigma^2 C^2))

Server: x_(t+1) = x_t + eta_g mean_s (x_s - x_t).

q, the number of steps and the divisor B are public settings. The published code derives them from a silo's number of
records, which one user changes. With the same settings in all silos, all silos are accounted alike.

The noise is floating point (see :mod:`uldp.mechanisms.gaussian`), and what a silo sends is cut off at ``value_range``.
Batches and noise are secret randomness.

Symbols: q ``record_rate``, B ``batch_size``, C ``clip``, sigma ``noise_multiplier``, eta_l ``local_lr``.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Final

import numpy as np

from uldp.data.federation import SiloData
from uldp.learners.base import Learner
from uldp.limits import MAX_LOCAL_STEPS
from uldp.mechanisms.gaussian import sample_gaussian
from uldp.methods.base import SMALLEST_RATE, Contribution, Facts, Observer, require, require_limit
from uldp.methods.silo_mean import SiloMean
from uldp.privacy.events import Event, Group, NonPrivate, Repeated, sampled_gaussian
from uldp.rng import Secrets, SecretStream, Streams
from uldp.vectors import FixedPoint, Vector

SMALLEST_NOISE: Final = 1e-3
"""Less noise than this protects nobody, and its epsilon is beyond what floats can count."""


@dataclass(frozen=True, kw_only=True)
class DpSgd(SiloMean):
    """Record-level DP-SGD in every silo, models averaged."""

    clip: float = 1.0
    local_steps: int = 100
    local_lr: float = 0.1
    record_rate: float = 0.05
    batch_size: float = 64.0
    value_range: float = 1024.0

    paper: ClassVar[str] = "DP-SGD (CCS 2016)"
    shared_noise: ClassVar[bool] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        for key in ("clip", "value_range"):
            require_limit(key, getattr(self, key))
        for key in ("local_lr", "batch_size"):
            require(0 < getattr(self, key) < math.inf, key, getattr(self, key), "a positive number")
        self._check_counts(1, MAX_LOCAL_STEPS, "local_steps")
        require(SMALLEST_RATE <= self.record_rate <= 1, "record_rate", self.record_rate, f"from {SMALLEST_RATE:g} to 1")
        require(
            self.noise_multiplier == 0 or self.noise_multiplier >= SMALLEST_NOISE,
            "noise_multiplier",
            self.noise_multiplier,
            f"0 (no privacy) or at least {SMALLEST_NOISE:g}",
            "privacy",
        )

    def silo(
        self, x: Vector, data: SiloData, learner: Learner, streams: Streams, secrets: Secrets
    ) -> Iterator[Contribution]:
        clipped_sum = learner.clipped_sums(data, self.clip)
        batches = secrets.child("batches").stream()
        now = x
        for step in range(self.local_steps):
            chosen = poisson_batch(len(data), self.record_rate, batches)
            total = clipped_sum(now, chosen, step, streams)
            if self.noise_multiplier:
                noise = step_noise(secrets.child("noise", step), total)
                total = total + sample_gaussian(self.noise_multiplier * self.clip, len(x), noise)
            now = now - self.local_lr / self.batch_size * total
        yield None, (now - x)[None, :]

    def encoding(self, facts: Facts) -> FixedPoint:
        return FixedPoint(limit=self.value_range, bits=48, saturate=True)

    def protected_records(self) -> int:
        """How many records of one person the event covers."""
        return 1

    def event(self, facts: Facts, silos_heard: int) -> Event:
        return self.group_event(self.protected_records()) if silos_heard > 0 else NonPrivate()

    def group_event(self, size: int) -> Event:
        """What a round shows about somebody with ``size`` records."""
        step = sampled_gaussian(self.noise_multiplier, self.record_rate)
        if isinstance(step, NonPrivate):
            return step
        # All k records in one silo are the worst case of how they may be spread over silos with these settings.
        return Repeated(self.local_steps, step if size == 1 else Group(size, step))

    def seen_by(self, facts: Facts, observer: Observer) -> Event:
        # Every silo adds all of its noise itself: nobody can take another silo's off.
        return self.event(facts, observer.shares(facts))

    def caveats(self, facts: Facts) -> tuple[str, ...]:
        return (
            "The noise of DP-SGD is floating point: it follows the theory up to rounding, not exactly.",
            f"What a silo sends is cut off at +-{self.value_range:g} (method.value_range) in every coordinate.",
        )


def step_noise(secrets: Secrets, total: Vector) -> SecretStream:
    """A step's noise, addressed by the sum it goes onto: a sum that was rounded otherwise gets other noise.

    Simulated noise protects nobody and is addressed by the step alone, so that runs can be compared.
    """
    return (secrets if secrets.simulated else secrets.child(hashlib.sha256(total.tobytes()).hexdigest())).stream()


def poisson_batch(records: int, rate: float, stream: SecretStream) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Each of ``records`` records with probability ``rate``, on its own."""
    if rate == 1:
        return np.arange(records)
    # P(word < floor(q 2^64)) is q up to 2^-64, and never above it.
    return np.flatnonzero(stream.words(records) < np.uint64(math.floor(rate * 2.0**64)))
