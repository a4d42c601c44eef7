"""What each adversary of the privacy statement sees of the dummy coordinates, and how it scores the canaries."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from uldp.audits.bounds import Measured
from uldp.audits.canaries import SILENT, Mask
from uldp.audits.observe import Array, Seen
from uldp.data.federation import IntArray
from uldp.privacy.releases import Adversary, NoisedModel, Release

STRONGEST: Final = 0.9
"""Canaries that move a view by this share of the largest movement count for its bound; weaker ones say less."""


@dataclass(frozen=True)
class Twins:
    """Noiseless runs with all canaries and with none: what presence changes, exactly.

    Where an aggregation cannot go without noise, ``noise`` is its deviation in a total, and shifts are known up to it.
    """

    everyone: Seen
    nobody: Seen
    noise: float = 0.0

    @property
    def margin(self) -> float:
        """More than the noise of these runs moves any of their numbers, but for a probability of 1e-8."""
        return 8 * self.noise  # of a difference of two runs: 5.7 deviations

    def shift(self) -> Seen:
        """Everyone less nobody."""
        sums = None
        if self.everyone.silo_sums is not None and self.nobody.silo_sums is not None:
            sums = self.everyone.silo_sums - self.nobody.silo_sums
        return replace(self.everyone, totals=self.everyone.totals - self.nobody.totals, silo_sums=sums)

    def participants(self, shapes: IntArray) -> Mask:
        """(rounds, canaries): whom the total followed. With noise, only of those who move it furthest."""
        moved = np.abs(self.shift().totals[:, :-SILENT])
        if self.noise:
            return np.asarray(moved[:, shapes == 0] > moved.max() / 2)
        return np.asarray(moved > moved.max() / 1e3)


@dataclass(frozen=True)
class Scores:
    """One number per canary of all runs: how much speaks for its presence; above 0 more than against it.

    ``mu`` is how far presence moves the score, in standard deviations.
    """

    values: Array
    included: Mask
    mu: Array

    def strongest(self) -> Scores:
        """Those whose presence shows most. What selects them are noiseless shifts and samples, never a coin."""
        chosen = self.mu >= STRONGEST * self.mu.max(initial=0.0)
        if chosen.sum() < len(self.mu) / 4:
            chosen = self.mu >= np.quantile(self.mu, 0.75)
        chosen &= self.mu > 0
        return Scores(self.values[chosen], self.included[chosen], self.mu[chosen])

    def curve(self) -> tuple[Array, Array] | None:
        """The measured trade-off curve: rates of false "in" and of false "out" at a hundred thresholds.

        None where all of a few canaries are in, or all are out.
        """
        if self.included.all() or not self.included.any():
            return None
        thresholds = np.quantile(self.values, np.linspace(0, 1, 101))[:, None]
        above = self.values > thresholds
        return above[:, ~self.included].mean(axis=1), (~above)[:, self.included].mean(axis=1)


def components(seen: Seen, adversary: Adversary, release: Release) -> Array | None:
    """(parts, rounds, dummies): what the adversary knows, its own noise taken off; None where that cannot be had."""
    sums = seen.silo_sums
    if adversary.who == "server" and adversary.sees_silo_sums:
        return sums
    taken = adversary.dropped + adversary.own_shares
    if taken == 0 or not release.shared_noise:
        return seen.totals[None]
    return None if sums is None else (seen.totals - sums[:taken].sum(axis=0))[None]


def noise_variance(parts: Sequence[Array]) -> Array:
    """The variance of each part's noise over all runs, in the silent coordinates."""
    return np.asarray(np.mean([np.square(part[:, :, -SILENT:]).mean(axis=(1, 2)) for part in parts], axis=0))


def largest_shift(moved: Array, margin: float = 0.0) -> Array:
    """(parts, canaries): the furthest that a canary moves each part in a round, less the margin."""
    where = np.abs(moved[:, :, :-SILENT]).argmax(axis=1)
    shift = np.take_along_axis(moved[:, :, :-SILENT], where[:, None], axis=1)[:, 0]
    return np.asarray(np.sign(shift) * np.maximum(np.abs(shift) - margin, 0))


def scores(runs: Sequence[Seen], twins: Twins, adversary: Adversary, release: Release) -> Scores | None:
    """How this adversary scores every canary of every run: by log-likelihood ratios of what is claimed.

    With no sample, or one that is known, rounds in which a canary took part are added up; otherwise each round is a
    mixture.
    """
    parts = [part for seen in runs if (part := components(seen, adversary, release)) is not None]
    moved, base = (components(seen, adversary, release) for seen in (twins.shift(), twins.nobody))
    if moved is None or base is None or len(parts) < len(runs):
        return None
    shift, rate = largest_shift(moved, twins.margin), release.user_sampling.rate
    if isinstance(release, NoisedModel):
        shift = shift * release.everywhere()[1]  # what its steps take of it on average
    variance = np.maximum(noise_variance(parts), 1e-300 + 1e-12 * np.abs(shift).max() ** 2)
    power = (shift**2 / variance[:, None]).sum(axis=0)
    known = rate == 1 or (adversary.who != "public" and adversary.knows_sample)
    found = []
    for seen, part in zip(runs, parts, strict=True):
        without = base[:, :1, :-SILENT]
        weighted = (shift[:, None] * (part[:, :, :-SILENT] - without) / variance[:, None, None]).sum(axis=0)
        if known:
            present = np.ones_like(weighted) if seen.sample is None else seen.sample.astype(np.float64)
            mu = np.sqrt(present.sum(axis=0) * power)
            values = (weighted * present).sum(axis=0) / np.where(mu > 0, mu, 1) - mu / 2
        else:
            mu = np.sqrt(len(weighted) * power)
            values = np.logaddexp(math.log1p(-rate), math.log(rate) + weighted - power / 2).sum(axis=0)
        found.append((values, seen.included.any(axis=0), mu))
    values, included, mu = (np.concatenate(column) for column in zip(*found, strict=True))
    return Scores(values, included, mu)


def noise_of(seen: Seen, twins: Twins, adversary: Adversary, release: Release) -> Array | None:
    """(parts, rounds, coordinates): the noise alone, where nobody moves a part."""
    part, moved, base = (components(one, adversary, release) for one in (seen, twins.shift(), twins.nobody))
    if part is None or moved is None or base is None:
        return None
    quiet = np.ones(part.shape[2], dtype=np.bool_)
    quiet[:-SILENT] = ~seen.included.any(axis=0) | (np.abs(moved[:, :, :-SILENT]) <= twins.margin).all(axis=(0, 1))
    base = base if not twins.noise else np.zeros_like(base)
    return np.asarray((part - base[:, :1])[:, :, quiet])


def measure(runs: Sequence[Seen], twins: Twins, adversary: Adversary, release: Release) -> Measured | None:
    """What a round shows of the canary that moves it furthest."""
    noise = [one for seen in runs if (one := noise_of(seen, twins, adversary, release)) is not None]
    moved = components(twins.shift(), adversary, release)
    if not noise or moved is None:
        return None
    variance = np.mean([np.square(one).mean(axis=(1, 2)) for one in noise], axis=0)
    with np.errstate(divide="ignore", invalid="ignore"):
        each = largest_shift(moved, twins.margin) ** 2 / variance[:, None]
    mu = math.sqrt(float(np.nan_to_num(each, nan=0.0, posinf=math.inf).sum(axis=0).max(initial=0.0)))
    return Measured(mu, sum(one.shape[1] * one.shape[2] for one in noise), len(variance))
