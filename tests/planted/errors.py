"""Errors that break a guarantee, as patches of one line. Each must be caught by the audit or by a test.

``make planted`` applies them one after the other to a copy of the package and prints who caught each.
"""

from __future__ import annotations

from dataclasses import dataclass

SAMPLED = ("--set", "method.sample_rate=0.5", "--rounds", "20")
LIMITED = ("--set", "method.sample_rate=0.5", "--set", "method.max_participations=2", "--rounds", "6")
DP_SGD = ("--set", "method.local_steps=5", "--set", "method.record_rate=0.2", "--rounds", "2")


@dataclass(frozen=True)
class Planted:
    """A patch: ``old`` stands once in ``file``, below the package; ``new`` takes its place.

    ``method`` and ``options`` are what is audited; ``test`` is what is run instead, where an audit cannot see it.
    """

    name: str
    file: str
    old: str
    new: str
    method: str = "uldp-avg"
    options: tuple[str, ...] = ()
    test: str = ""


_SUMS = "privacy/releases/sums.py"
_DRAWN = "return total + sample_discrete_gaussian(scale, len(total), stream)"
_HALF = "return total + sample_discrete_gaussian(scale / 2, len(total), stream)"
_STEP = "sample_gaussian(self.noise_multiplier * self.clip, len(x), noise)"
_HALF_STEP = "sample_gaussian(self.noise_multiplier * self.clip / 2, len(x), noise)"
_DP_SGD = "privacy/releases/noised_model.py"

ERRORS = (
    Planted(
        "weights that sum to 1.2",
        "privacy/releases/weights.py",
        "np.full(users, _STEPS // silos / _STEPS)",
        "np.full(users, 1.2 * (_STEPS // silos) / _STEPS)",
    ),
    Planted("no clipping", "vectors.py", "where=norms > limit)", "where=norms > 1e300)"),
    Planted(
        "shares divided by |S| instead of its root",
        "aggregation/base.py",
        "total, scale = self._sum.total, self._release.silo_noise_std\n",
        "total, scale = self._sum.total, self._release.silo_noise_std / self._release.facts.silos**0.5\n",
    ),
    Planted(
        "a silo without noise",
        "aggregation/base.py",
        "return ModularSumAccumulator(self._context.release, weights,",
        "quiet = replace(self._context.release, noise_multiplier=0.0)  # type: ignore[call-arg]\n"
        "        own = quiet if self._index == 0 else self._context.release\n"
        "        return ModularSumAccumulator(own, weights,",
    ),
    Planted(
        "samples of a fixed size",
        "sessions/sampling.py",
        "return words < np.uint64(min(math.floor(self._release.user_sampling.rate * 2.0**64), 2**64 - 1))",
        "return np.argsort(np.argsort(words)) < int(self._release.user_sampling.rate * len(words))",
        options=SAMPLED,
    ),
    Planted(
        "a participation limit that is ignored",
        "sessions/sampling.py",
        "sample &= taken < limit",
        "sample &= taken < limit + 1",
        options=LIMITED,
    ),
    Planted(
        "noise drawn once",
        _SUMS,
        _DRAWN,
        "return total + sample_discrete_gaussian(scale, len(total), type(stream)(bytes(32), simulated=True))",
    ),
    Planted(
        "masks used in every round",
        "aggregation/key_agreement.py",
        "key.stream(*self._pair_purpose(other, purpose), *further)",
        "key.stream(*self._pair_purpose(other, purpose))",
    ),
    Planted("half of the noise, uldp-avg", _SUMS, _DRAWN, _HALF),
    Planted("half of the noise, uldp-sgd-w", _SUMS, _DRAWN, _HALF, "uldp-sgd-w"),
    Planted("half of the noise, uldp-naive", _SUMS, _DRAWN, _HALF, "uldp-naive"),
    Planted("half of the noise, central-sub-dp", _SUMS, _DRAWN, _HALF, "central-sub-dp"),
    Planted("half of the noise, uldp-group-8", _DP_SGD, _STEP, _HALF_STEP, "uldp-group-8", DP_SGD),
    Planted("half of the noise, record-dp", _DP_SGD, _STEP, _HALF_STEP, "record-dp", DP_SGD),
    Planted("half of the noise, local-sub-dp", _DP_SGD, _STEP, _HALF_STEP, "local-sub-dp", DP_SGD),
    Planted(
        "NAIVE's claimed sensitivity",
        "privacy/releases/clipped_silo.py",
        "sampled_gaussian(multiplier / (2 * silos_heard))",
        "sampled_gaussian(multiplier / silos_heard)",
        "uldp-naive",
    ),
    Planted(
        "loss distributions rounded down",
        "privacy/pld.py",
        "return Discrete(indices, ",
        "return Discrete(indices - 1, ",
        test="tests/privacy_accounting/test_independent.py",
    ),
    Planted(
        "a ledger that is not charged",
        "privacy/ledger.py",
        "self._entries[entry.round, entry.content] = entry\n",
        "pass\n",
        test="tests/core/test_privacy.py",
    ),
    Planted(
        "Algorithm 4 as printed: the sampled users are left out",
        "sessions/silo.py",
        "data.take(sample[data.users])",
        "data.take(~sample[data.users])",
        options=("--set", "method.sample_rate=0.3", "--rounds", "10"),
    ),
    Planted(
        "the dithers left out",
        "aggregation/paillier_silo.py",
        "dithers = uniform_below(secrets.stream(), multiple, len(noise))",
        "dithers = [0] * len(noise)",
        test="tests/protocol/test_attacks.py::test_ours_the_residue_is_a_coin",
    ),
    Planted(
        "the re-randomisation left out",
        "aggregation/paillier_silo.py",
        "return [self.public.add(value, residue) for value, residue in zip(ciphertexts, residues, strict=True)]",
        "return ciphertexts",
        test="tests/protocol/test_attacks.py::test_ours_the_root_is_a_coin",
    ),
)
