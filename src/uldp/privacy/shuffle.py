"""Shuffled local reports: what hiding among N clients is worth, and what a whole run of such reports costs.

A client sends a report for every weight, each eps0-LDP without any delta. A shuffler that nobody else can look into
permutes the N reports of one weight, afresh for every weight and round. N counts the clients that *take part* in the
round; those who reveal to the adversary what they sent do not count. Neighbours are runs in which one client's data are
replaced by others.

The reduction ("Hiding among the clones", Feldman, McMillan and Talwar, FOCS 2021): every other client's report is,
with some probability, a clone that looks like the report of either of the two neighbours. With C ~ Bin(N - 1, share)
clones, A ~ Bin(C, 1/2) and D ~ Bernoulli(e^eps0 / (e^eps0 + 1)), an adversary has no more than (A + D, C - A + 1 - D)
or the same with 1 - D in place of D. The share depends on the randomizer:

* ``e^-eps0`` holds for every eps0-LDP randomizer (their Theorem 3.2).
* ``2 / (e^eps0 + 1)`` is larger. It holds where every third input gives every output at least the probability
  (q0 + q1) / (e^eps0 + 1), as in generalized randomized response, and for randomizers with two outputs (there the worst
  pair is binary randomized response, because the divergence is convex in the pair). In the sequel (SODA 2023) it was
  stated for all randomizers; the authors' errata (arXiv:2208.04591) takes that back. Staircase randomized response and
  the piecewise mechanism have pairs of inputs that share likely outputs, so it is not proven for them.
"""

from __future__ import annotations

import functools
import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from uldp.errors import ConfigError, require
from uldp.limits import check_whole
from uldp.privacy.accountants import check_delta
from uldp.privacy.composition import (
    MAX_RELEASES,
    MIN_GAIN,
    ROUNDING,
    TAIL,
    advanced_composition,
    likely_outcomes,
    smallest,
)
from uldp.privacy.local_reports import compose_reports
from uldp.privacy.mixture import Array

MAX_EPSILON = 50.0
"""Beyond, a clone is rarer than 1e-21 and there is nothing to compute."""

MAX_CLIENTS = 10**7
"""Of a round, for the sake of time. What holds among so many holds among more."""

MAX_BLOCKS = 4096
"""Of numbers of clones that are counted as one."""


def erlingsson(epsilon: float, clients: int, delta: float) -> float:
    """12 eps sqrt(log(1/delta) / N), by Erlingsson et al. (SODA 2019); refused outside the region of its proof.

    It can lie above ``epsilon`` itself. ``feldman`` is smaller and has no such region.

    >>> round(erlingsson(0.4, 10_000, 1e-5), 4)
    0.1629
    """
    _check(epsilon, delta, clients=clients)
    region = "the formula is proven for clients >= 1000, epsilon < 1/2 and delta < 1/100 only"
    remedy = "use the numeric bound of Feldman et al. instead"
    if clients < 1000:
        raise ConfigError(f"{clients} is too few: {region}; {remedy}", location="clients", value=clients)
    if epsilon >= 1 / 2:
        raise ConfigError(f"{epsilon:g} is too large: {region}; {remedy}", location="epsilon", value=epsilon)
    if delta >= 1 / 100:
        raise ConfigError(f"{delta:g} is too large: {region}; {remedy}", location="privacy.delta", value=delta)
    return 12 * epsilon * math.sqrt(math.log(1 / delta) / clients)


def feldman(
    epsilon: float, clients: int, delta: float, *, extremal: bool = True, max_blocks: int = MAX_BLOCKS
) -> float | None:
    """The epsilon of one shuffled report by the numeric bound of Feldman, McMillan and Talwar; None: no gain.

    ``extremal`` takes the share of clones 2 / (e^eps0 + 1), proven for generalized randomized response and randomizers
    with two outputs; without it the share is e^-eps0, proven for every randomizer. ``max_blocks`` is how finely the
    number of clones is counted: a smaller one is faster, and its epsilon is never smaller.

    >>> round(feldman(1.0, 1000, 1e-5), 3), round(feldman(1.0, 1000, 1e-5, extremal=False), 3)
    (0.125, 0.154)
    >>> feldman(3.0, 100, 1e-5) is None
    True
    """
    _check(epsilon, delta, clients=clients)
    return _feldman(float(epsilon), clients, delta, extremal, max_blocks)


@functools.lru_cache(maxsize=1024)
def _feldman(epsilon: float, clients: int, delta: float, extremal: bool, max_blocks: int) -> float | None:
    if clients == 1 or epsilon > MAX_EPSILON:
        return None
    share = 2 / (math.exp(epsilon) + 1) if extremal else math.exp(-epsilon)
    clones, weights = _blocks(*likely_outcomes(clients - 1, share, TAIL * delta), max_blocks)
    found = smallest(lambda target: _clones_delta(target, epsilon, clones, weights) + 2 * TAIL * delta, delta, epsilon)
    return found if found < (1 - MIN_GAIN) * epsilon else None


def _blocks(clones: Array, weights: Array, max_blocks: int) -> tuple[Array, Array]:
    """The same in at most ``max_blocks`` blocks, each with its smallest number: fewer clones never hide better."""
    starts = np.arange(0, len(clones), -(-len(clones) // max_blocks))
    return clones[starts], np.add.reduceat(weights, starts)


def _clones_delta(target: float, epsilon: float, clones: Array, weights: Array) -> float:
    """The hockey-stick divergence of order e^target between the two neighbours, over the given numbers of clones.

    With c clones the first count a has probability D Bin(a - 1) + (1 - D) Bin(a), the other way round for the
    neighbour. Their ratio grows with a, so the divergence is a sum from the first a with a ratio above e^target. The
    tails of both neighbours are equal but for the term at the edge: what remains is a difference of two small numbers,
    not of two large ones. By symmetry the other direction is the same.
    """
    from scipy.stats import binom

    edge = -math.expm1(-(target + epsilon)) / (-math.expm1(-epsilon) * (1 + math.exp(-target)))
    first = np.minimum(np.floor((clones + 1) * edge) + 1, clones + 1)
    gained = -math.expm1(target - epsilon) / (1 + math.exp(-epsilon)) * binom.pmf(first - 1, clones, 0.5)
    lost = math.expm1(target) * binom.sf(first - 1, clones, 0.5)
    return float(weights @ (gained - lost) + ROUNDING * (weights @ (gained + lost)))


@dataclass(frozen=True)
class RunCost:
    """The epsilons of local reports at one delta: of one weight of a round, of a client's round, of all its rounds."""

    per_weight_round: float
    per_client_round: float
    per_run: float
    delta: float
    how: str
    """How the numbers were obtained."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def local_run(epsilon: float, weights: int, rounds: int) -> RunCost:
    """Without shuffling: epsilons add up over weights and rounds, without any delta.

    >>> local_run(5.0, 20_490, 10).per_run
    1024500.0
    """
    _check(epsilon, None, weights=weights, rounds=rounds)
    return RunCost(
        per_weight_round=epsilon,
        per_client_round=epsilon * weights,
        per_run=epsilon * weights * rounds,
        delta=0.0,
        how=f"Local reports, not shuffled: epsilon {epsilon:g} adds up over {weights} weights and {rounds} rounds.",
    )


def shuffled_run(
    epsilon: float, clients: int, weights: int, rounds: int, delta: float, *, extremal: bool = False
) -> RunCost:
    """With shuffling among the ``clients`` that take part in a round: ``weights`` releases a round about one client.

    A weight carries its position, so shuffling does not end composition over the weights. Each of the three numbers
    holds at ``delta`` by itself and is the best of what is proven: the local epsilons as the local accountant has
    them, or, where that is less by a thousandth at least, the shuffled ones added up (each with an equal part of delta)
    or composed (half of delta shared among the releases, half for the composition). So it is never above the local
    accountant's number. ``extremal`` as in ``feldman``; the default holds for every randomizer.
    """
    _check(epsilon, delta, clients=clients, weights=weights, rounds=rounds)
    one, of_one = _compose(epsilon, clients, 1, delta, extremal)
    a_round, of_round = _compose(epsilon, clients, weights, delta, extremal)
    run, of_run = _compose(epsilon, clients, weights * rounds, delta, extremal)
    how = f"One weight of a round: {of_one}. A client's round: {of_round}. All rounds: {of_run}."
    return RunCost(one, a_round, run, delta, how)


def _compose(epsilon: float, clients: int, times: int, delta: float, extremal: bool) -> tuple[float, str]:
    """The smallest epsilon of ``times`` shuffled releases, and where it comes from."""

    def amplify(delta_each: float) -> float | None:
        return feldman(epsilon, clients, delta_each, extremal=extremal)

    among = f"shuffled among {clients} clients (Feldman et al.)"
    if times == 1:
        alone = amplify(delta)
        return (epsilon, "the local epsilon, shuffling gains nothing") if alone is None else (alone, among)
    local = compose_reports(epsilon, times, delta)
    added = "added up" if local == times * epsilon else "composed (Kairouz et al.)"
    ways = []
    if (each := amplify(delta / times)) is not None:
        ways.append((times * each, f"{times} times epsilon {each:.4g} at delta {delta / times:.3g}, {among}, added up"))
    half = delta / (2 * times)
    if each := amplify(half):
        split = f"composed (Kairouz et al.) at delta {delta / 2:.3g} besides"
        text = f"{times} times epsilon {each:.4g} at delta {half:.3g}, {among}, {split}"
        ways.append((advanced_composition(each, times, delta / 2), text))
    best = min(ways, default=(math.inf, ""))
    return best if best[0] < (1 - MIN_GAIN) * local else (local, f"{times} local epsilons {added}")


def _check(epsilon: float, delta: float | None, **counts: int) -> None:
    require(0 < epsilon < math.inf, "epsilon", epsilon, "a positive number")
    if delta is not None:
        check_delta(delta)
    for location, count in counts.items():
        check_whole(count, 1, None, location)
    if counts.get("clients", 1) > MAX_CLIENTS:
        raise ConfigError(
            f"at most {MAX_CLIENTS:,}, not {counts['clients']:,}; what holds among {MAX_CLIENTS:,} holds among more",
            location="clients",
            value=counts["clients"],
        )
    weights, rounds = counts.get("weights", 1), counts.get("rounds", 1)
    if weights * rounds > MAX_RELEASES:
        raise ConfigError(
            f"{weights:,} weights in {rounds:,} rounds are more than {MAX_RELEASES:,} values; take fewer",
            location="weights" if weights > 1 else "rounds",
            value=weights if weights > 1 else rounds,
        )
