"""Many silos under masks: masks come from a kernel, relayed keys are stored once, and nothing else changes."""

import numpy as np
import pytest
from tests.core.test_sessions import build
from tests.support import Folder, decode, drive, make_sessions, small_federation, step_until

from uldp.protocol import messages as m
from uldp.sessions.server import Stage
from uldp.vectors import from_residues

SILOS = 50


def sessions(aggregation):
    federation = small_federation(silos=SILOS, records=4)
    return make_sessions(build("uldp-avg"), federation, aggregation=aggregation, min_silos=3)


def sent(silo, request):
    """What a silo sends for a round, as residues."""
    body = decode(silo.reply(request), experiment=silo.plan.digest, silo=silo.name, limit=10**6)
    return np.frombuffer(body.vector, dtype="<u8")


def test_the_model_is_that_of_plain_bit_by_bit():
    models = []
    for aggregation in ("plain", "masked"):
        server, silos = sessions(aggregation)
        drive(server, silos)
        models.append(server.model.tobytes())
    assert models[0] == models[1]


@pytest.mark.parametrize("absent", [1, 20, 47], ids=["kernel", "kernel for fewer", "no kernel"])
def test_masks_cancel_among_the_silos_that_are_there_and_among_no_fewer(absent):
    server, silos = sessions("masked")
    step_until(m.UpdateRequest, server, silos)
    assert server.stage is Stage.ROUND
    server.exclude([f"silo-{index}" for index in range(absent)])
    vectors = [sent(silos[name], request) for name, request in server.requests().items()]
    assert len(vectors) == SILOS - absent
    plain = 2.0**24 * 6 * SILOS  # far above any total, far below 2^63
    total = from_residues(np.sum(vectors, axis=0, dtype=np.uint64))
    assert (np.abs(total) < plain).all()
    for index in range(len(vectors)):
        others = from_residues(np.sum(vectors[:index] + vectors[index + 1 :], axis=0, dtype=np.uint64))
        assert (np.abs(others) > plain).any()


def test_what_the_server_relays_to_all_is_stored_once_and_restored():
    server, silos = sessions("masked")
    step_until(m.UpdateRequest, server, silos)
    folder = Folder()
    states = {name: silo.save(folder) for name, silo in silos.items()}
    assert len(folder.parts) == 1 and all(len(part) > 96 * SILOS for part in folder.parts.values())
    assert max(map(len, states.values())) < 1000
    expected = {name: sent(silos[name], request).tobytes() for name, request in server.requests().items()}
    _, anew = sessions("masked")
    for name, silo in anew.items():
        silo.restore(states[name], folder)
    assert {name: sent(anew[name], request).tobytes() for name, request in server.requests().items()} == expected
