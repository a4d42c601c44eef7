"""Direct checks: what must hold of noise, shifts, samples and masks, whatever a lower bound on epsilon can see.

Each gives a p-value (the probability of what was seen, or of something further away, if all is as claimed), or 0 or 1
where nothing is left to chance. A check fails below its level.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Final

import numpy as np
import numpy.typing as npt

from uldp.audits.canaries import SILENT, Mask
from uldp.audits.dispersion import dispersion_p_value
from uldp.audits.observe import Array, Seen
from uldp.audits.views import Twins, largest_shift, noise_of
from uldp.privacy.releases import Adversary, NoisedModel, Release
from uldp.vectors import Residues

FAR_OUT: Final = 3.0
"""In deviations: how much of the noise lies beyond shows whether it is Gaussian there."""
_MASK_BITS: Final = 4  # of a masked sum: few enough for hundreds of numbers, and a small sum has all of them alike
_EXACT: Final = 1e-9  # of a comparison of floats that are the same number by two ways


@dataclass(frozen=True)
class Check:
    """A direct check.

    Args:
        name: What was checked.
        p_value: 0 or 1 where nothing is left to chance.
        found: What was seen, in words.
        level: Below this p-value the check fails.
    """

    name: str
    p_value: float
    found: str
    level: float = 1e-5

    @property
    def failed(self) -> bool:
        return self.p_value < self.level


def smallest(p_values: Sequence[float]) -> float:
    """The p-value of several tests together (Bonferroni)."""
    return min(1.0, min(p_values, default=1.0) * max(1, len(p_values)))


def claimed_variance(release: Release) -> float:
    """The variance of the noise of a total, per coordinate, in the units of the model."""
    if isinstance(release, NoisedModel):
        step = release.lr / release.batch_size * release.noise_multiplier * release.clip
        return release.silo_sampling.per_round(release.facts.silos) * release.everywhere()[0] * step**2
    return release.noise_variance(release.facts.silos)


def noise_checks(runs: Sequence[Seen], twins: Twins, release: Release) -> list[Check]:
    """The noise of the totals: its variance in every round, its shape, and that no two of its draws are alike."""
    noise = [one[0] for seen in runs if (one := noise_of(seen, twins, Adversary(), release)) is not None]
    claimed = claimed_variance(release)
    return [
        _variance(noise, claimed),
        gaussian_check(noise, claimed),
        _independent("over rounds", [(one[a], one[b]) for one in noise for a, b in combinations(range(len(one)), 2)]),
        _independent("over coordinates", [(one[:, 1:].ravel(), one[:, :-1].ravel()) for one in noise]),
        _independent("over repetitions", [(a[:, -SILENT:].ravel(), b[:, -SILENT:].ravel()) for a, b in _pairs(noise)]),
        *_silo_checks(runs, release),
    ]


def _pairs(noise: Sequence[Array]) -> list[tuple[Array, Array]]:
    return list(combinations(noise, 2))


def _silo_checks(runs: Sequence[Seen], release: Release) -> list[Check]:
    """Every silo adds its share, and none of them another silo's."""
    sums = [seen.silo_sums[:, :, -SILENT:] for seen in runs if seen.silo_sums is not None]
    if not sums or len(sums[0]) < 2:
        return []
    pairs = [(one[a].ravel(), one[b].ravel()) for one in sums for a, b in combinations(range(len(one)), 2)]
    checks = [_independent("over silos", pairs)]
    if release.silo_sampling.all_silos:
        share = claimed_variance(release) / release.facts.silos
        p_values = [_chi_square(np.concatenate([one[s].ravel() for one in sums]), share) for s in range(len(sums[0]))]
        deviations = [
            math.sqrt(np.mean([np.square(one[s]).mean() for one in sums]) / share) for s in range(len(sums[0]))
        ]
        found = f"{min(deviations):.3f} to {max(deviations):.3f} of the claimed deviation, by silo"
        checks.append(Check("noise of every silo's share", smallest(p_values), found))
    return checks


def _chi_square(values: Array, variance: float) -> float:
    """Two-sided: the sum of squares of Gaussians of this variance."""
    from scipy.stats import chi2

    if variance == 0:
        return float(not values.any())
    total = float(np.square(values).sum()) / variance
    return float(min(1.0, 2 * min(chi2.sf(total, values.size), chi2.cdf(total, values.size))))


def _variance(noise: Sequence[Array], claimed: float) -> Check:
    by_round = [_chi_square(round_, claimed) for one in noise for round_ in one]
    together = _chi_square(np.concatenate([one.ravel() for one in noise]), claimed)
    measured = math.sqrt(float(np.mean([np.square(one).mean() for one in noise])))
    numbers = sum(one.size for one in noise)
    found = f"{measured / math.sqrt(claimed):.4f} of the claimed deviation, from {numbers:,} numbers"
    return Check("variance of the total, round by round", smallest([smallest(by_round), together]), found)


def gaussian_check(noise: Sequence[Array], claimed: float) -> Check:
    """Distance from the normal distribution, and how much lies far out. Both take the deviation from the noise itself.

    Of n Gaussians, n z^2 / (z_1^2 + ... + z_n^2) is n times a beta variable. That one of them is large leaves less for
    the others, so their number beyond a limit deviates less than a binomial one. (Excess kurtosis as a normal variable
    alarms a hundred times too often where the noise of one short run is all that there is.)
    """
    from scipy.stats import beta, binomtest, kstest

    values = np.concatenate([one.ravel() for one in noise]) / math.sqrt(claimed)
    standard = values / math.sqrt(np.mean(values**2))
    far = int((np.abs(standard) > FAR_OUT).sum())
    expected = float(beta.sf(FAR_OUT**2 / len(values), 0.5, (len(values) - 1) / 2))
    return Check(
        "shape of the noise",
        smallest([float(kstest(standard, "norm").pvalue), float(binomtest(far, len(values), expected).pvalue)]),
        f"{far / len(values):.2%} beyond {FAR_OUT:g} deviations, of a Gaussian {expected:.2%}".replace("%", " %"),
    )


def _independent(what: str, pairs: Sequence[tuple[Array, Array]]) -> Check:
    """Correlations, of which none should differ from 0."""
    from scipy.stats import norm

    p_values, largest = [], 0.0
    for one, other in pairs:
        scale = math.sqrt(float(np.square(one).sum() * np.square(other).sum()))
        correlation = float((one * other).sum()) / scale if scale else 0.0
        largest = max(largest, abs(correlation))
        p_values.append(float(2 * norm.sf(abs(correlation) * math.sqrt(one.size))))
    found = f"largest correlation {largest:.3f} of {len(pairs)}" if pairs else "there is only one"
    return Check(f"independence of the noise {what}", smallest(p_values), found)


# --- shifts -----------------------------------------------------------------------------------------------------------


def shift_checks(twins: Twins, release: Release, multiplier: float, *, by_user: bool) -> list[Check]:
    """How far presence moves a total, exactly; ``multiplier`` is that of the event for a user in the sample."""
    moved = largest_shift(twins.shift().totals[None], twins.margin)[0]
    allowed = math.sqrt(claimed_variance(release)) / multiplier
    largest = float(np.abs(moved).max(initial=0.0))
    found = f"at most {largest / allowed:.6f} of what the event allows, over {len(moved):,} canaries"
    right = 0 < largest <= allowed * (1 + _EXACT)  # a canary that does not come through shows nothing
    checks = [Check("shift of a canary, without noise", float(right), found)]
    if by_user and not twins.noise:
        moved_by = float(np.abs(twins.everyone.model[:1] - twins.nobody.model[:1]).max(initial=0.0))
        same = moved_by <= _dithers(release) * (1 + _EXACT)
        found = "the model's coordinates are the same with all canaries and with none" if same else "they changed"
        checks.append(Check("updates of other users, with canaries and without", float(same), found))
    return checks


def _dithers(release: Release) -> float:
    """How far dithers of an aggregation move a total, in the units of the model: less than a unit of every silo's."""
    facts, encoding = release.facts, release.encoding
    return facts.rounding * facts.silos * encoding.limit / encoding.integer_limit


# --- samples ----------------------------------------------------------------------------------------------------------


def sample_checks(taken: Mask, rate: float, limit: int) -> list[Check]:
    """(rounds, canaries): who took part, against Poisson sampling at ``rate`` and a limit on participations."""
    if limit:
        most = int(taken.sum(axis=0).max(initial=0))
        found = f"at most {most} of {limit} allowed"
        return [Check("participations of a user", float(most <= limit), found), *_poisson(taken[:1], rate)]
    return _poisson(taken, rate)


def size_checks(runs: Sequence[Seen], users: int, rate: float) -> list[Check]:
    """How many of all ``users`` were sampled in each round, where the server draws the sample.

    Of a sample whose size is fixed, the canaries' part still varies; the whole does not.
    """
    sizes = [seen.sizes for seen in runs if seen.sizes is not None]
    if not sizes:
        return []
    every = np.concatenate(sizes)
    p_value = dispersion_p_value(every, users, rate)
    found = (
        f"deviates by {every.std():.2f}, expected {math.sqrt(users * rate * (1 - rate)):.2f}, of {len(every)} rounds"
    )
    return [Check("variance of the whole sample's size", p_value, found)]


def _poisson(taken: Mask, rate: float) -> list[Check]:
    p_values = poisson_p_values(taken, rate)
    sizes = taken.sum(axis=1)
    found = f"mean size {sizes.mean():.1f}, expected {rate * taken.shape[1]:.1f}"
    return [
        Check("rate of the user sample", p_values["rate"], found),
        Check("variance of the sample's size", p_values["variance of the size"], found),
        Check("independence of the sample", smallest([p_values["pairs"], p_values["samples"]]), "by pairs, and rounds"),
    ]


def poisson_p_values(taken: npt.NDArray[np.bool_], rate: float) -> dict[str, float]:
    """P-values of (samples, units) coins that should be independent, each true with probability ``rate``.

    ``rate``: their number. ``variance of the size``: it adds up the correlations of all pairs; a fixed size is one of
    -1 / (n - 1) each. ``pairs`` and ``samples``: the largest agreement of two units, and of two samples.
    """
    from scipy.stats import binomtest

    p_values = {
        "rate": float(binomtest(int(taken.sum()), taken.size, rate).pvalue),
        "variance of the size": dispersion_p_value(taken.sum(axis=1), taken.shape[1], rate),
    }
    centred = (taken - rate) / math.sqrt(rate * (1 - rate))
    for what, matrix in (("pairs", centred), ("samples", centred.T)):
        length = len(matrix)
        agreement = np.abs(np.triu(matrix.T @ matrix / math.sqrt(length), 1)).max(initial=0.0)
        pairs = matrix.shape[1] * (matrix.shape[1] - 1) / 2
        p_values[what] = min(1.0, pairs * _agreement_tail(float(agreement), length, rate)) if pairs else 1.0
    return p_values


def _agreement_tail(agreement: float, length: int, rate: float) -> float:
    """P(|sum of n products of centred coins| > z sqrt(n)) at most, by the better one of two inequalities.

    A product has variance 1 and lies between -1 and b = max(q, 1 - q) / min(q, 1 - q). Hoeffding's is better for fair
    coins, Bernstein's for others.
    """
    largest = max(rate, 1 - rate) / min(rate, 1 - rate)
    hoeffding = 2 * (agreement / (1 + largest)) ** 2
    bernstein = agreement**2 / 2 / (1 + largest * agreement / (3 * math.sqrt(length)))
    return 2 * math.exp(-max(hoeffding, bernstein))


def batch_checks(taken: npt.NDArray[np.int64], tries: npt.NDArray[np.int64], rate: float) -> list[Check]:
    """Records that DP-SGD took: ``taken`` (rounds, canaries) of so many ``tries`` of each canary, at ``rate``."""
    from scipy.stats import binomtest

    everything = int(tries.sum()) * len(taken)
    found = f"{int(taken.sum()):,} of {everything:,} records, expected {rate * everything:,.0f}"
    return [
        Check("rate of the batches", float(binomtest(int(taken.sum()), everything, rate).pvalue), found),
        Check("variance of the batches", dispersion_p_value(taken, tries, rate), found),
    ]


# --- masks ------------------------------------------------------------------------------------------------------------


def mask_checks(runs: Sequence[Seen]) -> list[Check]:
    """What each silo sends under masks is uniform, and so is the difference of two rounds: no mask is used twice."""
    sent = [seen.sent for seen in runs if seen.sent is not None]
    if not sent:
        return []
    # Silo by silo: what silos send adds up to a small total, so of two silos one sends the mirror image of the other.
    single = [silo.ravel() for one in sent for silo in one]
    between = [np.diff(silo, axis=0).ravel() for one in sent if one.shape[1] > 1 for silo in one]
    by = f"by their first {_MASK_BITS} bits, silo by silo"
    return [
        Check("masked sums are uniform", smallest([_uniform(one) for one in single]), by),
        Check("no mask is used in two rounds", smallest([_uniform(one) for one in between]), f"differences, {by}"),
    ]


def _uniform(values: Residues) -> float:
    from scipy.stats import chisquare

    counts = np.bincount((values >> np.uint64(64 - _MASK_BITS)).astype(np.int64), minlength=1 << _MASK_BITS)
    return float(chisquare(counts).pvalue)
