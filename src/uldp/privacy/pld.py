"""Privacy loss distributions: tight up to a pessimistic grid, for sampled releases and for groups of sampled records.

The loss of one release is put on a lattice by connect-the-dots, which never understates (Doroshenko et al. 2022), on
more of its points where the loss matters for the epsilon to come, and on fewer elsewhere. ``convolution`` composes it.
Four things go to the safe side: the far tail of a release's loss counts as loss infinity; the far upper tail of
Binomial(k, q) counts as all k records sampled; what a finite window cannot show, and what float64 may have lost, are
added to delta.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence

import numpy as np

from uldp.privacy.convolution import (
    MAX_DOTS,
    MIN_DOTS,
    Discrete,
    Indices,
    composed_epsilon,
    dots_of,
    window_of,
)
from uldp.privacy.events import (
    Composition,
    Event,
    LocalReports,
    NoisedSum,
    NonPrivate,
    flatten,
)
from uldp.privacy.gaussian import gaussian_epsilon, unsampled_mu
from uldp.privacy.mixture import Array, Mixture, Profile, Sketch, mixture_of
from uldp.privacy.rdp import convert_rdp, has_curve

MAX_CELLS = 1_000_000
"""For the loss of one release: dots times different numbers of sampled records."""

MIN_LOG_TAIL = -600.0
"""Of what is cut; float64 has no smaller probabilities."""

MAX_EPSILON = 1e6
"""Beyond, a quick bound says as much."""

_ENDLESS = 1e300
ORDERS: Array = 1 + np.geomspace(1e-4, 1e3, 120)

Items = frozenset[tuple[NoisedSum, int]]


Part = tuple[Sketch, int, Callable[[Array], Profile], int]
"""A release in one direction: its sketch, how often, its delta(epsilon), and of how many Gaussians it is a mixture."""


class Pld:
    """Privacy loss distributions of Gaussians and Poisson-sampled Gaussians."""

    name = "pld"

    def accepts(self, event: Event) -> bool:
        return has_curve(event)

    def epsilon(self, composition: Composition, delta: float) -> float:
        return pld_epsilon(_items(composition), delta)


class MixturePld(Pld):
    """Privacy loss distributions of mixtures of Gaussians: groups of Poisson-sampled records at their exact size."""

    name = "mixture-pld"

    def accepts(self, event: Event) -> bool:
        return isinstance(event, NoisedSum)


def pld_epsilon(items: Items, delta: float) -> float:
    """The smallest of what is proven: by the distributions, by Renyi divergences, without sampling.

    The second and third are a few percent larger as a rule. They count where the distributions say nothing: for a delta
    near what float64 can resolve, or losses so large that the grid would be hopeless.
    """
    known = _quick_epsilon(items, delta) if items else 0.0
    if known == 0:
        return 0.0
    return known if known > MAX_EPSILON else min(known, distribution_epsilon(items, delta))


def quick_epsilon(composition: Composition, delta: float) -> float:
    """A bound in milliseconds, never below the accountant's: without sampling, or by Renyi divergences.

    Local reports add up. Beside noised sums they take half of delta, as the accountant has it.
    """
    events = flatten(composition)
    if any(isinstance(event, NonPrivate) for event in events):
        return math.inf
    reports = {event: count for event, count in events.items() if isinstance(event, LocalReports)}
    local = sum(event.epsilon * event.count * count for event, count in reports.items())
    items = frozenset((event, count) for event, count in events.items() if isinstance(event, NoisedSum))
    return local + (_quick_epsilon(items, delta / 2 if reports else delta) if items else 0.0)


def _quick_epsilon(items: Items, delta: float) -> float:
    return min(gaussian_epsilon(unsampled_mu(dict(items)), delta), renyi_epsilon(items, delta))


def renyi_epsilon(items: Items, delta: float) -> float:
    """Epsilon by the Renyi divergences of the mixtures, the worse of both directions."""
    return max(0.0, *(float(convert_rdp(rho, ORDERS, delta).min()) for rho in renyi_curves(items)))


def renyi_curves(items: Items) -> tuple[Array, Array]:
    """Renyi divergences of everything in ``items`` at ORDERS, if a user leaves and if a user comes."""
    left, came = np.zeros_like(ORDERS), np.zeros_like(ORDERS)
    for event, count in items:
        left_once, came_once = _renyi(event)
        left, came = left + count * left_once, came + count * came_once
    return left, came


def renyi_bounds(compositions: Sequence[Composition], delta: float) -> list[float]:
    """A bound for each composition, for thousands of them at once; infinite where something else is in them."""
    counts = [flatten(composition) for composition in compositions]
    events = list(dict.fromkeys(event for one in counts for event in one))
    sums = [event for event in events if isinstance(event, NoisedSum)]
    if len(sums) < len(events) or not sums:
        return [math.inf] * len(counts)
    times = np.array([[one.get(event, 0) for event in sums] for one in counts], dtype=np.float64)
    bounds = np.zeros(len(counts))
    for curves in zip(*map(_renyi, sums), strict=True):  # if a user leaves, if a user comes
        # A finite number in place of infinity: none of an event would be no number.
        rho = times @ np.minimum(np.stack(curves), _ENDLESS)
        bounds = np.maximum(bounds, convert_rdp(rho, ORDERS, delta).min(axis=1))
    return [float(bound) for bound in bounds]


@functools.lru_cache(maxsize=256)
def _renyi(event: NoisedSum) -> tuple[Array, Array]:
    return mixture_of(event).renyi(ORDERS)


def distribution_epsilon(items: Items, delta: float) -> float:
    """Epsilon by the loss distributions, the worse of both directions; infinite if a table would be too large."""
    ordered = sorted(items, key=repr)
    releases = sum(count for _, count in ordered)
    log_tail = max(MIN_LOG_TAIL, math.log(delta) - math.log(releases) - 14)
    mixtures = [(mixture_of(event).truncate(log_tail - 10), count) for event, count in ordered]
    sketches = [mixture.sketches(log_tail) for mixture, _ in mixtures]
    epsilons = []
    for way, profile in enumerate((Mixture.profile_if_left, Mixture.profile_if_came)):
        parts = []
        for both, (mixture, count) in zip(sketches, mixtures, strict=True):
            if both is None:
                return math.inf
            parts.append((both[way], count, functools.partial(profile, mixture), len(mixture.lengths)))
        epsilons.append(_one_direction_epsilon(parts, delta))
    return max(epsilons)


def _one_direction_epsilon(parts: Sequence[Part], delta: float) -> float:
    sketches = [(sketch, count) for sketch, count, _, _ in parts]
    window = window_of(sketches, delta, [max(MIN_DOTS, min(MAX_DOTS, MAX_CELLS // size)) for *_, size in parts])
    releases = []
    for (sketch, count, profile, _), dots in zip(parts, window.dots, strict=True):
        indices = dots_of(sketch, window, dots)
        releases.append((connect_dots(profile, indices, window.interval), count))
    if not all(np.isfinite(release.probabilities).all() for release, _ in releases):
        return math.inf  # floats cannot show it: a coarser bound counts
    epsilon = composed_epsilon(releases, window, delta)
    return math.inf if math.isnan(epsilon) else epsilon


def connect_dots(profile_of: Callable[[Array], Profile], indices: Indices, interval: float) -> Discrete:
    """Connect-the-dots: the loss of one release on the multiples ``indices`` of ``interval``.

    delta(epsilon) is replaced by chords in exp(epsilon), so a point has as much as the chords bend there. Adding a
    constant or a multiple of exp(epsilon) bends nothing: each point takes the form of delta that has most digits there.
    """
    epsilons = indices.astype(np.float64) * interval
    gaps = np.diff(epsilons)
    with np.errstate(over="ignore", invalid="ignore"):
        profile = profile_of(epsilons)
        forms = np.stack([profile.gained, -profile.missed, profile.beyond])
        rise = np.diff(forms, axis=1)
        bends = rise[:, 1:] / np.expm1(gaps[1:]) + rise[:, :-1] / np.expm1(-gaps[:-1])
    inner = np.take_along_axis(bends, np.abs(forms[:, 1:-1]).argmin(axis=0)[None], axis=0)[0]
    beyond, missed, gained = profile.beyond, profile.missed, profile.gained
    if beyond[0] < missed[0]:
        first = (beyond[1] - math.exp(gaps[0]) * beyond[0]) / math.expm1(gaps[0])
    else:
        first = missed[0] - (missed[1] - missed[0]) / math.expm1(gaps[0])
    last = (gained[-1] - gained[-2]) / math.expm1(-gaps[-1])
    probabilities = np.maximum(np.concatenate([[first], inner, [last]]), 0.0)
    infinity = max(0.0, float(gained[-1]))
    # Rounding may lose a little of the whole, and a sum above 1 overstates: only what is missing is made up for.
    return Discrete(indices, probabilities / min(1.0, float(probabilities.sum()) + infinity), infinity)


def _items(composition: Composition) -> Items:
    """The releases of a composition that holds nothing else."""
    items = []
    for event, count in flatten(composition).items():
        if not isinstance(event, NoisedSum):  # leaving it out would understate
            raise TypeError(f"a distribution of {event} is not made here")
        items.append((event, count))
    return frozenset(items)
