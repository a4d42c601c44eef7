"""The paper's two benchmark scenarios: weighting under encryption is weighting in the clear, up to stated rounding."""

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from tests.data_sets.small_files import REAL
from tests.protocol.test_lattice import inject_noise
from tests.support import collect_round, set_model, step, with_paillier_weights

from uldp.aggregation.lattice_lookup import ERROR_BOUND, WEIGHT_BITS
from uldp.experiment.build import prepare
from uldp.experiment.config import Experiment
from uldp.experiment.presets import preset
from uldp.privacy.releases.sums import IntegerSum
from uldp.rng import Secrets
from uldp.sessions.server import ServerSession
from uldp.sessions.silo import SiloSession, signing_key

LIMITS = {"name": "paillier", "key_bits": 640, "max_records": 60}
pytestmark = pytest.mark.skipif(REAL is None, reason="the real files are not here")


def prepared(dataset, users, aggregation, rounds):
    tree = preset(dataset, "uldp-avg-w", "paper")
    tree["data"] |= {"users": users, "allocation": "zipf", "data_dir": str(REAL)}
    tree["method"] |= {"rounds": rounds}
    tree["aggregation"] = LIMITS if aggregation == "paillier" else {"name": aggregation}
    return prepare(Experiment.from_tree(tree))


def weighted_alike(clear, private):
    """``clear`` with the weights that ``private`` applies under encryption."""
    method = with_paillier_weights(clear.plan.method, private.plan.aggregation)
    return replace(clear, plan=replace(clear.plan, method=method, release=method.release(clear.plan.facts)))


def sessions(ready):
    secrets = Secrets.simulated_from_seed(0)
    keys = [signing_key(secrets, index) for index in range(len(ready.plan.silos))]
    plan = replace(ready.plan, identities=tuple(key.public for key in keys))
    server = ServerSession(plan, ready.learner.initial(ready.streams.child("model")), ready.ledger(), secrets)
    silos = {silo.name: SiloSession(plan, silo, ready.learner, ready.streams, secrets) for silo in ready.federation}
    return server, silos


def exact_sum(ready, server):
    """sum_s sum_u w_su clip(delta_su) in units, as fractions of the float64 rows."""
    release, facts = ready.plan.release, ready.plan.facts
    encoding = release.encoding
    counts = np.minimum(ready.federation.counts(), LIMITS["max_records"] // facts.silos)
    totals, unit = counts.sum(axis=0), Fraction(encoding.limit) / encoding.integer_limit
    total = [Fraction(0)] * facts.dimension
    for index, silo in enumerate(ready.federation):
        streams = ready.streams.child("silo", index).child("round", server.round + 1)
        unused = Secrets.simulated_from_seed(1)
        for users, rows in release.rows(ready.plan.method, server.model, silo, ready.learner, streams, unused):
            for user, row in zip(users.tolist(), rows.tolist(), strict=True):
                weight = Fraction(16 * int(counts[index, user]), 16 * int(totals[user]) + 1) / unit
                total = [have + weight * Fraction(value) for have, value in zip(total, row, strict=True)]
    return total


def compare(dataset, users, rounds):
    private = prepared(dataset, users, "paillier", rounds)
    clear = weighted_alike(prepared(dataset, users, "plain", rounds), private)
    server, silos = sessions(private)
    plain, others = sessions(clear)
    facts = private.plan.facts
    pairs = int((private.federation.counts() > 0).sum())
    worst = 0.0
    for _ in range(rounds):
        set_model(plain, server.model)  # both from the same model: a difference is this round's alone
        mine, theirs = collect_round(server, silos), collect_round(plain, others)
        noise = [int(value) for value in theirs - _without_noise(clear, plain)]
        exact = [value + z for value, z in zip(exact_sum(private, server), noise, strict=True)]
        errors = [abs(Fraction(int(value)) - right) for value, right in zip(mine, exact, strict=True)]
        assert max(errors) <= facts.users + facts.silos
        assert max(abs(Fraction(int(v)) - right) for v, right in zip(theirs, exact, strict=True)) <= pairs
        assert np.abs(mine - theirs).max() <= facts.users + facts.silos
        worst = max(worst, float(max(errors)))
        for session in (server, plain):
            session.advance()
    assert server.round == rounds
    assert worst > 0
    scale = private.plan.method.global_lr * private.plan.method.clip / 2**24
    assert np.abs(server.model - plain.model).max() <= 2 * (facts.users + facts.silos) * scale / facts.users


def _without_noise(ready, server):
    """The silos' integer sums of this round, before noise: as ``plain`` makes them."""
    release, dimension = ready.plan.release, ready.plan.facts.dimension
    total, counts = np.zeros(dimension, dtype=np.int64), ready.federation.counts()
    user_totals = release.exchange.totals(counts)
    for index, silo in enumerate(ready.federation):
        streams = ready.streams.child("silo", index).child("round", server.round + 1)
        part = IntegerSum(release.encoding, dimension, release.weights(counts[index], user_totals[index]))
        unused = Secrets.simulated_from_seed(1)
        for users, rows in release.rows(ready.plan.method, server.model, silo, ready.learner, streams, unused):
            part.add(users, rows)
        total += part.total
    return total


@pytest.mark.parametrize("dataset", ["heart-disease", "tcga-brca"])
def test_ten_users_a_few_rounds(dataset):
    compare(dataset, 10, 3)


@pytest.mark.slow
@pytest.mark.parametrize("dataset", ["heart-disease", "tcga-brca"])
@pytest.mark.parametrize("users", [10, 100])
def test_all_rounds(dataset, users):
    compare(dataset, users, 50)


def compare_lattice(dataset, users, rounds, monkeypatch):
    """lattice and plain from the same model with the same noise, nobody capped: within the stated decoding bound."""
    pair = [prepared(dataset, users, name, rounds) for name in ("lattice", "plain")]
    federation = pair[0].federation
    assert federation.counts().max() <= 2000 // len(federation.silos)
    (server, silos), (plain, others) = (sessions(ready) for ready in pair)
    # Truncation before and after weighting, errors against a weight of 1, and rounding; in units of 2^-24 clips.
    bound = users * (2 + 2 * ERROR_BOUND * 2000 / 2.0 ** (WEIGHT_BITS - 24)) + 2
    worst = 0
    for number in range(rounds):
        set_model(plain, server.model)
        totals = []
        for session, parties in ((server, silos), (plain, others)):
            with monkeypatch.context() as patched:
                inject_noise(patched, seed=number)
                totals.append(collect_round(session, parties))
        worst = max(worst, int(np.abs(totals[0] - totals[1]).max()))
        for session in (server, plain):
            session.advance()
    assert server.round == rounds and 0 < worst <= bound


@pytest.mark.parametrize("dataset", ["heart-disease", "tcga-brca"])
def test_lattice_is_plain_up_to_the_stated_bound_in_all_rounds(dataset, monkeypatch):
    compare_lattice(dataset, 100, 50, monkeypatch)


def test_the_loop_above_is_the_sessions_own():
    """``step`` of the other tests and the loop here end in the same model."""
    ready = prepared("heart-disease", 10, "paillier", 2)
    server, silos = sessions(ready)
    other, again = sessions(ready)
    for _ in range(2):
        collect_round(server, silos)
        server.advance()
    while step(other, again):
        pass
    assert server.model.tobytes() == other.model.tobytes()
