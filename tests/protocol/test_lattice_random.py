"""Random federations under ``lattice``: the total is that of the exact weights, whoever is sampled, missing or on turn.

Among them are users without records, silos without any, more silos than users, and counts beyond the cap.
"""

import numpy as np
import pytest
from tests.federation.federation_support import saved_state
from tests.guarantees.adversary import OwnCoordinates, federation_of
from tests.protocol.test_lattice import inject_noise
from tests.support import build, make_sessions

from uldp.rng import Secrets
from uldp.sessions.server import Stage

MODES = {
    "everybody": {},
    "sampled": {"sample_rate": 0.5},
    "sampled in private": {"sample_rate": 0.5, "sampling": "private"},
    "in turns": {"participation_groups": 2},
}


def sessions(generator, settings):
    """Up to seven users and five silos; of three or more, one may be missing from a round."""
    users, silos = int(generator.integers(2, 8)), int(generator.integers(2, 6))
    counts = generator.integers(0, 4, (silos, users)) * generator.integers(0, 900, (silos, users))
    counts[0, 0] += 1
    name = ("uldp-avg-w", "uldp-avg")[generator.integers(2)]
    method = build(name, rounds=3, noise_multiplier=1.0, dropout_tolerance=int(silos > 2), **settings)
    learner, secrets = OwnCoordinates(users, pulling=users), Secrets.from_key(generator.bytes(32))
    made = make_sessions(method, federation_of(counts), learner=learner, aggregation="lattice", secrets=secrets)
    return (*made, counts)


def exchange(server, silos, gone):
    """One exchange; ``gone`` is left out of it after the others have responded."""
    if gone:
        for name, request in server.requests().items():
            if name != gone:
                server.receive(name, silos[name].reply(request))
        server.exclude([gone])
    for name, request in server.requests().items():
        server.receive(name, silos[name].reply(request))
    server.collect()


def exact_weights(server, silos, counts, gone):
    """Of every user the sum of the exact weights over the silos that are there and hold records."""
    weights = server.plan.aggregation.weighting(server.plan.release).in_the_clear(counts) * (counts > 0)
    return weights[[name != gone for name in silos]].sum(axis=0)


@pytest.mark.parametrize("mode", MODES)
def test_totals_are_exact_whoever_takes_part(monkeypatch, mode):
    inject_noise(monkeypatch, scale=0.0)
    generator, rounds = np.random.default_rng(list(MODES).index(mode)), 0
    for _ in range(8):
        server, silos, counts = sessions(generator, MODES[mode])
        users, release = counts.shape[1], server.plan.release
        while server.requests():
            missing = server.plan.may_repeat and server.stage is Stage.ROUND and generator.random() < 0.5
            gone = f"silo-{generator.integers(len(silos))}" if missing else ""
            exchange(server, silos, gone)
            if server.stage is not Stage.COLLECTED:
                continue
            total = np.frombuffer(saved_state(server)["collected"], "<i8") / release.encoding.integer_limit
            weights, round_ = exact_weights(server, silos, counts, gone), server.round + 1
            turn, sample = release.participation.members(users, round_), server.sampler.users(round_)
            weights = weights if turn is None else weights * turn
            if mode == "sampled in private":  # nobody knows who was
                assert (np.minimum(np.abs(total - weights), np.abs(total)) < 1e-6).all()
            else:
                assert np.abs(total - (weights if sample is None else weights * sample)).max() < 1e-6
            server.charge()
            server.advance()
            rounds += 1
        assert all(silo.closed for silo in silos.values())
    assert rounds == 3 * 8
