"""``max_participations``: nobody is in more rounds than the limit, in fact, and the server's epsilon rests on that."""

import numpy as np
import pytest
from tests.guarantees.adversary import PAILLIER, federation_of, took_part
from tests.support import build, drive, drive_with_restarts, make_plan, make_sessions

from uldp.privacy.accountants import account
from uldp.privacy.releases import Adversary
from uldp.privacy.statement import Background, compose

ROUNDS, USERS, LIMIT = 40, 30, 4
FEDERATION = federation_of(np.ones((3, USERS), dtype=int))


def limited(limit=LIMIT, **further):
    return build("uldp-avg", rounds=ROUNDS, sample_rate=0.5, max_participations=limit, **further)


@pytest.mark.parametrize("aggregation", ["plain", "masked", PAILLIER], ids=str)
def test_nobody_is_in_more_rounds_than_the_limit(aggregation):
    """Without it a user would be in 20 of 40 rounds on average, and in 4 at most with probability 1e-7."""
    _, taken = took_part(limited(), FEDERATION, aggregation=aggregation)
    so_far = taken.cumsum(axis=0)
    assert so_far.max() == LIMIT
    # It costs nobody a round before that: they are the users of the same draws without a limit.
    _, free = took_part(limited(0), FEDERATION, aggregation="plain")
    assert (taken == free & (free.cumsum(axis=0) <= LIMIT)).all()


def test_a_restart_forgets_nobody():
    def make():
        return make_sessions(limited(noise_multiplier=1.0), FEDERATION)

    server, silos = make()
    drive(server, silos)
    assert drive_with_restarts(make).model.tobytes() == server.model.tobytes()


def test_the_servers_epsilon_is_that_of_the_most_rounds_that_anybody_was_in():
    _, taken = took_part(limited(), FEDERATION)
    method = limited(noise_multiplier=3.0)
    server, silos = make_sessions(method, FEDERATION)
    drive(server, silos)
    plan = make_plan(method, FEDERATION)
    told = compose(plan.release, plan.disclosure, server.ledger, Background(), simulated=True)
    stated = {row.who: row.epsilon for row in told.exposures}
    most = int(taken.sum(axis=0).max())
    for who, adversary in (("the server", Adversary("server")), ("one silo", Adversary("silos"))):
        seen = plan.release.view(adversary)
        assert stated[who] == pytest.approx(account({seen: most}, server.ledger.delta).value, rel=1e-6)
        assert stated[who] < account({seen: most + 1}, server.ledger.delta).value
