"""Composition of losses by Fourier transforms of *tilted* distributions, which keeps all digits of a tiny delta.

With L the loss of one release and M(t) = E exp(t L), the tilted distribution has probabilities p(l) exp(t l) / M(t). A
sum of n losses is tilted by tilting each of them, and::

    delta(epsilon) = M(t)^n  E_t[exp(-t S) (1 - exp(epsilon - S))+]

t is chosen so that S lies around epsilon under the tilted distribution: the saddle point. Then what float64 loses in
the transforms is a share of delta, however small delta is; without the tilt it is some 1e-16 per release.

Losses lie on a lattice, and a transform wraps around. What lies outside the window shows up in it somewhere else, which
can only add to delta. What lies above its end is missing there besides: it is bounded by Chernoff and added.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from uldp.privacy.bisection import bisect
from uldp.privacy.mixture import Array, Sketch

Indices = npt.NDArray[np.int64]

LATTICE_TOLERANCE, DOTS_TOLERANCE = 1e-5, 2e-7
"""How much larger, relatively, epsilon may be for the sake of speed: because of the lattice, and of the dots."""

MIN_POINTS, MAX_POINTS = 1 << 12, 1 << 21
"""Of the lattice."""

MIN_DOTS, MAX_DOTS = 4000, 20_000
"""Of one release."""

RESOLUTION = 1e-9
"""The smallest distance of two points of the lattice, relative to the largest loss of one release."""

LOG_SHARE = -14.0
"""Log of the share of delta that may go to each end of the window."""

LOG_NOTHING = -70.0
"""Log of what counts as nothing beside 1 in a transform."""

MAX_EXPONENT = 600.0
"""Far below the losses that matter, where a larger one would overflow."""

TRANSFORM_ERROR = 1e-13
"""More than what a transform of numbers that sum to 1 loses at any point (7e-16 at most, against long doubles)."""

PROFILE_ERROR = 3e-13
"""More than what one release's delta(epsilon) loses (3e-14 at most, against 50 digits), as a share of its larger term.

That term is the probability of a loss above epsilon. Its part in M(t) is t + 1 times as large as that of delta.
"""


@dataclass(frozen=True)
class Window:
    """The tilt, and the lattice on which a sum of losses is looked at: ``points`` from ``start`` on."""

    tilt: float
    upper_tilt: float
    """At which Chernoff's bound is smallest for what lies above the window."""
    interval: float
    start: int
    points: int
    dots: tuple[int, ...]
    """For each kind of release, how many points of the lattice its loss is put on."""

    @property
    def end(self) -> float:
        return (self.start + self.points - 1) * self.interval


@dataclass(frozen=True, eq=False)
class Discrete:
    """The loss of one release on the lattice: indices, probabilities, and that of infinity."""

    indices: Indices
    probabilities: Array
    infinity: float


def window_of(sketches: Sequence[tuple[Sketch, int]], delta: float, most_dots: Sequence[int]) -> Window:
    """Where the sum of all losses has to be looked at for the epsilon at ``delta``, and how finely.

    Connect-the-dots with distances h adds up to E_t[h^2] t (t + 1) / 12 to log M(t), hence E_t[h^2] (t + 1) / 12 per
    release to epsilon.
    """
    from scipy.fft import next_fast_len

    tilt = _saddle_point(sketches, delta)
    _, centre, deviation = _moments(sketches, tilt)
    low, end = _ends(sketches, delta, tilt)
    releases = sum(count for _, count in sketches)
    squared = 12 * max(centre, deviation / 10) / (releases * (1 + tilt))
    wanted = min(max(math.ceil((end - low) / math.sqrt(LATTICE_TOLERANCE * squared)), MIN_POINTS), MAX_POINTS)
    points = int(next_fast_len(wanted, real=True))
    # A release whose loss is a constant in float64 has no width: points that floats cannot tell apart are none.
    farthest = max(float(np.abs(sketch.losses).max()) for sketch, _ in sketches)
    interval = max((end - low) / (points - 8), RESOLUTION * farthest)
    start = math.floor(low / interval) - 2
    tilts = tilt + _steps(deviation)
    bounds = _log_moments(sketches, tilts) - tilts * (start + points - 1) * interval
    dots = [_demand(sketch, tilt).sum() ** 1.5 / math.sqrt(DOTS_TOLERANCE * squared) for sketch, _ in sketches]
    return Window(
        tilt=tilt,
        upper_tilt=float(tilts[int(np.argmin(bounds))]),
        interval=interval,
        start=start,
        points=points,
        dots=tuple(min(max(math.ceil(one), MIN_DOTS), most) for one, most in zip(dots, most_dots, strict=True)),
    )


def _ends(sketches: Sequence[tuple[Sketch, int]], delta: float, tilt: float) -> tuple[float, float]:
    """The lower end, and an upper one so far away that losses beyond it, and what wraps around, hardly count."""
    around, centre, deviation = _moments(sketches, tilt)
    steps = _steps(deviation)
    upper, lower = _log_moments(sketches, tilt + steps), _log_moments(sketches, tilt - steps)
    log_outside = LOG_SHARE - _log_prefactor(deviation, tilt)
    low = float(np.max((around - lower + log_outside) / steps))
    above = float(np.min((upper - math.log(delta) - LOG_SHARE) / (tilt + steps)))
    # A loss S shows up at S minus the width of the window: harmless if that is below epsilon.
    wrapped = float(np.min((upper - around - log_outside) / steps)) - (centre - low) + 2 * deviation
    highest = sum(count * float(sketch.losses[-1]) for sketch, count in sketches)
    return low, max(min(max(above, wrapped), highest), centre)


def _steps(deviation: float) -> Array:
    return np.geomspace(0.05, 50.0, 40) / deviation


def _log_prefactor(deviation: float, tilt: float) -> float:
    """log of M(t)^n exp(-t epsilon) / delta(epsilon), about, at the saddle point."""
    return math.log(max(1.0, math.sqrt(2 * math.pi) * deviation * tilt)) + math.log1p(tilt)


def _saddle_point(sketches: Sequence[tuple[Sketch, int]], delta: float) -> float:
    """The tilt at which the sum has mean epsilon, about: delta(mean) is ``delta``."""

    def below(log_tilt: float) -> bool:
        tilt = math.exp(log_tilt)
        log_moment, mean, deviation = _moments(sketches, tilt)
        return log_moment - tilt * mean - _log_prefactor(deviation, tilt) > math.log(delta)

    # Any tilt near will do, but another one would move the last digits of epsilon.
    return math.exp(bisect(below, math.log(1e-9), math.log(1e9), close=lambda low, high: high - low <= 1e-2)[0])


def _moments(sketches: Sequence[tuple[Sketch, int]], tilt: float) -> tuple[float, float, float]:
    """n log M(t), and mean and standard deviation of the sum, tilted."""
    log_moment = mean = variance = 0.0
    for sketch, count in sketches:
        log_once, shares = sketch.tilt(tilt)
        once = float(shares @ sketch.losses)
        log_moment, mean = log_moment + count * log_once, mean + count * once
        variance += count * float(shares @ (sketch.losses - once) ** 2)
    return log_moment, mean, max(math.sqrt(variance), 1e-12)


def _log_moments(sketches: Sequence[tuple[Sketch, int]], tilts: Array) -> Array:
    return np.array([sum(count * sketch.tilt(tilt)[0] for sketch, count in sketches) for tilt in tilts])


def _demand(sketch: Sketch, tilt: float) -> Array:
    """How many dots belong where, in proportion: the cube root of the density times the distance of neighbours.

    The cube of their sum over D^2 is then E[h^2], the smallest that D dots can have.
    """
    return np.asarray(sketch.tilt(tilt)[1] ** (1 / 3) * np.gradient(sketch.losses) ** (2 / 3))


def dots_of(sketch: Sketch, window: Window, count: int) -> Indices:
    """Up to ``count`` points of the lattice, dense where the tilted loss is."""
    demand = _demand(sketch, window.tilt)
    demand += demand.mean()  # rare large losses count, too, above all in few releases
    placed = np.concatenate([[0.0], np.cumsum((demand[1:] + demand[:-1]) / 2)])
    losses = np.interp(np.linspace(0, placed[-1], count), placed, sketch.losses)
    inner = np.round(losses / window.interval).astype(np.int64)
    ends = [math.floor(losses[0] / window.interval), math.ceil(losses[-1] / window.interval) + 1]
    return np.unique(np.concatenate([inner, ends]))


def composed_epsilon(releases: Sequence[tuple[Discrete, int]], window: Window, delta: float) -> float:
    """The smallest epsilon with delta(epsilon) at most ``delta``; infinity if the lattice cannot show one."""
    tilted = [(_tilt(release, window, window.tilt), count) for release, count in releases]
    log_moment = sum(count * once for (once, _), count in tilted)
    log_upper = sum(count * _tilt(release, window, window.upper_tilt)[0] for release, count in releases)
    infinite = sum(count * release.infinity for release, count in releases)
    shares = [(release.indices, one, count) for (release, _), ((_, one), count) in zip(releases, tilted, strict=True)]
    losses: Array = np.arange(window.start, window.start + window.points, dtype=np.float64) * window.interval
    # Everything from here on is a share of delta.
    exponents = log_moment - window.tilt * losses - math.log(delta)
    weights = _convolve(shares, window) * np.exp(np.minimum(exponents, MAX_EXPONENT))
    highest = window.interval * sum(count * int(release.indices[-1]) for release, count in releases)
    log_above = log_upper - window.upper_tilt * window.end - math.log(delta)
    above = math.exp(min(log_above, MAX_EXPONENT)) if highest > window.end else 0.0
    rounding = sum(count for _, count in releases) * PROFILE_ERROR * (1 + window.tilt) + window.points * 1e-15
    return _crossing(losses, weights, (1 - above - infinite / delta) / (1 + rounding))


def _tilt(release: Discrete, window: Window, tilt: float) -> tuple[float, Array]:
    with np.errstate(divide="ignore"):
        sketch = Sketch(release.indices.astype(np.float64) * window.interval, np.log(release.probabilities))
    return sketch.tilt(tilt)


def _convolve(releases: Sequence[tuple[Indices, Array, int]], window: Window) -> Array:
    """Probabilities of the sum of all losses on the window, each with what float64 may have lost added.

    With a transform a that is off by e, a^n is off by n e (|a| + e)^(n - 1) at most, and the probabilities by no more
    than the mean of that.
    """
    from scipy.fft import irfft, rfft

    shift, transforms = 0, []
    log_bound = np.zeros(window.points // 2 + 1)
    for indices, shares, count in releases:
        middle = round(float(shares @ indices))  # small angles lose fewer digits
        shift += count * middle
        folded = np.bincount((indices - middle) % window.points, weights=shares, minlength=window.points)
        transforms.append((np.asarray(rfft(folded)), count))
        log_bound += count * np.log(np.abs(transforms[-1][0]) + TRANSFORM_ERROR)
    large = log_bound > LOG_NOTHING
    log_power = np.zeros(int(large.sum()), dtype=np.complex128)
    sensitivity = np.ones(len(log_power))  # of the transform back
    with np.errstate(divide="ignore"):
        for transform, count in transforms:
            log_power += count * np.log(transform[large])
            sensitivity += count / (np.abs(transform[large]) + TRANSFORM_ERROR)
    power = np.zeros(len(log_bound), dtype=np.complex128)
    power[large] = np.exp(log_power)
    lost = float(np.exp(log_bound[large]) @ sensitivity) * 2 * TRANSFORM_ERROR / window.points + math.exp(LOG_NOTHING)
    probabilities = np.roll(irfft(power, n=window.points), (shift - window.start) % window.points)
    return np.asarray(np.maximum(probabilities, 0.0) + lost)


def _crossing(losses: Array, weights: Array, target: float) -> float:
    """The smallest epsilon at which ``weights`` of equidistant ``losses`` have a delta of at most ``target``.

    With G(k) the sum of w(i) exp(l(k) - l(i)) over i > k, delta(l(k)) grows by (exp(h) - 1) G(k) from l(k + 1) to l(k):
    sums of positive numbers only.
    """
    from scipy.signal import lfilter

    if target <= 0:
        return math.inf
    interval = float(losses[1] - losses[0])
    decay = math.exp(-interval)
    rises = math.expm1(interval) * lfilter([0.0, decay], [1.0, -decay], weights[::-1])
    deltas = np.cumsum(rises)[::-1]
    above = int(np.searchsorted(-deltas, -target))  # the first that is small enough
    if above == 0:
        return max(0.0, float(losses[0]))
    # Between two losses delta is a constant minus a multiple of exp(epsilon).
    share = (target - deltas[above]) / (deltas[above - 1] - deltas[above])
    return max(0.0, float(losses[above]) + math.log1p(share * math.expm1(-interval)))
