"""Errors that break a guarantee, as patches of one line. Each must be caught by the audit or by a test.

``make planted`` applies them one after the other to a copy of the package and prints who caught each, with how many
seeds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

Options = Mapping[str, Any]
SAMPLED: Options = MappingProxyType({"method.sample_rate": 0.5, "method.rounds": 20})
LIMITED: Options = MappingProxyType(
    {"method.sample_rate": 0.5, "method.max_participations": 2, "method.rounds": 6},
)
DP_SGD: Options = MappingProxyType({"method.local_steps": 5, "method.record_rate": 0.2, "method.rounds": 2})


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
    options: Options = field(default_factory=dict)
    test: str = ""


_SUMS = "privacy/releases/sums.py"
_DRAWN = "return total + sample_discrete_gaussian(scale, len(total), stream)"
_HALF = "return total + sample_discrete_gaussian(scale / 2, len(total), stream)"
_STEP = "sample_gaussian(self.noise_multiplier * self.clip, len(x), noise)"
_HALF_STEP = "sample_gaussian(self.noise_multiplier * self.clip / 2, len(x), noise)"
_DP_SGD = "privacy/releases/noised_model.py"
_LOCAL = "privacy/releases/local_perturbation.py"
_PERTURBED = "mechanism.perturb(values[part], stream)"
_HALF_PERTURBED = "replace(mechanism, epsilon=2 * mechanism.epsilon).perturb(values[part], stream)"
_LATTICE = "aggregation/lattice_ring.py"
_BY_WEIGHT = {"method.epsilon_weight": 2.0}
_MASKED = {"aggregation.name": "masked"}
_UNDER_LATTICE = {"aggregation.name": "lattice", "data.users": 20, "method.rounds": 2}
_UNDER_PAILLIER = {
    "aggregation.name": "paillier",
    "aggregation.key_bits": 512,
    "aggregation.max_records": 60,
    "data.users": 20,
    "data.silos": 3,
    "method.rounds": 1,
}
_CIRCUIT = "tests/protocol/test_lattice_circuit_privacy.py::"
_SEVERAL = "tests/protocol/test_attacks.py::test_ours_with_several_coordinates_in_a_ciphertext_is_a_coin_too"

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
        "path_bytes((purpose, self._context.digest, *further))",
        "path_bytes((purpose, self._context.digest))",
    ),
    Planted("half of the noise, auto", _SUMS, _DRAWN, _HALF, "auto", _MASKED),
    Planted(
        "standardised rows with those of others",
        "methods/standardization.py",
        "            weights /= self.spread\n",
        "            weights /= self.spread\n            weights += weights.sum(axis=0)\n",
        "auto",
        _MASKED,
    ),
    Planted(
        "moments with those of others",
        "learners/moments.py",
        "yield users[some], rows / counts[some, None]",
        "yield users[some], rows / counts[some, None] + rows.mean(axis=0)",
        "auto",
        {**_MASKED, "method.rounds": 12},  # with fewer rounds none is about moments
    ),
    Planted("half of the noise, uldp-avg", _SUMS, _DRAWN, _HALF),
    Planted("half of the noise, uldp-avg-w", _SUMS, _DRAWN, _HALF, "uldp-avg-w", _MASKED),
    Planted("half of the noise, uldp-avg-adjusted", _SUMS, _DRAWN, _HALF, "uldp-avg-adjusted", _MASKED),
    Planted("half of the noise, uldp-sgd", _SUMS, _DRAWN, _HALF, "uldp-sgd"),
    Planted("half of the noise, uldp-sgd-w", _SUMS, _DRAWN, _HALF, "uldp-sgd-w", _MASKED),
    Planted("half of the noise, uldp-naive", _SUMS, _DRAWN, _HALF, "uldp-naive"),
    Planted("half of the noise, central-sub-dp", _SUMS, _DRAWN, _HALF, "central-sub-dp"),
    Planted("half of the noise, uldp-group", _DP_SGD, _STEP, _HALF_STEP, "uldp-group", DP_SGD),
    Planted("half of the noise, uldp-group-2", _DP_SGD, _STEP, _HALF_STEP, "uldp-group-2", DP_SGD),
    Planted("half of the noise, uldp-group-8", _DP_SGD, _STEP, _HALF_STEP, "uldp-group-8", DP_SGD),
    Planted("half of the noise, uldp-group-median", _DP_SGD, _STEP, _HALF_STEP, "uldp-group-median", DP_SGD),
    Planted("half of the noise, uldp-group-max", _DP_SGD, _STEP, _HALF_STEP, "uldp-group-max", DP_SGD),
    Planted("half of the noise, record-dp", _DP_SGD, _STEP, _HALF_STEP, "record-dp", DP_SGD),
    Planted("half of the noise, local-sub-dp", _DP_SGD, _STEP, _HALF_STEP, "local-sub-dp", DP_SGD),
    Planted("half of the noise, ldp-fedavg", _LOCAL, _PERTURBED, _HALF_PERTURBED, "ldp-fedavg", _BY_WEIGHT),
    Planted("half of the noise, srr-fl", _LOCAL, _PERTURBED, _HALF_PERTURBED, "srr-fl", _BY_WEIGHT),
    Planted("half of the noise, ldp-fl", _LOCAL, _PERTURBED, _HALF_PERTURBED, "ldp-fl", _BY_WEIGHT),
    Planted(
        "half of the noise, under lattice",
        _LATTICE,
        "sample_discrete_gaussian(scale * 2.0 **",
        "sample_discrete_gaussian(scale / 2 * 2.0 **",
        "uldp-avg-w",
        _UNDER_LATTICE,
    ),
    Planted(
        "half of the noise, under paillier",
        "aggregation/paillier_silo.py",
        "[multiple * z + d for z, d in",
        "[multiple * (z // 2) + d for z, d in",
        "uldp-avg-w",
        _UNDER_PAILLIER,
    ),
    Planted(
        "noise that follows the largest number of a subject's items, as published",
        _DP_SGD,
        _STEP,
        "sample_gaussian(self.noise_multiplier * self.clip * np.bincount(data.users).max() / 2, len(x), noise)",
        "local-sub-dp",
        DP_SGD,
    ),
    Planted(
        "features scaled by the data",
        "data/tables.py",
        'if schema.standardise == "silo":',
        "if True:",
        test="tests/guarantees/test_one_user_from_raw_tables.py::test_standardising_by_silo_breaks_the_promise_so_the_warning_is_real",
    ),
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
        test="tests/privacy_accounting/test_independent.py::test_two_accountants_agree[uldp-avg-w]",
    ),
    Planted(
        "a ledger that is not charged",
        "privacy/ledger.py",
        "self._entries[entry.round, entry.content] = entry\n",
        "pass\n",
        test="tests/core/test_privacy.py::test_a_replay_is_not_charged_twice_but_other_content_is",
    ),
    Planted(
        "Algorithm 4 as printed: the sampled users are left out",
        "sessions/silo.py",
        "data.take(sample[data.users])",
        "data.take(~sample[data.users])",
        options={"method.sample_rate": 0.3, "method.rounds": 10},
    ),
    Planted(
        "noise in multiples of the common multiple: the dithers left out",
        "aggregation/paillier_silo.py",
        "dithers = uniform_below(secrets.stream(), multiple, len(noise))",
        "dithers = [0] * len(noise)",
        test=_SEVERAL,
    ),
    Planted(
        "noise in multiples of 2^k alone, under lattice",
        _LATTICE,
        "return ring.from_parts(drawn, below, DITHER_BITS)",
        "return ring.from_parts(drawn, 0 * below, DITHER_BITS)",
        test=_CIRCUIT + "test_the_last_bits_are_uniform_whatever_the_rows",
    ),
    Planted(
        "lattice without encryptions of zero",
        "aggregation/lattice_silo.py",
        'v = ring.to_evaluations(ring.from_integers(ternary(zero.child("v").stream(), (blocks, N))))',
        "v = ring.to_evaluations(ring.from_integers(np.zeros((blocks, N), dtype=np.int64)))",
        test=_CIRCUIT + "test_a_guess_cannot_be_verified",
    ),
    Planted(
        "the re-randomisation left out",
        "aggregation/paillier_silo.py",
        "return [self.public.add(value, residue) for value, residue in zip(ciphertexts, residues, strict=True)]",
        "return ciphertexts",
        test=_SEVERAL,
    ),
)
