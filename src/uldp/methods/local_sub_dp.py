"""LocalSubDP: DP-SGD for subjects inside every silo (Marathe and Kanani, Algorithm 2).

See :mod:`uldp.methods.subjects`. ``sound``. Silo s, T steps, each with a fresh sample that takes every subject with
probability q::

    g_u = gradient of the mean loss over at most K of the sampled subject u's items
    x <- x - eta_l / B (sum_u g_u min(1, C / |g_u|) + N(0, sigma^2 C^2))

Server: x_(t+1) = x_t + eta_g mean_s (x_s - x_t), over the silos picked for the round.

Guarantee. A step is a Poisson-sampled Gaussian of multiplier sigma for a subject. Silos sample and add noise on their
own, so a subject with records in s silos faces s T steps a round. s is ``max_silos``, or the number of silos.

``sampling = "items"`` is the paper's sampling with public bounds, to see what it costs: every item is taken with
probability q and clipped by itself; a silo keeps at most ``max_items`` items of a subject, of which at most
``largest_group`` count in a step. That is a mixture of Gaussians with min(Binomial(max_items, q), largest_group) clips.

Weights that sum to 1 over silos would help only without sampling: silos toss their coins on their own, and for split
weights the total variation distance grows. CentralSubDP has them, with one coin for all silos.

``published``. Line 3: B of the silo's n items, drawn without replacement; lines 10 and 11: noise sigma_Z; line 12: the
step is divided by the number of silos once more, as printed (errata D4).

Symbols: q ``record_rate``, B ``batch_size``, C ``clip``, T ``local_steps``, K ``items``, sigma ``noise_multiplier``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import ClassVar, Final

import numpy as np

from uldp.data.federation import IntArray, SiloData
from uldp.learners.base import Learner
from uldp.limits import MAX_ITEMS
from uldp.mechanisms.gaussian import sample_gaussian
from uldp.methods.base import Contribution, Facts, State, require
from uldp.methods.dp_sgd import DpSgd, poisson_batch, step_noise
from uldp.methods.subjects import (
    SubjectLevel,
    clipped_gradients,
    fixed_batch,
    largest_group,
    refuse_without_claim,
    sampled_subjects,
    some_of_each,
)
from uldp.privacy.events import Event, Group, NonPrivate, Repeated, sampled_gaussian
from uldp.privacy.subjects import item_epsilon
from uldp.rng import Secrets, Streams
from uldp.vectors import Vector

SAMPLINGS: Final = ("subjects", "items")
Step = Callable[[Vector, int], Vector]


@dataclass(frozen=True, kw_only=True)
class LocalSubDp(SubjectLevel, DpSgd):
    """DP-SGD that samples and clips subjects."""

    sampling: str = "subjects"
    items: int = 4
    max_items: int = 0
    """With ``sampling = "items"``: of a subject's items a silo keeps so many."""
    largest_group: int = 0
    """With ``sampling = "items"``: so many items of a subject count in a step; 0 for all that are sampled."""

    summary: ClassVar[str] = "DP-SGD in every silo on sampled subjects; a subject in s silos pays s times"
    unit: ClassVar[str | None] = "user"

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.sampling in SAMPLINGS, "sampling", self.sampling, f"one of {', '.join(SAMPLINGS)}")
        self._check_counts(1, MAX_ITEMS, "items")
        sampled = self.sampling == "items"
        require(
            1 <= self.max_items <= MAX_ITEMS if sampled else self.max_items == 0,
            "max_items",
            self.max_items,
            f"from 1 to {MAX_ITEMS:,}, the public number of a subject's items that a silo keeps"
            if sampled
            else "left out unless sampling = 'items'",
        )
        require(
            self.largest_group >= 0 if sampled else self.largest_group == 0,
            "largest_group",
            self.largest_group,
            "0 (all) or more" if sampled else "left out unless sampling = 'items'",
        )
        require(
            not sampled or self.largest_group <= self.max_items,
            "largest_group",
            self.largest_group,
            f"at most max_items ({self.max_items})",
        )
        require(not (self.published and sampled), "sampling", self.sampling, "left out with mode = 'published'")
        require(
            not self.published or self.batch_size == int(self.batch_size),
            "batch_size",
            self.batch_size,
            "a whole number of items with mode = 'published'",
        )

    # --- the silo -------------------------------------------------------------------------------------------------

    def kept(self, data: SiloData, told: IntArray | None, streams: Streams) -> SiloData:
        if self.published or self.sampling == "subjects":
            return data
        return data.take(some_of_each(data.users, self.max_items, streams))

    def silo(
        self, x: Vector, data: SiloData, learner: Learner, streams: Streams, secrets: Secrets
    ) -> Iterator[Contribution]:
        make = self._published_step if self.published else self._sound_step
        step_of, now = make(data, learner, streams, secrets), x
        # Algorithm 2, line 12, divides by the number of silos, as printed (errata D4).
        rate = self.local_lr / self.batch_size / (self.picked_silos if self.published else 1)
        for step in range(self.local_steps):
            now = now - rate * step_of(now, step)
        yield None, (now - x)[None, :]

    def _sound_step(self, data: SiloData, learner: Learner, streams: Streams, secrets: Secrets) -> Step:
        sums = self._subject_sums if self.sampling == "subjects" else self._item_sums
        clipped = sums(data, learner, streams, secrets)

        def noised(now: Vector, step: int) -> Vector:
            return self._with_noise(clipped(now, step), self.noise_multiplier, secrets.child("noise", step))

        return noised

    def _with_noise(self, total: Vector, multiplier: float, secrets: Secrets) -> Vector:
        if not multiplier:
            return total
        return total + sample_gaussian(multiplier * self.clip, len(total), step_noise(secrets, total))

    def _subject_sums(self, data: SiloData, learner: Learner, streams: Streams, secrets: Secrets) -> Step:
        def clipped(now: Vector, step: int) -> Vector:
            coins = secrets.child("batches", step).stream()
            sampled = data.take(sampled_subjects(data.users, self.record_rate, coins))
            own = streams.child("step", step)
            some = sampled.take(some_of_each(sampled.users, self.items, own.child("items")))
            return clipped_gradients(now, some, learner, self.clip, own)

        return clipped

    def _item_sums(self, data: SiloData, learner: Learner, streams: Streams, secrets: Secrets) -> Step:
        clipped_sum = learner.clipped_sums(data, self.clip)

        def clipped(now: Vector, step: int) -> Vector:
            batch = poisson_batch(len(data), self.record_rate, secrets.child("batches", step).stream())
            if self.largest_group:
                own = streams.child("step", step, "items")
                batch = batch[some_of_each(data.users[batch], self.largest_group, own)]
            return clipped_sum(now, batch, step, streams)

        return clipped

    def _published_step(self, data: SiloData, learner: Learner, streams: Streams, secrets: Secrets) -> Step:
        refuse_without_claim(self.claimed_epsilon)
        clipped_sum = learner.clipped_sums(data, self.clip)
        total_steps = self.local_steps * self.rounds

        def noised(now: Vector, step: int) -> Vector:
            batch = fixed_batch(len(data), self.published_batch, secrets.child("batches", step).stream())
            if not len(batch):
                return np.zeros_like(now)
            sigma = self.sigma(largest_group(data.users[batch]), len(data), total_steps)
            return self._with_noise(clipped_sum(now, batch, step, streams), sigma, secrets.child("noise", step))

        return noised

    @property
    def published_batch(self) -> int:
        return int(self.batch_size)

    def published_steps(self, facts: Facts) -> int:
        return self.local_steps * self.rounds

    def published_steps_of_a_silo(self) -> int:
        return self.local_steps * self.rounds

    def epsilon_of_fixed_noise(self, noise: float, rate: float, facts: Facts, *, items: int, silos: int) -> float:
        steps, most = self.published_steps_of_a_silo(), self.published_batch
        return item_epsilon(noise, rate, steps * silos, self.claimed_delta, items=items, at_most=most)

    # --- the server -----------------------------------------------------------------------------------------------

    def server(self, state: State, total: Vector, facts: Facts) -> State:
        return State(state.x + self.global_lr / self.silos_per_round(facts) * total)

    def event(self, facts: Facts, silos_heard: int) -> Event:
        if self.published or silos_heard <= 0:
            return NonPrivate()
        step = sampled_gaussian(self.noise_multiplier, self.record_rate)
        if isinstance(step, NonPrivate):
            return step
        one = step if self.sampling == "subjects" else Group(self.max_items, step, self.largest_group or None)
        return Repeated(self.local_steps * self.spanned(facts), one)

    def _published_remarks(self, facts: Facts) -> tuple[str, ...]:
        return (
            "Noise is added to the sum of clipped gradients, as it should be; the step is divided by the number of "
            "silos once more, as printed (errata D4).",
        )

    def caveats(self, facts: Facts) -> tuple[str, ...]:
        lines = super().caveats(facts)
        if self.published or self.sampling == "subjects":
            return lines
        counted = f", of which {self.largest_group} count in a step" if self.largest_group else ""
        return (
            f"Items are sampled and clipped one by one; a silo keeps at most {self.max_items} of a subject{counted}. "
            "Epsilon rests on that.",
            *lines,
        )

    def corrections(self) -> tuple[str, ...]:
        spanned = (
            "The paper says that a subject's epsilon in one silo holds for a subject in several. Silos add up: every "
            "silo's steps are counted (errata D3)."
        )
        if self.sampling == "items":
            return (spanned, "Groups are accounted at their public bound, and the noise is public (errata D1, D2, D6).")
        return (
            spanned,
            "Subjects are sampled and clipped as a whole, and the noise is public (errata D1, D2, D6).",
        )
