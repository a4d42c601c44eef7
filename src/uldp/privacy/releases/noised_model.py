"""One model per silo, trained by DP-SGD: the noise goes onto the sum of clipped gradients in every local step.

Abadi et al., "Deep Learning with Differential Privacy", CCS 2016. In every step each record is taken with probability
q on its own, gradients are clipped record by record, and noise is added to their sum::

    x <- x - eta_l / B (sum_i g_i min(1, C / |g_i|) + N(0, sigma^2 C^2))

q, the number of steps and the divisor B are public settings, never derived from a silo's number of records, which one
user changes. q and the number of steps are the same in all silos, or a list with a value for each silo (the papers'
batch / n_s, from sizes that are public). Then the worst way to spread a user's records over the silos is accounted for.

Whom it protects depends on ``sampling``:

* ``records``: a step is a Poisson-sampled Gaussian for one *record*. With ``group_size`` k silos keep at most k records
  of a user over all silos (:class:`~uldp.privacy.releases.counts.RecordLimits`), and the *user* is protected: in every
  step the sum moves by at most Binomial(k, q) clips, a mixture of Gaussians, accounted at the exact k.
* ``subjects``: every *user* is taken with probability q, and the gradient of the mean loss over at most ``items`` of
  the user's records is clipped once. Silos sample and add noise on their own, so a user with records in s silos
  (``max_silos``) faces s times the steps.
* ``items``: every record is taken with probability q and clipped by itself; a silo keeps at most ``max_items`` of a
  user, of which at most ``largest_group`` count in a step: min(Binomial(max_items, q), largest_group) clips.

The noise is floating point (:mod:`uldp.mechanisms.gaussian`); what a silo sends is cut off at ``value_range``. Batches
and noise are secret randomness. Everybody's view is the same: nobody can subtract another silo's noise.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, overload

import numpy as np
import numpy.typing as npt

from uldp.caveats import Caveat, Severity
from uldp.data.federation import IntArray, SiloData
from uldp.errors import require
from uldp.learners.base import Learner
from uldp.learners.randomness import order_keys
from uldp.limits import MAX_ITEMS, MAX_LOCAL_STEPS, MAX_SILOS, check_whole
from uldp.mechanisms.gaussian import sample_gaussian
from uldp.privacy.events import Event, Group, NonPrivate, Repeated, Spread, sampled_gaussian
from uldp.privacy.releases.base import Adversary, Release, SiloPart
from uldp.privacy.releases.counts import CountExchange, RecordLimits
from uldp.privacy.releases.gaussian_sum import check_max_silos, max_silos_caveats
from uldp.privacy.releases.sampling import MIN_RATE
from uldp.privacy.releases.sums import Contribution, require_limit
from uldp.rng import Secrets, SecretStream, Streams
from uldp.vectors import FixedPoint, Vector, clip_rows

SAMPLINGS: Final = ("records", "subjects", "items")
MIN_NOISE: Final = 1e-3
"""Less noise than this protects nobody, and its epsilon is beyond what floats can count."""
SHOWN_SIZES: Final = (2, 8, 32)
"""Where single records are protected: numbers of records of a person that the statement has a line for."""

Mask = npt.NDArray[np.bool_]
ClippedSum = Callable[[Vector, int], Vector]
"""The sum of clipped gradients at a model, in a step."""


@dataclass(frozen=True, kw_only=True)
class NoisedModel(Release):
    """Every silo's model delta after ``steps`` steps of DP-SGD, which the release runs itself.

    Args:
        clip: C, the largest L2 norm of a gradient: of a record, or with ``sampling = "subjects"`` of a user.
        noise_multiplier: sigma, of each step's sum of gradients.
        steps: How many steps a silo makes in a round; where records are sampled, also one number for each silo.
        rate: The probability with which a record (or a user) is in a step; likewise.
        batch_size: What a step's sum is divided by; public, never the real number of records.
        lr: The step size.
        value_range: Coordinates of the delta are cut off at this.
        sampling: What is sampled in a step: ``records``, ``subjects`` (users) or ``items`` (records of users).
        group_size: k, how many records of a user take part over all silos; None protects single records.
        items: How many records of a user are averaged, with ``subjects``.
        max_items: How many records of a user a silo selects, with ``items``.
        largest_group: How many of them count in a step at most, with ``items``; 0 for all.
        max_silos: A user has records in at most this many silos; 0 for no bound.

    Raises:
        ConfigError: A value outside its range.

    Example:
        >>> from uldp.privacy.releases import PublicFacts
        >>> facts = PublicFacts(users=100, silos=5, dimension=10)
        >>> steps = {"steps": 100, "rate": 0.01, "batch_size": 20, "lr": 0.1}
        >>> NoisedModel(facts=facts, clip=1.0, noise_multiplier=5.0, group_size=8, **steps).privacy_unit
        'user'
    """

    clip: float
    noise_multiplier: float
    steps: int | tuple[int, ...]
    rate: float | tuple[float, ...]
    batch_size: float
    lr: float
    value_range: float = 1024.0
    sampling: str = "records"
    group_size: int | None = None
    items: int = 4
    max_items: int = 0
    largest_group: int = 0
    max_silos: int = 0

    def __post_init__(self) -> None:
        require_limit("method.clip", self.clip)
        require_limit("method.value_range", self.value_range)
        require(0 < self.lr < math.inf, "method.local_lr", self.lr, "a positive number")
        require(0 < self.batch_size < math.inf, "method.batch_size", self.batch_size, "a positive number")
        for steps in per_silo(self.steps):
            check_whole(steps, 1, MAX_LOCAL_STEPS, "method.local_steps")
        for rate in per_silo(self.rate):
            require(MIN_RATE <= rate <= 1, "method.record_rate", rate, f"from {MIN_RATE:g} to 1")
        for key, value in (("record_rate", self.rate), ("local_steps", self.steps)):
            require(
                self.sampling == "records" or not isinstance(value, tuple),
                f"method.{key}",
                value,
                "one number for all silos, unless records are sampled",
            )
        require(
            self.noise_multiplier == 0 or MIN_NOISE <= self.noise_multiplier < math.inf,
            "privacy.noise_multiplier",
            self.noise_multiplier,
            f"0 (no privacy) or at least {MIN_NOISE:g}",
        )
        require(self.sampling in SAMPLINGS, "method.sampling", self.sampling, f"one of {', '.join(SAMPLINGS)}")
        require(
            self.group_size is None or (self.sampling == "records" and 1 <= self.group_size <= MAX_ITEMS),
            "method.group_size",
            self.group_size,
            f"a whole number from 1 to {MAX_ITEMS:,}, where records are sampled",
        )
        check_whole(self.items, 1, MAX_ITEMS, "method.items")
        check_whole(self.max_silos, 0, MAX_SILOS, "method.max_silos")
        self._check_items()

    def check(self) -> None:
        super().check()
        for key, value in (("record_rate", self.rate), ("local_steps", self.steps)):
            require(
                not isinstance(value, tuple) or len(value) == self.facts.silos,
                f"method.{key}",
                value,
                f"one number, or one for each of the {self.facts.silos} silos",
            )

    def _check_items(self) -> None:
        sampled = self.sampling == "items"
        require(
            1 <= self.max_items <= MAX_ITEMS if sampled else self.max_items == 0,
            "method.max_items",
            self.max_items,
            f"from 1 to {MAX_ITEMS:,}, the public number of a subject's items that a silo keeps"
            if sampled
            else "left out unless sampling = 'items'",
        )
        require(
            0 <= self.largest_group <= self.max_items if sampled else self.largest_group == 0,
            "method.largest_group",
            self.largest_group,
            f"from 0 (all) to max_items ({self.max_items})" if sampled else "left out unless sampling = 'items'",
        )

    @property
    def privacy_unit(self) -> str:
        return "record" if self.sampling == "records" and self.group_size is None else "user"

    @property
    def encoding(self) -> FixedPoint:
        return FixedPoint(limit=self.value_range, bits=48, saturate=True)

    @property
    def exchange(self) -> CountExchange | None:
        return None if self.group_size is None else RecordLimits(self.group_size)

    def select(self, data: SiloData, user_totals: IntArray | None, streams: Streams) -> SiloData:
        if self.sampling == "items":
            return data.take(some_of_each(data.users, self.max_items, streams))
        if self.group_size is None:
            return data
        assert user_totals is not None, "a limit on a user's records over all silos needs the counts"
        return data.take(selected_records(data.users, user_totals, streams))

    # --- DP-SGD ---------------------------------------------------------------------------------------------------

    def rows(
        self, method: SiloPart, x: Vector, data: SiloData, learner: Learner, streams: Streams, secrets: Secrets
    ) -> Iterator[Contribution]:
        sums = {"records": self._record_sums, "subjects": self._subject_sums, "items": self._item_sums}[self.sampling]
        clipped, now = sums(data, learner, streams, secrets), x
        for step in range(self.in_silo(data.name)[0]):
            total = clipped(now, step)
            if self.noise_multiplier:
                noise = step_noise(secrets.child("noise", step), total)
                total = total + sample_gaussian(self.noise_multiplier * self.clip, len(x), noise)
            now = now - self.lr / self.batch_size * total
        yield None, (now - x)[None, :]

    def _record_sums(self, data: SiloData, learner: Learner, streams: Streams, secrets: Secrets) -> ClippedSum:
        clipped_sum = learner.clipped_sums(data, self.clip)
        batches, rate = secrets.child("batches").stream(), self.in_silo(data.name)[1]
        return lambda now, step: clipped_sum(now, poisson_batch(len(data), rate, batches), step, streams)

    def _subject_sums(self, data: SiloData, learner: Learner, streams: Streams, secrets: Secrets) -> ClippedSum:
        _, rate = self.everywhere()

        def clipped(now: Vector, step: int) -> Vector:
            coins = secrets.child("batches", step).stream()
            sampled = data.take(sampled_subjects(data.users, rate, coins))
            own = streams.child("step", step)
            some = sampled.take(some_of_each(sampled.users, self.items, own.child("items")))
            return clipped_gradients(now, some, learner, self.clip, own)

        return clipped

    def _item_sums(self, data: SiloData, learner: Learner, streams: Streams, secrets: Secrets) -> ClippedSum:
        clipped_sum, (_, rate) = learner.clipped_sums(data, self.clip), self.everywhere()

        def clipped(now: Vector, step: int) -> Vector:
            batch = poisson_batch(len(data), rate, secrets.child("batches", step).stream())
            if self.largest_group:
                own = streams.child("step", step, "items")
                batch = batch[some_of_each(data.users[batch], self.largest_group, own)]
            return clipped_sum(now, batch, step, streams)

        return clipped

    # --- accounting -----------------------------------------------------------------------------------------------

    def event(self, silos_heard: int) -> Event:
        if silos_heard <= 0:
            return NonPrivate()
        if self.sampling == "records":
            return self.group_event(self.group_size or 1)
        steps, rate = self.everywhere()
        step = sampled_gaussian(self.noise_multiplier, rate)
        if isinstance(step, NonPrivate):
            return step
        one = step if self.sampling == "subjects" else Group(self.max_items, step, self.largest_group or None)
        return Repeated(steps * self.silo_sampling.silos_per_user(self.max_silos, self.facts.silos), one)

    def group_event(self, size: int) -> Event:
        """What a round shows about somebody with ``size`` records."""
        if self.noise_multiplier == 0:
            return NonPrivate()
        single = [(steps, sampled_gaussian(self.noise_multiplier, rate)) for steps, rate in self._silos()]
        silos = tuple((steps, event) for steps, event in single if not isinstance(event, NonPrivate))
        if len(set(silos)) > 1:
            return Spread(size, silos)
        # All k records in one silo are the worst case of how they may be spread over silos that are alike.
        steps, step = silos[0]
        return Repeated(steps, step if size == 1 else Group(size, step))

    def _silos(self) -> list[tuple[int, float]]:
        """Steps and rate of each silo; where all are alike, of one."""
        steps, rates = per_silo(self.steps), per_silo(self.rate)
        return list(
            zip(
                steps * (len(rates) if len(steps) == 1 else 1),
                rates * (len(steps) if len(rates) == 1 else 1),
                strict=True,
            )
        )

    def in_silo(self, name: str) -> tuple[int, float]:
        """Steps and rate of a silo."""
        silos = self._silos()
        return silos[0] if len(silos) == 1 else silos[self.facts.silo_names.index(name)]

    def everywhere(self) -> tuple[int, float]:
        """Steps and rate, where these are the same in all silos."""
        silos = set(self._silos())
        require(len(silos) == 1, "method.record_rate", self.rate, "one number for all silos (and so local_steps) here")
        return silos.pop()

    def view(self, adversary: Adversary) -> Event:
        # Every silo adds all of its noise itself: nobody can subtract another silo's.
        return self.event(adversary.shares(self.facts))

    def per_person(self) -> Mapping[int, Event]:
        """Where single records are protected: what a person with this number of them faces in a round."""
        return {} if self.privacy_unit == "user" else {size: self.group_event(size) for size in SHOWN_SIZES}

    def check_counts(self, counts: IntArray) -> None:
        if self.sampling != "records":
            check_max_silos(self.max_silos, counts)

    def caveats(self) -> tuple[Caveat, ...]:
        spanned = max_silos_caveats(self.max_silos, self.facts) if self.sampling != "records" else ()
        limits = Caveat(
            "limits-by-server",
            f"The server decides how many records of a user take part in each silo. A silo refuses more than "
            f"{self.group_size} (method.group_size); a server that lies could let that many in from every silo.",
            Severity.LIMITS,
        )
        return (
            *spanned,
            *(() if self.group_size is None else (limits,)),
            Caveat("float-noise", "The noise of DP-SGD is floating point: it follows the theory up to rounding."),
            Caveat(
                "value-range",
                f"What a silo sends is cut off at +-{self.value_range:g} (method.value_range) in every coordinate.",
            ),
        )


@overload
def per_silo(value: int | tuple[int, ...]) -> tuple[int, ...]: ...
@overload
def per_silo(value: float | tuple[float, ...]) -> tuple[float, ...]: ...
def per_silo(value: float | tuple[float, ...]) -> tuple[float, ...]:
    """The values of a setting that is one number for all silos, or a list."""
    return value if isinstance(value, tuple) else (value,)


def step_noise(secrets: Secrets, total: Vector) -> SecretStream:
    """A step's noise, addressed by the sum it goes onto: a sum that was rounded otherwise gets other noise.

    Simulated noise protects nobody and is addressed by the step alone, so that runs can be compared.
    """
    return (secrets if secrets.simulated else secrets.child(hashlib.sha256(total.tobytes()).hexdigest())).stream()


def poisson_batch(records: int, rate: float, stream: SecretStream) -> IntArray:
    """Each of ``records`` records with probability ``rate``, on its own."""
    if rate == 1:
        return np.arange(records)
    # P(word < floor(q 2^64)) is q up to 2^-64, and never above it.
    return np.flatnonzero(stream.words(records) < np.uint64(math.floor(rate * 2.0**64)))


def sampled_subjects(users: IntArray, rate: float, stream: SecretStream) -> Mask:
    """Which records belong to sampled subjects: each subject with probability ``rate``, on its own."""
    if rate == 1 or not len(users):
        return np.ones(len(users), dtype=np.bool_)
    # A coin per user index, so that nobody's coin moves when others leave. P(word < floor(q 2^64)) is q up to 2^-64,
    # and never above it.
    coins = stream.words(int(users.max()) + 1) < np.uint64(math.floor(rate * 2.0**64))
    return np.asarray(coins[users])


def some_of_each(users: IntArray, most: int, streams: Streams) -> Mask:
    """At most ``most`` records of every user, by a random order of that user's own: others leaving change nothing."""
    if not len(users):
        return np.zeros(0, dtype=np.bool_)
    order = np.lexsort((order_keys(users, streams), users))
    counts = np.bincount(users)
    rank = np.arange(len(users)) - np.repeat(np.cumsum(counts) - counts, counts)
    chosen = np.empty(len(users), dtype=np.bool_)
    chosen[order] = rank < most
    return chosen


def selected_records(users: IntArray, user_totals: IntArray, streams: Streams) -> Mask:
    """Which records take part: ``user_totals[u]`` of user u's, drawn from a stream of user u's own."""
    flag = np.zeros(len(users), dtype=np.bool_)
    order = np.argsort(users, kind="stable")
    counts = np.bincount(users, minlength=len(user_totals))
    starts = np.cumsum(counts) - counts
    for user in np.flatnonzero(counts):
        own = order[starts[user] : starts[user] + counts[user]]
        if user_totals[user] >= counts[user]:
            flag[own] = True
        elif user_totals[user]:
            flag[streams.child("user", int(user)).generator().permutation(own)[: user_totals[user]]] = True
    return flag


def clipped_gradients(x: Vector, data: SiloData, learner: Learner, clip: float, streams: Streams) -> Vector:
    """The sum over subjects of the clipped gradient of their mean loss. One that is not finite counts as zero."""
    total = np.zeros(len(x))
    for _, rows in learner.user_gradients(x, data, streams):
        finite = np.isfinite(rows).all(axis=1)
        for row in clip_rows(rows if finite.all() else rows[finite], clip):  # in the order of users
            total += row
    return total
