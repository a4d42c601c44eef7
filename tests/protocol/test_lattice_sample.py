"""The hidden sample of ``lattice``: who together learns it, and what totals tell about it."""

import math

import numpy as np
import pytest
from tests.guarantees.adversary import OwnCoordinates, federation_of
from tests.protocol.lattice_knowledge import ServerKnowledge, SiloKnowledge
from tests.protocol.test_lattice_attacks import centred, drive_one, until
from tests.support import build, decode, make_sessions

from uldp.aggregation.lattice_lookup import SlotRule
from uldp.aggregation.lattice_messages import SlotRequest
from uldp.crypto.ring import MODULUS
from uldp.errors import MessageRefused
from uldp.privacy.gaussian import gaussian_delta
from uldp.rng import Secrets
from uldp.sessions.server import Stage

USERS = 40
PRIVATE = {"sample_rate": 0.5, "sampling": "private"}


def federation(silos=3, **settings):
    """Everybody has a record in every silo, and pulls a coordinate of their own."""
    method = build("uldp-avg-w", **{"rounds": 10, "noise_multiplier": 1.0, **PRIVATE, **settings})
    counts = np.ones((silos, USERS), dtype=int)
    learner, secrets = OwnCoordinates(USERS, pulling=USERS), Secrets.from_key(b"s" * 32)
    return make_sessions(method, federation_of(counts), learner=learner, aggregation="lattice", secrets=secrets)


def true_sample(server, silos, round_):
    """b(i, j), from what the server and all dealers drew."""
    side = server.side
    rule, roles = SlotRule.of(server.plan.release.user_sampling), silos["silo-0"].side.scheme.roles
    sample = np.zeros(USERS, dtype=bool)
    for index, silo in enumerate(silos.values()):
        users = roles.dealt_by(index)
        drawn = np.array(SiloKnowledge(silo.side).drawn_slots(round_))
        sample[users] = rule.sampled(side.transfer.drawn[users], drawn)
    return sample


@pytest.fixture(scope="module")
def prepared():
    """Before the updates of the first round; and all that was sent."""
    server, silos = federation()
    sent = until(server, silos)
    return server, silos, sent


# --- coalitions -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("silo", ["silo-0", "silo-1", "silo-2"])
def test_the_server_and_any_silo_learn_the_sample_as_documented(prepared, silo):
    server, silos, _ = prepared
    request = decode(server.requests()[silo], experiment="d" * 64, silo=silo, limit=10**9)
    mine = centred(ServerKnowledge(server.side).encrypted_numbers)
    theirs = centred(SiloKnowledge(silos[silo].side).added(1, request.weights))
    truth = true_sample(server, silos, 1)
    together = np.array([(one + other) % MODULUS for one, other in zip(mine, theirs, strict=True)])
    assert 0 < truth.sum() < USERS
    assert ((together != 0) == truth).all()
    # Each of the two shares alone is spread over all of Z_q, whether a user is sampled or not.
    for share in (mine, theirs):
        assert np.median(np.abs(share.astype(float))) > MODULUS / 16


@pytest.mark.parametrize(("dealer", "other"), [(0, 1), (1, 2), (2, 0), (0, 2), (1, 0), (2, 1)])
def test_a_dealer_and_its_keeper_learn_the_sample_of_their_users_and_no_other_pair_does(dealer, other):
    server, silos = federation()
    sent = until_updates(server, silos)
    dealing, keeper = (SiloKnowledge(silos[f"silo-{index}"].side) for index in (dealer, other))
    roles, rule = dealing.side.scheme.roles, dealing.side.scheme.rule
    if roles.keeper(dealer) != other:
        with pytest.raises(MessageRefused):  # what the right keeper got does not open with this silo's keys
            keeper.open_slots(sent[f"silo-{roles.keeper(dealer)}"].indices, 1, dealer)
        return
    asked = np.frombuffer(keeper.open_slots(sent[f"silo-{other}"].indices, 1, dealer), "<u4").astype(int)
    drawn_by_server = (asked - dealing.dealt_rotations(1)) % rule.count
    found = rule.sampled(drawn_by_server, np.array(dealing.drawn_slots(1)))
    assert (found == true_sample(server, silos, 1)[roles.dealt_by(dealer)]).all()


def until_updates(server, silos):
    """The server's requests for entries of a first round."""
    found = {}
    while server.stage is not Stage.ROUND:
        requests = server.requests()
        for name, request in requests.items():
            body = decode(request, experiment="d" * 64, silo=name, limit=10**9)
            if isinstance(body, SlotRequest):
                found[name] = body
            server.receive(name, silos[name].reply(request))
        server.collect()
        server.requests()
    return found


# --- what totals tell (test 8) ----------------------------------------------------------------------------------------


def guesses(sigma, rounds=10):
    """For every user and round: how far the total moved along the user's coordinate, in clips, and the sample."""
    server, silos = federation(silos=2, noise_multiplier=sigma, rounds=rounds)
    moved, truth = [], []
    for round_ in range(1, rounds + 1):
        until(server, silos)
        truth.append(true_sample(server, silos, round_))
        before = server.model
        drive_one(server, silos)
        facts, release = server.plan.facts, server.plan.release
        scale = USERS * facts.silos * release.user_sampling.rate / release.clip
        moved.append((server.model - before) * scale)
    return np.concatenate(moved), np.concatenate(truth)


def test_totals_tell_the_sample_no_better_than_the_noise_allows():
    """Whoever knows all rows tells who was sampled as well as a clip is seen in the noise: by delta at epsilon 0.

    With next to no noise the same guess is always right: what the ciphertexts of unsampled users add is far below.
    """
    sigma = 1.0
    moved, truth = guesses(sigma)
    assert moved[truth].mean() - moved[~truth].mean() == pytest.approx(1.0, abs=5 * sigma * 2 / math.sqrt(len(truth)))
    advantage = (moved[truth] > 0.5).mean() - (moved[~truth] > 0.5).mean()
    assert advantage <= gaussian_delta(0.0, 1 / sigma) + 4 / math.sqrt(len(truth))
    moved, truth = guesses(0.02, rounds=2)
    assert ((moved > 0.5) == truth).all()
