"""The server's samples of users and silos. They follow from the secrets and the round: nothing to save or lose."""

from __future__ import annotations

import math

import numpy as np

from uldp.aggregation.base import Sample
from uldp.privacy.releases import Release
from uldp.rng import Secrets


class RoundSampler:
    """Draws who takes part in a round."""

    def __init__(self, release: Release, secrets: Secrets) -> None:
        self._release = release
        self._secrets = secrets

    def users(self, round_: int) -> Sample | None:
        """The round's Poisson sample of users (Algorithm 4); None for everybody."""
        sampling = self._release.user_sampling
        if sampling.everybody:
            return None
        sample = self._draw(round_)
        if limit := sampling.max_participations:
            # Who took part before follows from the earlier rounds' draws.
            taken = np.zeros(self._release.facts.users, dtype=np.int64)
            for earlier in range(1, round_):
                taken += self._draw(earlier) & (taken < limit)
            sample &= taken < limit
        return sample

    def _draw(self, round_: int) -> Sample:
        words = self._secrets.child("sample", "round", round_).stream().words(self._release.facts.users)
        # P(word < floor(q 2^64)) is q up to 2^-64, and never above it.
        return words < np.uint64(min(math.floor(self._release.user_sampling.rate * 2.0**64), 2**64 - 1))

    def silos(self, round_: int) -> Sample | None:
        """The silos that take part in a round: so many, every subset alike; None for all."""
        sampling, silos = self._release.silo_sampling, self._release.facts.silos
        if sampling.all_silos:
            return None
        words = self._secrets.child("silos", "round", round_).stream().words(silos)
        picked = np.zeros(silos, dtype=np.bool_)
        # 64-bit words of a few thousand silos do not coincide; if two do, the first one is picked.
        picked[np.argsort(words, kind="stable")[: sampling.per_round(silos)]] = True
        return picked
