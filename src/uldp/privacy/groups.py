"""From records to users by group privacy: Lemmas 5 and 6 of ULDP-FL, and what the paper made of Lemma 6.

A user with at most k records is k steps of adding or removing one record away from not being there. Both lemmas turn a
bound for one record into one for k of them without looking at the mechanism again; ``mixture-pld`` does look and is far
tighter. They are here for the tables, and as bounds that can be checked with a pencil.
"""

from __future__ import annotations

import math

import numpy as np

from uldp.errors import require
from uldp.privacy.events import Composition, Event, NoisedSum, NonPrivate, flatten, parameters, sampled_gaussian
from uldp.privacy.mixture import Array
from uldp.privacy.rdp import composed_rdp, convert_rdp, smallest_over_orders


def of_single_records(composition: Composition) -> tuple[dict[Event, int], int]:
    """``composition`` as one record sees it, and the most records a user has in any of its events.

    Events with fewer records are covered too: some of the k steps do not touch them at all.
    """
    single: dict[Event, int] = {}
    largest = 1
    for event, count in flatten(composition).items():
        assert isinstance(event, NoisedSum)
        of = parameters(event)
        record = sampled_gaussian(of.noise_multiplier, of.sample_rate)
        single[record] = single.get(record, 0) + count
        largest = max(largest, of.size)
    return single, largest


def _of_single_records(event: Event) -> bool:
    """Where not all of a user's records count, taking one away may let another one in: the lemmas do not cover that."""
    return isinstance(event, NoisedSum) and parameters(event).at_most is None


class Lemma5:
    """Group privacy of (epsilon, delta)-DP, any k: (epsilon, delta) becomes (k epsilon, k exp((k - 1) epsilon) delta).

    With epsilon taken from an RDP curve the equation for the right delta has a closed form; it needs alpha > k::

        epsilon_1 = [rho + log((alpha - 1) / alpha) - (log(delta / k) + log alpha) / (alpha - 1)]
                    / (1 - (k - 1) / (alpha - 1))
    """

    name = "lemma5"

    def accepts(self, event: Event) -> bool:
        return _of_single_records(event)

    def epsilon(self, composition: Composition, delta: float) -> float:
        single, size = of_single_records(composition)

        def bound(orders: Array) -> Array:
            one = convert_rdp(composed_rdp(single, orders), orders, delta / size)
            return np.asarray(size * np.maximum(one, 0.0) / (1 - (size - 1) / (orders - 1)))

        return smallest_over_orders(bound, lowest=size + 1e-3 if size == 1 else size + 1)


class Lemma6:
    """Group privacy of RDP (Mironov, Proposition 2): k = 2^c, (alpha, rho) becomes (alpha / k, 3^c rho), alpha >= 2k.

    A k that is not a power of two is rounded up; rounding it down would promise too much.
    """

    name = "lemma6"

    def accepts(self, event: Event) -> bool:
        return _of_single_records(event)

    def epsilon(self, composition: Composition, delta: float) -> float:
        single, size = of_single_records(composition)
        doublings = math.ceil(math.log2(size))
        return _lemma6(single, delta, doublings, lowest=1 + 1e-3 if size == 1 else 2.0 ** (doublings + 1))


def _lemma6(single: Composition, delta: float, doublings: int, lowest: float) -> float:
    def bound(orders: Array) -> Array:
        return convert_rdp(3.0**doublings * composed_rdp(single, orders), orders / 2**doublings, delta)

    return smallest_over_orders(bound, lowest)


def published_epsilon(composition: Composition, delta: float) -> float:
    """The number the paper prints for GROUP. NOT A BOUND: for tables that compare, never for judging a run.

    Lemma 6 with orders down to alpha = k + 10, as in the authors' search, where it holds from 2k on. So it is the lemma
    up to k = 8 and promises too much above: 2152 instead of 3267 for k = 32 (the paper's 2100), 11417 instead of 20107
    for k = 64 (its 11400), with sigma = 5, q = 0.01, 10^5 steps, delta = 1e-5.
    """
    if any(isinstance(event, NonPrivate) for event in flatten(composition)):
        return math.inf
    single, size = of_single_records(composition)
    doublings = round(math.log2(size))
    require(2**doublings == size, "group size", size, "published figures exist for powers of two")
    return _lemma6(single, delta, doublings, lowest=1 + 1e-3 if size == 1 else min(size + 10.0, 2.0 * size))
