"""CentralSubDP and LocalSubDP as printed (Marathe and Kanani, Algorithms 1 and 2). NO finite epsilon holds for them.

Batches have a fixed size, items are clipped one by one, and the noise follows from Z, the largest number of items of
one subject in the batch that was drawn: its size tells about the subject. ``epsilon`` is what the paper claims. The
sound variants are :mod:`uldp.methods.central_sub_dp` and :mod:`uldp.methods.local_sub_dp`.

All silos are here, in one loop, and the server is trusted: it sees sums without noise, and Z of every silo.

``central``. Silos send (1/B) sum_i of clipped item gradients, and Z in the clear; the server adds N(0, sigma_Z^2 C^2)
for each silo to the average (B times more than its own argument asks for) and divides by s.

``local``. Line 3: B of the silo's n items, drawn without replacement; lines 10 and 11: noise sigma_Z; line 12: the
step is divided by the number of silos once more, as printed (errata D4).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from uldp.data.federation import Federation, IntArray, SiloData
from uldp.errors import ModelError, require
from uldp.learners.base import Learner
from uldp.limits import MAX_ITEMS, MAX_LOCAL_STEPS, MAX_ROUNDS, check_whole
from uldp.mechanisms.gaussian import sample_gaussian
from uldp.privacy.releases.sums import require_limit
from uldp.research.published_noise import item_epsilon, published_noise
from uldp.rng import Secrets, SecretStream, Streams
from uldp.vectors import Vector

ALGORITHMS: Final = ("central-sub-dp", "local-sub-dp")
TABLE_SILOS: Final = (2, 5, 10)
TABLE_ITEMS: Final = (10, 100)
OnRound = Callable[[int, Mapping[str, float]], None]


@dataclass(frozen=True, kw_only=True)
class PublishedSettings:
    """Settings of either algorithm, and what it claims."""

    algorithm: str = "central-sub-dp"
    epsilon: float = 5.0
    delta: float = 1e-5
    rounds: int = 20
    clip: float = 0.3
    batch_size: int = 64
    global_lr: float = 1.0
    local_lr: float = 0.1
    local_steps: int = 100

    def __post_init__(self) -> None:
        known = ", ".join(ALGORITHMS)
        require(self.algorithm in ALGORITHMS, "algorithm", self.algorithm, f"one of {known}")
        check_whole(self.rounds, 1, MAX_ROUNDS, "rounds")
        check_whole(self.batch_size, 1, MAX_ITEMS, "batch_size")
        check_whole(self.local_steps, 1, MAX_LOCAL_STEPS, "local_steps")
        require_limit("clip", self.clip)
        for key in ("epsilon", "global_lr", "local_lr"):
            value = getattr(self, key)
            require(0 < value < math.inf, key, value, "a positive number")
        require(0 < self.delta < 1, "delta", self.delta, "a probability between 0 and 1")

    @property
    def central(self) -> bool:
        return self.algorithm == "central-sub-dp"

    def steps_of_a_silo(self) -> int:
        """How many batches one silo draws."""
        return self.rounds * (1 if self.central else self.local_steps)

    def accounted_steps(self, silos: int) -> int:
        """How many batches the paper accounts for."""
        return self.rounds * silos if self.central else self.steps_of_a_silo()

    def sigma(self, size: int, records: int, steps: int) -> float:
        """sigma_Z for a batch whose largest group has ``size`` items, drawn from this number of records."""
        rate = min(1.0, self.batch_size / max(records, 1))
        return published_noise(self.epsilon, self.delta, size, rate, steps)


@dataclass(frozen=True)
class PublishedOutcome:
    """A trained model, its test metrics, and what the paper claims beside what holds."""

    settings: PublishedSettings
    model: Vector
    metrics: Mapping[str, float]
    claimed_and_true: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        return {
            "algorithm": self.settings.algorithm,
            "rounds": self.settings.rounds,
            "metrics": dict(self.metrics),
            "epsilon": None,
            "claimed_epsilon": self.settings.epsilon,
            "guarantee": "NO GUARANTEE: no finite epsilon holds, because the noise depends on the data.",
            "claimed_and_true": list(self.claimed_and_true),
        }


def train(
    settings: PublishedSettings, federation: Federation, learner: Learner, seed: int, on_round: OnRound | None = None
) -> PublishedOutcome:
    """Train as printed, all parties in one loop."""
    streams, secrets = Streams.from_seed(seed), Secrets.simulated_from_seed(seed).child("published")
    x = learner.initial(streams.child("model"))
    step = _central_round if settings.central else _local_round
    metrics: Mapping[str, float] = {}
    for round_ in range(1, settings.rounds + 1):
        now = (streams.child("round", round_), secrets.child("round", round_))
        with np.errstate(over="ignore", invalid="ignore"):
            x = step(settings, federation, learner, x, *now)
        if not np.isfinite(x).all():
            raise ModelError(
                f"the model is no longer finite after round {round_}; lower global_lr or local_lr", location="global_lr"
            )
        metrics = learner.evaluate(x, federation.test)
        if on_round is not None:
            on_round(round_, metrics)
    return PublishedOutcome(settings, x, metrics, claimed_and_true(settings, federation))


def _central_round(
    settings: PublishedSettings, federation: Federation, learner: Learner, x: Vector, streams: Streams, secrets: Secrets
) -> Vector:
    pooled, silos = sum(map(len, federation.silos)), len(federation.silos)
    steps = settings.accounted_steps(silos)
    total = np.zeros(len(x))
    for index, silo in enumerate(federation.silos):
        own = secrets.child("silo", index)
        batch = fixed_batch(len(silo), settings.batch_size, own.child("batch").stream())
        clipped = learner.clipped_sums(silo, settings.clip)
        total += clipped(x, batch, 0, streams.child("silo", index)) / settings.batch_size
        if len(batch):  # Algorithm 1, line 17: for each silo, onto the average
            sigma = settings.sigma(largest_group(silo.users[batch]), pooled, steps)
            total += sample_gaussian(sigma * settings.clip, len(x), own.child("noise").stream())
    return x - settings.global_lr / silos * total  # Algorithm 1, line 20


def _local_round(
    settings: PublishedSettings, federation: Federation, learner: Learner, x: Vector, streams: Streams, secrets: Secrets
) -> Vector:
    silos = len(federation.silos)
    changes = [
        _local_training(settings, silo, learner, x, silos, streams.child("silo", s), secrets.child("silo", s)) - x
        for s, silo in enumerate(federation.silos)
    ]
    change: Vector = settings.global_lr / silos * np.sum(changes, axis=0)
    return x + change


def _local_training(
    settings: PublishedSettings,
    silo: SiloData,
    learner: Learner,
    x: Vector,
    silos: int,
    streams: Streams,
    secrets: Secrets,
) -> Vector:
    clipped, now = learner.clipped_sums(silo, settings.clip), x
    for step in range(settings.local_steps):
        batch = fixed_batch(len(silo), settings.batch_size, secrets.child("batches", step).stream())
        if not len(batch):
            continue
        sigma = settings.sigma(largest_group(silo.users[batch]), len(silo), settings.steps_of_a_silo())
        noise = sample_gaussian(sigma * settings.clip, len(x), secrets.child("noise", step).stream())
        # Line 12 divides by the number of silos, as printed (errata D4).
        now = now - settings.local_lr / settings.batch_size / silos * (clipped(now, batch, step, streams) + noise)
    return now


def claimed_and_true(settings: PublishedSettings, federation: Federation) -> tuple[str, ...]:
    """What the paper claims, and what would hold if the noise were fixed, reason by reason."""
    from uldp.privacy.sentences import show_epsilon

    pooled, silos = sum(map(len, federation.silos)), len(federation.silos)
    average = max(1, pooled // silos)
    rate = min(1.0, settings.batch_size / average)
    noise = settings.sigma(1, pooled if settings.central else average, settings.accounted_steps(silos))
    # A batch of fixed size takes another item where one is missing: the sum moves by up to two clips.
    fixed = noise if rate == 1 else noise / 2

    def true_epsilon(*, items: int = 1, of_silos: int = 1) -> str:
        return show_epsilon(epsilon_of_fixed_noise(settings, silos, fixed, rate, items=items, of_silos=of_silos))

    several = ", ".join(
        f"{true_epsilon(of_silos=s)} in {s}" for s in sorted({*(s for s in TABLE_SILOS if s < silos), silos})
    )
    many = ", ".join(f"{true_epsilon(items=n)} with {n}" for n in sorted({min(n, average) for n in TABLE_ITEMS}))
    return (
        f"Claimed {settings.epsilon:g}, true: none. The noise is sigma_Z with Z from the very batch that was drawn, so "
        "its size tells whether a subject with many items is there (errata D1). What follows is the worst case if the "
        f"noise were fixed at sigma_1 = {noise:.3g}, for a silo of average size (q = {rate:.3g}, "
        f"{settings.steps_of_a_silo()} steps).",
        *_notes(settings),
        f"Silos add up: epsilon is {true_epsilon()} for a subject with one item in one silo, {several} silos "
        "(errata D3).",
        f"q is an item's; a subject with more items in a silo is hit more often: {many} items (errata D2).",
        "Batches of a fixed size are no Poisson samples: an item that leaves lets another one in, so a step moves by "
        "two clips, which the numbers above take into account and the claim does not (errata D6).",
    )


def epsilon_of_fixed_noise(
    settings: PublishedSettings, silos: int, noise: float, rate: float, *, items: int, of_silos: int
) -> float:
    """What a subject with ``items`` items in each of ``of_silos`` silos faces if every batch got the same noise."""
    if not settings.central:
        steps = settings.steps_of_a_silo() * of_silos
        return item_epsilon(noise, rate, steps, settings.delta, items=items, at_most=settings.batch_size)
    # An item moves an average by C / B, and the sum of s averages carries the noise of all of them.
    on_the_sum = noise * settings.batch_size * math.sqrt(silos)
    most = settings.batch_size * of_silos
    return item_epsilon(on_the_sum, rate, settings.rounds, settings.delta, items=items * of_silos, at_most=most)


def _notes(settings: PublishedSettings) -> tuple[str, ...]:
    if not settings.central:
        return (
            "Noise is added to the sum of clipped gradients, as it should be; the step is divided by the number of "
            "silos once more, as printed (errata D4).",
        )
    return (
        "The server is trusted: it sees sums without noise, and Z of every silo. The claim's q = B / all records is "
        "too small for a silo that holds a part of them (errata D6).",
        f"Noise is added to averages over {settings.batch_size} items: {settings.batch_size} times as much as the "
        "paper's own argument asks for, so the numbers below are far under the claim, and it learns little (errata "
        "D4).",
    )


def fixed_batch(records: int, size: int, stream: SecretStream) -> IntArray:
    """``size`` of ``records`` records, every set with the same probability; all of them if there are fewer."""
    return np.sort(np.argsort(stream.words(records), kind="stable")[:size])


def largest_group(users: IntArray) -> int:
    """Z: the largest number of records of one user."""
    return int(np.bincount(users).max()) if len(users) else 0
