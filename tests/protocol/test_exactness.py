"""The protocol's total is the weighted sum, up to the truncation that is documented, and one user moves it by the clip.

Expected values are exact fractions of the clipped float64 rows: no tolerance anywhere.
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.protocol.published import PlantedLearner, encoded, planted_federation, unpacked
from tests.support import (
    TinyLearner,
    build,
    collect_round,
    decode,
    make_aggregation,
    make_sessions,
    set_model,
    small_federation,
    step_until,
    with_paillier_weights,
)

from uldp.aggregation.paillier import PaillierSilo, PaillierWeighting
from uldp.crypto.integers import unpack
from uldp.crypto.paillier import signed_residue
from uldp.privacy.releases.sums import add_noise
from uldp.protocol import messages as m
from uldp.rng import Secrets
from uldp.vectors import clip_rows

CAP = 3
SMALL = PaillierWeighting(key_bits=320, slots=1)
PACKED = PaillierWeighting(key_bits=320, slots=2)


def round_total(server, silos):
    """The next round's total in units, as whole numbers; the model has not changed yet."""
    return [int(value) for value in collect_round(server, silos)]


def planted_sessions(method, counts, rows, aggregation=SMALL, seed=0):
    """A server, and silos in which everybody's row is known."""
    learner = PlantedLearner(rows)
    if isinstance(aggregation, PaillierWeighting):
        aggregation = capping(aggregation, len(counts))
    return make_sessions(
        method, planted_federation(counts, rows.shape[2]), learner=learner, aggregation=aggregation, seed=seed
    )


def first_total(method, counts, rows, aggregation=SMALL, seed=0):
    """The first round's total, and the server."""
    server, silos = planted_sessions(method, counts, rows, aggregation, seed)
    return round_total(server, silos), server


def capping(kind, silos):
    """``kind`` with at most ``CAP`` records of a user in a silo."""
    return replace(kind, max_records=CAP * silos)


def exact_weights(method, counts, kind=SMALL):
    """w_su as fractions; ``counts`` are the true ones, of which at most CAP count."""
    silos, users = counts.shape
    if method.weighting == "uniform":
        return [[Fraction(1, silos)] * users] * silos
    g, capped = kind.pseudo_count, np.minimum(counts, CAP)
    below = [g * int(total) + 1 for total in capped.sum(axis=0)]
    return [[Fraction(g * int(count), below[u]) for u, count in enumerate(each)] for each in capped]


def exact_sum(method, counts, rows, sample=None, kind=SMALL):
    """sum_u sum_s w_su clip(row_su) in units, before any truncation."""
    weights, units = exact_weights(method, counts, kind), 2**24 / Fraction(method.clip)
    total = [Fraction(0)] * rows.shape[2]
    for s, each in enumerate(rows):
        for u, row in enumerate(clip_rows(each, method.clip)):
            if counts[s, u] and (sample is None or sample[u]):
                total = [a + weights[s][u] * Fraction(b) * units for a, b in zip(total, row.tolist(), strict=True)]
    return total


def simulated_noise(release, seed, round_=1):
    """The silos' noise of a round in units, drawn as every aggregation draws it."""
    total = np.zeros(release.facts.dimension, dtype=np.int64)
    for s in range(release.facts.silos):
        secrets = Secrets.simulated_from_seed(seed).child("silo", s).child("noise", "round", round_)
        total = add_noise(total, release.silo_noise_std, secrets.stream())
    return [int(z) for z in total]


def allowed(counts) -> int:
    """Errata U16: |U| + |S| units."""
    return counts.shape[0] + counts.shape[1]


def method_of(name="uldp-avg-w", **fields):
    return build(name, **{"noise_multiplier": 0.0, "rounds": 1, **fields})


def random_rows(generator, silos, users, dimension, clip):
    """Rows of all sizes: far beyond the clip, just at it, some units, less than a unit, zero."""
    rows = generator.normal(size=(silos, users, dimension))
    rows *= clip * 10.0 ** generator.choice([-9.0, -6.0, -3.0, 0.0, 3.0], size=(silos, users, 1))
    alone = generator.random((silos, users)) < 0.2
    rows[alone] = 0.0
    rows[alone, 0] = clip
    return rows


@st.composite
def planted(draw):
    """(counts, rows, clip): users without records, counts beyond the cap, empty silos and single silos included."""
    silos, users, dimension = draw(st.integers(1, 4)), draw(st.integers(2, 6)), draw(st.integers(1, 5))
    generator = np.random.default_rng(draw(st.integers(0, 2**32)))
    counts = generator.integers(0, 2 * CAP, size=(silos, users)) * (generator.random((silos, users)) < 0.7)
    counts[:, generator.random(users) < 0.2] = 0
    counts[generator.random(silos) < 0.2] = 0
    clip = draw(st.sampled_from([1.0, 0.3, 7.5]))
    return counts, random_rows(generator, silos, users, dimension, clip), clip


def assert_close(total, expected, limit):
    errors = [abs(a - b) for a, b in zip(total, expected, strict=True)]
    assert max(errors) <= limit, [float(error) for error in errors]


@pytest.mark.parametrize("name", ["uldp-avg-w", "uldp-avg"])
@settings(max_examples=40)
@given(case=planted(), kind=st.sampled_from([SMALL, PACKED]), g=st.sampled_from([16, 3, 1]))
def test_the_total_is_the_exact_weighted_sum_up_to_the_stated_truncation(name, case, kind, g):
    counts, rows, clip = case
    method, kind = method_of(name, clip=clip), replace(kind, pseudo_count=g)
    total, _ = first_total(method, counts, rows, kind)
    assert_close(total, exact_sum(method, counts, rows, kind=kind), allowed(counts))


@settings(max_examples=15)
@given(case=planted(), seed=st.integers(0, 1000), kind=st.sampled_from([SMALL, PACKED]))
def test_with_noise_it_is_the_same_plus_the_noise_that_plain_adds(case, seed, kind):
    counts, rows, clip = case
    method = method_of(clip=clip, noise_multiplier=2.0)
    total, server = first_total(method, counts, rows, kind, seed=seed)
    noise = simulated_noise(server.plan.release, seed)
    exact = exact_sum(method, counts, rows)
    assert_close(total, [a + z for a, z in zip(exact, noise, strict=True)], allowed(counts))
    clear = with_paillier_weights(method, capping(kind, len(counts)))
    plain, _ = first_total(clear, counts, rows, aggregation="plain", seed=seed)
    # plain truncates after weighting: up to a unit for each user and silo
    assert_close(plain, [a + z for a, z in zip(exact, noise, strict=True)], int((counts > 0).sum()))


@settings(max_examples=15)
@given(case=planted(), seed=st.integers(0, 1000), kind=st.sampled_from([SMALL, PACKED]))
def test_users_outside_the_sample_contribute_nothing(case, seed, kind):
    counts, rows, clip = case
    method = method_of(clip=clip, sample_rate=0.5)
    total, server = first_total(method, counts, rows, kind, seed=seed)
    assert_close(total, exact_sum(method, counts, rows, server.sampler.users(1)), allowed(counts))


@pytest.mark.parametrize("kind", ["plain", "masked"])
def test_in_the_clear_every_record_counts(kind):
    """Eq. 3 as it is: no cap, no pseudo-count, and nothing for whoever has no records."""
    counts = np.array([[700, 1, 0], [300, 0, 0], [0, 2, 0]])
    rows = np.array([[[0.5], [0.25], [9.0]], [[-0.5], [9.0], [9.0]], [[9.0], [0.75], [9.0]]])
    total, _ = first_total(method_of(), counts, rows, aggregation=kind)
    expected = 0.7 * 0.5 - 0.3 * 0.5 + 0.25 / 3 + 2 * 0.75 / 3
    assert_close(total, [Fraction(expected * 2**24)], int((counts > 0).sum()))


EDGES = {
    "nobody has records": [[0, 0], [0, 0], [0, 0]],
    "one user has none anywhere": [[1, 0], [2, 0], [0, 0]],
    "counts far above the cap": [[100, 1], [50, 0], [4, 7]],
    "one silo": [[2, 5]],
    "an empty silo": [[0, 0], [1, 3]],
    "the first silo is empty": [[0, 0], [1, 3], [2, 0]],
}


@pytest.mark.parametrize("name", ["uldp-avg-w", "uldp-avg", "uldp-sgd"])
@pytest.mark.parametrize("edge", EDGES)
def test_the_edges(name, edge):
    counts = np.array(EDGES[edge])
    rows = np.full((*counts.shape, 1), -5.0)
    method = method_of(name)
    if name == "uldp-sgd":
        federation = planted_federation(counts, 1)
        kind = capping(SMALL, len(counts))
        server, silos = make_sessions(method, federation, learner=_Gradients(rows), aggregation=kind)
        total = round_total(server, silos)
        rows = -rows
    else:
        total, _ = first_total(method, counts, rows)
    expected = exact_sum(method, counts, rows)
    assert_close(total, expected, allowed(counts))
    assert (edge == "nobody has records") == (expected == [0])


class _Gradients(PlantedLearner):
    def user_gradients(self, x, data, streams):
        return self.user_deltas(x, data, None, streams)


@pytest.mark.parametrize("noise", [0.0, 3.0])
@pytest.mark.parametrize("rate", [1.0, 0.6])
@pytest.mark.parametrize("kind", ["paillier", "packed"])
def test_every_round_has_the_total_that_plain_has_from_the_same_model(noise, rate, kind):
    federation = small_federation(users=6, silos=3, dimension=4)
    method = build("uldp-avg-w", rounds=3, noise_multiplier=noise, sample_rate=rate)
    paillier = make_aggregation(kind, pseudo_count=4)
    server, silos = make_sessions(method, federation, aggregation=paillier, seed=5)
    clear = with_paillier_weights(method, paillier)
    twin, others = make_sessions(clear, federation, aggregation="plain", seed=5)
    pairs = int((federation.counts() > 0).sum())
    limit = allowed(federation.counts()) + pairs  # plain truncates every weighted row
    models = set()
    for _ in range(3):
        set_model(twin, server.model)  # what the earlier rounds differ by is not this round's
        total = round_total(server, silos)
        assert_close(total, round_total(twin, others), limit)
        assert twin.model.tobytes() == server.model.tobytes()
        assert any(total)
        models.add(server.model.tobytes())
        for session in (server, twin):
            session.advance()
    assert len(models) == 3


def layout_of(plan):
    """Where the coordinates lie in plaintexts."""
    return plan.aggregation.layout(plan.release, plan.rounds)


def undithered(self, ciphertexts, noise, secrets):
    """``PaillierSilo._with_noise`` without the dither."""
    public, layout = self.public, layout_of(self.context)
    plaintexts = layout.pack([layout.multiple * z for z in noise.tolist()])
    return [public.add(value, public.factor(z)) for value, z in zip(ciphertexts, plaintexts, strict=True)]


def first_plaintexts(method, counts, rows, aggregation):
    """What the server decrypts in the first round, before it is divided by C_LCM; and the server."""
    server, silos = planted_sessions(method, counts, rows, aggregation)
    step_until(m.UpdateRequest, server, silos)
    key, layout, product = server.side.key, layout_of(server.plan), None
    for name, request in server.requests().items():
        reply = silos[name].reply(request)
        server.receive(name, reply)
        body = decode(reply, experiment=server.plan.digest, silo=name, limit=server.plan.message_limit)
        factors = unpack(body.vector, key.public.width, layout.ciphertexts, "test")
        product = factors if product is None else [key.public.add(a, b) for a, b in zip(product, factors, strict=True)]
    server.collect()
    plaintexts = [signed_residue(key.decrypt(c), key.public.n) for c in product]
    return unpacked(plaintexts, layout.slots, layout.width)[: layout.dimension], server


def squared_move(before, after) -> int:
    return sum((int(a) - int(b)) ** 2 for a, b in zip(before, after, strict=True))


@pytest.mark.parametrize("name", ["uldp-avg-w", "uldp-avg"])
@settings(max_examples=20)
@given(case=planted(), user=st.integers(0, 5), aligned=st.booleans(), kind=st.sampled_from([SMALL, PACKED]))
def test_removing_a_user_moves_the_plaintext_by_at_most_the_clip(name, case, user, aligned, kind):
    counts, rows, clip = case
    user %= counts.shape[1]
    if aligned:  # the worst case: the same long row in all silos
        rows[:, user] = 9 * clip * np.sign(rows[0, user] + 1e-300)
        counts[:, user] = CAP
    removed = counts.copy()
    removed[:, user] = 0
    method = method_of(name, clip=clip)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PaillierSilo, "_with_noise", undithered)
        before, server = first_plaintexts(method, counts, rows, kind)
        after, _ = first_plaintexts(method, removed, rows, kind)
    multiple = layout_of(server.plan).multiple
    bound = server.plan.release.encoding.integer_limit * multiple
    moved = squared_move(before, after)
    assert moved <= bound**2
    if aligned:
        # ... and the bound is met up to truncation and the pseudo-count
        total = CAP * len(counts)
        share = Fraction(1) if name == "uldp-avg" else Fraction(16 * total, 16 * total + 1)
        assert moved >= (Fraction(999, 1000) * share * bound) ** 2
    # The plaintext is no more and no less than the integers of the rows, weighted.
    integers, weights = encoded(rows, clip), exact_weights(method, counts)
    for j, value in enumerate(before):
        pairs = ((s, u) for s, u in np.ndindex(counts.shape) if counts[s, u])
        assert value == sum(weights[s][u] * int(integers[s, u, j]) * multiple for s, u in pairs)


@settings(max_examples=20)
@given(case=planted(), user=st.integers(0, 5), seed=st.integers(0, 1000))
def test_with_the_same_dither_the_rounded_total_moves_by_at_most_the_clip_and_a_unit_per_coordinate(case, user, seed):
    """Errata U13: C + sqrt(d) P, which is what the accountant is told. Simulated secrets repeat the dither."""
    counts, rows, clip = case
    removed = counts.copy()
    removed[:, user % counts.shape[1]] = 0
    method = method_of(clip=clip)
    before, server = first_total(method, counts, rows, seed=seed)
    after, _ = first_total(method, removed, rows, seed=seed)
    units, dimension = server.plan.release.encoding.integer_limit, rows.shape[2]
    beyond = squared_move(before, after) - units**2 - dimension
    assert beyond <= 0 or beyond**2 <= 4 * units**2 * dimension  # norm <= units + sqrt(d), without a root


def test_the_bound_is_not_idle():
    """Truncation does cost whole units: rows just below a unit vanish, nearly one unit per user."""
    counts = np.ones((2, 6), dtype=np.int64)
    rows = np.full((2, 6, 1), 0.999 * 2.0**-24)
    method = method_of()
    total, _ = first_total(method, counts, rows)
    exact = exact_sum(method, counts, rows)
    assert abs(total[0] - exact[0]) > 4


def test_learned_rows_give_the_sum_that_support_computes():
    """A real learner's rows, not planted ones: the protocol sums what the learner yields."""
    federation, learner = small_federation(users=5, silos=2, dimension=3), TinyLearner(3)
    method = method_of()
    server, silos = make_sessions(method, federation, aggregation=capping(SMALL, 2), learner=learner)
    rows = np.zeros((2, 5, 3))
    for s, data in enumerate(federation):
        for users, deltas in learner.user_deltas(server.model, data, method.local_training, None):
            rows[s, users] = deltas
    total = round_total(server, silos)
    assert_close(total, exact_sum(method, federation.counts(), rows), allowed(federation.counts()))
