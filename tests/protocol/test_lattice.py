"""``lattice`` gives the total of ``plain``, up to what the ciphertexts' errors may add."""

import numpy as np
import pytest
from tests.core.test_sessions import build
from tests.support import make_sessions, small_federation

from uldp.aggregation import lattice_ring
from uldp.aggregation.lattice_lookup import ERROR_BOUND, WEIGHT_BITS
from uldp.privacy.releases import sums


def inject_noise(monkeypatch, seed=0, scale=2.0**22):
    """The same noise in both aggregations: multiples of a unit, in the order in which silos draw them."""
    generator = np.random.default_rng(seed)
    shift = WEIGHT_BITS - lattice_ring.DITHER_BITS

    def units(count):
        return np.rint(generator.normal(scale=scale, size=count)).astype(np.int64)

    monkeypatch.setattr(sums, "sample_discrete_gaussian", lambda _, count, stream: units(count))
    monkeypatch.setattr(lattice_ring, "sample_discrete_gaussian", lambda _, count, stream: units(count) << shift)


def first_total(monkeypatch, aggregation, method, federation):
    """The first round's total in units."""
    with monkeypatch.context() as patched:
        inject_noise(patched)
        server, silos = make_sessions(method, federation, aggregation=aggregation)
        while server._sum is None:
            for name, request in server.requests().items():
                server.receive(name, silos[name].reply(request))
            server.collect()
        return server._sum.view(np.int64)


def error_bound(users, max_records=2000):
    """In units: what truncation costs, twice (before weights here, after them there), the errors, and rounding."""
    return users * (2 + 2 * ERROR_BOUND * max_records / 2.0 ** (WEIGHT_BITS - 24)) + 2


@pytest.mark.parametrize("dimension", [1, 4, 4095, 4097])
@pytest.mark.parametrize("name", ["uldp-avg", "uldp-avg-w"])
def test_the_total_is_that_of_plain_up_to_the_stated_bound(monkeypatch, name, dimension):
    method = build(name, rounds=1)
    federation = small_federation(users=5, dimension=dimension, records=12)
    totals = [first_total(monkeypatch, kind, method, federation) for kind in ("lattice", "plain")]
    assert np.abs(totals[0] - totals[1]).max() <= error_bound(5)
    assert np.abs(totals[1]).max() > 2**20
