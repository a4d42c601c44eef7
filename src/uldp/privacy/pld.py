"""Privacy loss distributions: tight up to a pessimistic grid, for sampled releases and for groups of sampled records.

The loss of one release is put on a grid by connect-the-dots, which never understates (Doroshenko et al. 2022), and
composed by Fourier transforms with Google's dp-accounting. A cheap look at the loss comes first and says how fine the
grid has to be for the epsilon to come; no finer, so that 10^5 steps take a second. Three things are cut, each to the
safe side: the far tail of a release's loss counts as loss infinity; the far upper tail of Binomial(k, q) counts as all
k records sampled; and what float64 may lose in the transforms is taken off delta.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from uldp.privacy.events import (
    Composition,
    Event,
    Gaussian,
    Group,
    LocalReports,
    NonPrivate,
    PoissonSampled,
    Release,
    flattened,
)
from uldp.privacy.gaussian import gaussian_epsilon, unsampled_mu
from uldp.privacy.mixture import Array, Profile, mixture_of
from uldp.privacy.rdp import converted

TOLERANCE = 2e-5
"""How much larger than the truth, relatively, an epsilon may be for the sake of speed."""

MOST_POINTS = 10_000
"""For the loss of one release."""

MOST_CELLS = 500_000
"""For the loss of one release: points times different numbers of sampled records."""

MOST_COMPOSED_POINTS = 2_000_000

WIDEST_INTERVAL = 50.0
"""Beyond, the grid is no approximation of anything, and exponentials overflow."""

LARGEST_EPSILON = 1e6
"""Beyond, a quick bound says as much."""

ORDERS: Array = 1 + np.geomspace(1e-4, 1e3, 120)

Items = frozenset[tuple[Release, int]]


@dataclass(frozen=True)
class Grid:
    """Distance of the points, and the log of the tail of one release that is cut."""

    interval: float
    log_tail: float


class Pld:
    """Privacy loss distributions of Gaussians and Poisson-sampled Gaussians."""

    name = "pld"

    def accepts(self, event: Event) -> bool:
        match event:
            case Gaussian() | PoissonSampled() | Group(1, _) | Group(_, Gaussian()):
                return True
        return False

    def epsilon(self, composition: Composition, delta: float) -> float:
        return pld_epsilon(_items(composition), delta)


class MixturePld(Pld):
    """Privacy loss distributions of mixtures of Gaussians: groups of Poisson-sampled records at their exact size."""

    name = "mixture-pld"

    def accepts(self, event: Event) -> bool:
        return isinstance(event, Release)


def pld_epsilon(items: Items, delta: float) -> float:
    """The smallest of what is proven: by the distributions, by Renyi divergences, without sampling.

    The second and third are a few percent larger as a rule. They count where the distributions say nothing: for a delta
    near what float64 can resolve, or losses so large that the grid would be hopeless.
    """
    known = _quick_epsilon(items, delta) if items else 0.0
    if known == 0:
        return 0.0
    grid = _grid(frozenset((event, _next_power_of_two(count)) for event, count in items), delta)
    return known if grid is None else _composed_epsilon(items, delta, grid, known)


def quick_epsilon(composition: Composition, delta: float) -> float:
    """A bound in milliseconds, never below the accountant's: without sampling, or by Renyi divergences.

    Local reports add up. Beside noised sums they take half of delta, as the accountant has it.
    """
    events = flattened(composition)
    if any(isinstance(event, NonPrivate) for event in events):
        return math.inf
    reports = {event: count for event, count in events.items() if isinstance(event, LocalReports)}
    local = sum(event.epsilon * event.count * count for event, count in reports.items())
    items = frozenset((event, count) for event, count in events.items() if isinstance(event, Release))
    return local + (_quick_epsilon(items, delta / 2 if reports else delta) if items else 0.0)


def _quick_epsilon(items: Items, delta: float) -> float:
    return min(gaussian_epsilon(unsampled_mu(dict(items)), delta), renyi_epsilon(items, delta))


def renyi_epsilon(items: Items, delta: float) -> float:
    """Epsilon by the Renyi divergences of the mixtures, the worse of both directions."""
    return max(0.0, *(float(converted(rho, ORDERS, delta).min()) for rho in renyi_curves(items)))


def renyi_curves(items: Items) -> tuple[Array, Array]:
    """Renyi divergences of everything in ``items`` at ORDERS, if a user leaves and if a user comes."""
    left, came = np.zeros_like(ORDERS), np.zeros_like(ORDERS)
    for event, count in items:
        left_once, came_once = _renyi(event)
        left, came = left + count * left_once, came + count * came_once
    return left, came


@functools.lru_cache(maxsize=256)
def _renyi(event: Release) -> tuple[Array, Array]:
    return mixture_of(event).renyi(ORDERS)


@functools.lru_cache(maxsize=256)
def _grid(items: Items, delta: float) -> Grid | None:
    """The grid for ``items``; None if there is no sensible one.

    Connect-the-dots adds h^2/12 to the mean and h^2/6 to the variance of every release's loss, at most. With z standard
    deviations between mean and epsilon that is an error of T h^2/12 (1 + z / deviation).
    """
    releases = sum(count for _, count in items)
    log_tail = max(-80.0, math.log(delta) - math.log(releases) - 14)
    mean = variance = narrowest = 0.0
    for event, count in items:
        mixture = mixture_of(event).cut(log_tail - 10)
        spread = mixture.spread(log_tail)
        if spread is None:
            return None
        mean, variance = mean + count * spread.mean, variance + count * spread.variance
        narrowest = max(narrowest, spread.width / min(MOST_POINTS, MOST_CELLS / len(mixture.lengths)))
    deviation = math.sqrt(variance)
    z = math.sqrt(-2 * math.log(delta))
    expected = max(min(renyi_epsilon(items, delta), mean + z * deviation), deviation / 10, 1e-6)
    interval = math.sqrt(12 * TOLERANCE * expected / (releases * (1 + z / deviation)))
    interval = max(interval, narrowest, 24 * deviation / MOST_COMPOSED_POINTS)
    hopeless = interval > WIDEST_INTERVAL or expected > LARGEST_EPSILON
    return None if hopeless else Grid(interval, log_tail)


def _composed_epsilon(items: Items, delta: float, grid: Grid, known: float) -> float:
    total: Any = None
    lost = 1e-15
    for event, count in sorted(items, key=repr):
        single, off = _single(event, grid)
        # The transforms err by an absolute amount, the probabilities of one release by a share of each.
        lost += count * (2e-16 + 10 * delta * off)
        if lost > delta / 10:
            return known
        composed = _repeated(single, count)
        total = composed if total is None else total.compose(composed)
    delta -= lost
    with np.errstate(all="ignore"):
        epsilon = float(total.get_epsilon_for_delta(delta))
    if epsilon < 600:
        return min(epsilon, known)
    # Near exp(700) the library stops being tight, or finite; its delta(epsilon) is good everywhere.
    low, high = 0.0, known
    while high - low > 1e-6 * high:
        middle = (low + high) / 2
        if total.get_delta_for_epsilon(middle) > delta:
            low = middle
        else:
            high = middle
    return high


def _repeated(pld: Any, times: int, at_once: int = 1 << 17) -> Any:
    """``times`` fold composition. Too many at once and the library reserves far too wide a range."""
    if times <= at_once:
        return pld if times == 1 else pld.self_compose(times)
    blocks, rest = divmod(times, 1 << 14)
    composed = _repeated(pld.self_compose(1 << 14), blocks)
    return composed.compose(_repeated(pld, rest)) if rest else composed


@functools.lru_cache(maxsize=256)
def _single(event: Release, grid: Grid) -> tuple[Any, float]:
    """The distribution of one release, in both directions, and by how much its probabilities missed 1."""
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution

    mixture = mixture_of(event).cut(grid.log_tail - 10)
    spread = mixture.spread(grid.log_tail)
    assert spread is not None
    off, pmfs, infinities = 0.0, [], []
    for profile_of, losses in ((mixture.profile_if_left, spread.left), (mixture.profile_if_came, spread.came)):
        probabilities, infinity, lowest = _connected(profile_of, losses, grid.interval)
        total = float(probabilities.sum()) + infinity
        off = max(off, abs(total - 1))
        pmfs.append(dict(enumerate((probabilities / total).tolist(), start=lowest)))
        infinities.append(infinity)
    pld = PrivacyLossDistribution.create_from_rounded_probability(
        pmfs[0],
        infinities[0],
        grid.interval,
        rounded_probability_mass_function_add=pmfs[1],
        infinity_mass_add=infinities[1],
        symmetric=False,
    )
    return pld, off


def _connected(
    profile_of: Callable[[Array], Profile], losses: tuple[float, float], interval: float
) -> tuple[Array, float, int]:
    """Connect-the-dots: probabilities of multiples of ``interval``, that of infinity, and the first of the multiples.

    delta(epsilon) is replaced by chords in exp(epsilon), so a point has as much as the chords bend there. Adding a
    constant or a multiple of exp(epsilon) bends nothing: each point takes the form of delta that has most digits there.
    """
    lowest, highest = math.floor(losses[0] / interval), math.ceil(losses[1] / interval) + 1
    epsilons: Array = np.arange(lowest, highest + 1, dtype=np.float64) * interval
    with np.errstate(over="ignore", invalid="ignore"):
        profile = profile_of(epsilons)
        forms = np.stack([profile.gained, -profile.missed, profile.beyond])
        rise = np.diff(forms, axis=1)
        bends = (rise[:, 1:] - math.exp(interval) * rise[:, :-1]) / math.expm1(interval)
    inner = np.take_along_axis(bends, np.abs(forms[:, 1:-1]).argmin(axis=0)[None], axis=0)[0]
    beyond, missed, gained = profile.beyond, profile.missed, profile.gained
    if beyond[0] < missed[0]:
        first = (beyond[1] - math.exp(interval) * beyond[0]) / math.expm1(interval)
    else:
        first = missed[0] - (missed[1] - missed[0]) / math.expm1(interval)
    last = (gained[-1] - gained[-2]) / math.expm1(-interval)
    probabilities = np.maximum(np.concatenate([[first], inner, [last]]), 0.0)
    return probabilities, max(0.0, float(gained[-1])), lowest


def _items(composition: Composition) -> Items:
    """The releases of a composition that holds nothing else."""
    items = []
    for event, count in flattened(composition).items():
        if not isinstance(event, Release):  # leaving it out would understate
            raise TypeError(f"a distribution of {event} is not made here")
        items.append((event, count))
    return frozenset(items)


def _next_power_of_two(count: int) -> int:
    return 1 << (count - 1).bit_length()
