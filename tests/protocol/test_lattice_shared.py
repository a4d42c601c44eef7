"""Users who share a ciphertext of ``lattice``: what the server decrypts holds no product of two of them, exactly.

Of a round of sampled users, repeated without a silo, everything is known but the parties' machines: without noise and
encryptions of zero the phase is the sum of two parts in integers. Rows of the sample, each times its own user's weight;
and rows of all users times their ciphertext's error, moved to where the rows stand.
"""

import numpy as np
import pytest
from tests.protocol.lattice_knowledge import ServerKnowledge, SiloKnowledge
from tests.support import build, decode, make_sessions, small_federation, step_until

from uldp.aggregation import lattice_server, lattice_silo
from uldp.aggregation.lattice_lookup import ERROR_BOUND
from uldp.aggregation.lattice_ring import Body, cut, public_components
from uldp.crypto import ring
from uldp.crypto.ring import LIMBS, N
from uldp.crypto.ring_samples import operator_norms
from uldp.protocol import messages as m

USERS = 7


def read(data, silo):
    return decode(data, experiment="d" * 64, silo=silo, limit=10**9)


def integers(polynomials):
    return np.array(ring.centred(polynomials).to_integers(), dtype=object)


def silos_without_noise(monkeypatch, silos):
    """Their weighed rows, (users, d) each, when they have released them."""
    monkeypatch.setattr(lattice_silo, "ternary", lambda stream, shape: np.zeros(shape, dtype=np.int64))
    monkeypatch.setattr(lattice_silo, "errors", lambda stream, shape: np.zeros(shape, dtype=np.int64))
    monkeypatch.setattr(lattice_silo, "noise", lambda scale, count, *streams: np.zeros((LIMBS, count), dtype=np.uint64))
    found = {}
    for name, silo in silos.items():
        found[name] = np.zeros((USERS, silo.side.scheme.dimension), dtype=np.int64)

        def weigh(users, rows, weighed, kept=found[name], own=silo.side.weigh):
            left_out = own(users, rows, weighed)
            kept[users] = weighed
            return left_out

        silo.side.weigh = weigh
    return found


def errors_of(known, scheme, request):
    """e of every ciphertext of a round, (ciphertexts, N)."""
    count = scheme.ciphertexts
    c1 = public_components(known.setup, request.round, request.weights[:32], range(count))
    c0 = ring.unpack(request.weights[32 : scheme.weight_bytes], (count, LIMBS, N), "here")
    phases = ring.add(c0, ring.multiply(c1, known.secret))
    found = integers(ring.to_coefficients(ring.subtract(phases, scheme.joined(known.encrypted_numbers))))
    return found.reshape(count, N).astype(np.int64)


def product(error, row, at):
    """The first coefficients of e x^at X modulo x^N + 1, as many as X has."""
    found, places = np.zeros(len(row), dtype=np.int64), np.arange(len(row))
    for shift in np.flatnonzero(row):
        source = places - at - shift
        found += row[shift] * np.where(source < 0, -1, 1) * error[source % N]
    return found.astype(object)


@pytest.mark.parametrize("gone", ["", "silo-2"])
@pytest.mark.parametrize("sampling", ["open", "private"])
@pytest.mark.parametrize(("dimension", "at_once"), [(14, 64), (1365, 64), (1365, 2)])
def test_a_round_decrypts_to_rows_of_the_sample_and_errors_and_to_nothing_else(
    monkeypatch, dimension, at_once, sampling, gone
):
    for party in (lattice_server, lattice_silo):
        monkeypatch.setattr(party, "AT_ONCE", at_once)
    settings = {"sample_rate": 0.5, "sampling": sampling, "dropout_tolerance": 1, "noise_multiplier": 1.0}
    server, silos = make_sessions(
        build("uldp-avg-w", rounds=2, **settings),
        small_federation(users=USERS, silos=3, dimension=dimension, records=40),
        aggregation="lattice",
    )
    rows = silos_without_noise(monkeypatch, silos)
    step_until(m.UpdateRequest, server, silos)
    for name, request in server.requests().items():
        silos[name].reply(request)
    if gone:
        server.exclude([gone])
    side, known = silos["silo-0"].side, ServerKnowledge(server.side)
    scheme, total = side.scheme, Body.zero(side.scheme)
    for name, request in server.requests().items():
        asked = read(request, name)
        total.add(Body.unpack(read(silos[name].reply(request), name).vector, scheme, "here"))
    phase = ring.add(total.c0, cut(ring.to_coefficients(ring.multiply(total.c1, known.secret)), dimension))

    shares = SiloKnowledge(side).added(1, asked.weights)
    weights = integers(ring.add(known.encrypted_numbers, shares)).ravel()
    together = np.arange(USERS) // scheme.together
    sampled = weights != 0
    assert any(0 < sampled[together == one].sum() < (together == one).sum() for one in range(scheme.ciphertexts))
    errors = errors_of(known, scheme, asked)
    assert operator_norms(errors).max() <= ERROR_BOUND and errors.std() > 3
    summed = sum(part for name, part in rows.items() if name != gone)
    assert summed.any(axis=1).all()
    expected = sum(weight * row.astype(object) for weight, row in zip(weights, summed, strict=True))
    for user, row in enumerate(summed):
        expected = expected + product(errors[together[user]], row, user % scheme.together * dimension)
    assert integers(phase).tolist() == expected.tolist()
