"""The noise of ``lattice`` as it arrives in the total, and how far one user moves it, against the ledger's event."""

import math

import numpy as np
import pytest
from tests.guarantees.adversary import OwnCoordinates, federation_of
from tests.protocol.test_lattice import inject_noise
from tests.support import build, drive, make_sessions

from uldp.privacy.events import Gaussian, flatten

COORDINATES = 20_000
PLACES = {
    "one silo": [[24, 2, 0], [0, 0, 2], [0, 1, 1]],
    "two silos": [[12, 2, 0], [12, 0, 2], [0, 1, 1]],
    "all silos, beyond the cap": [[900, 2, 0], [900, 0, 2], [900, 1, 1]],
}


def model_of(counts, dimension=2, **settings):
    """How far one round moves the model, in clips of the total."""
    method = build("uldp-avg-w", **{"rounds": 1, "clip": 0.7, "noise_multiplier": 1.5, **settings})
    federation = federation_of(counts)
    server, silos = make_sessions(method, federation, learner=OwnCoordinates(dimension), aggregation="lattice")
    drive(server, silos)
    return server, server.model * federation.users * len(federation.silos) / 0.7


@pytest.mark.parametrize("tolerance", [0, 1])
def test_the_noise_is_that_of_the_event(tolerance):
    server, moved = model_of(PLACES["one silo"], COORDINATES, dropout_tolerance=tolerance)
    (event,) = flatten(server.ledger.composition())
    assert isinstance(event, Gaussian)
    noise = moved[1:]
    deviation = 1.5 * math.sqrt(3 / (3 - tolerance))
    assert noise.std() == pytest.approx(deviation, rel=5 / math.sqrt(2 * COORDINATES))
    assert abs(noise.mean()) < 5 * deviation / math.sqrt(COORDINATES)
    assert event.noise_multiplier == pytest.approx(deviation, rel=1e-6) and event.noise_multiplier < deviation


@pytest.mark.parametrize("place", PLACES)
def test_one_user_moves_the_total_by_at_most_one_clip(monkeypatch, place):
    counts = np.array(PLACES[place])
    without = counts.copy()
    without[:, 0] = 0
    with monkeypatch.context() as patched:
        inject_noise(patched, scale=0.0)
        here, away = (model_of(each)[1] for each in (counts, without))
    shift = np.linalg.norm(here - away)
    assert 1 - 1e-6 < shift <= 1 + 2.0**-22
