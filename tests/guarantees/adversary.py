"""A learner and data that move a release as far as a method allows, whatever the method is.

It knows nothing but the interface of learners, so methods that do not exist yet meet it too.
"""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
from tests.support import build, decode, make_sessions

from uldp.aggregation.paillier import PaillierWeighting
from uldp.data.federation import Federation, Records, SiloData, Task
from uldp.errors import ConfigError
from uldp.methods.registry import METHODS, lookup
from uldp.protocol import messages as m
from uldp.sessions.server import Stage
from uldp.vectors import from_residues

PAILLIER = PaillierWeighting(key_bits=320)
"""Insecure, and fast: the sample does not depend on it."""
FAR = 1e6
"""Longer than every clip."""


class OwnCoordinates:
    """User u pulls coordinate u as far as the clip lets it; users from ``pulling`` up do not move the model.

    A whole silo follows user 0: forwards with it, backwards without. ``batches`` are the users of each computation,
    by silo and in their order.
    """

    mean_metrics = ()

    def __init__(self, dimension: int, pulling: int = 1) -> None:
        self.dimension, self.pulling = dimension, pulling
        self.batches: dict[str, list[np.ndarray]] = {}

    def initial(self, streams):
        return np.zeros(self.dimension)

    def _rows(self, users, length):
        rows = np.zeros((len(users), self.dimension))
        pulls = np.flatnonzero(users < self.pulling)
        rows[pulls, users[pulls]] = length
        return rows

    def _computes(self, data, users):
        self.batches.setdefault(data.name, []).append(users)

    def user_gradients(self, x, data, streams):
        users = np.unique(data.users)
        self._computes(data, users)
        yield users, self._rows(users, -FAR)

    def user_deltas(self, x, data, local, streams):
        users = np.unique(data.users)
        self._computes(data, users)
        yield users, self._rows(users, FAR)

    def clipped_sums(self, data, clip):
        def total(x, records, step, streams):
            self._computes(data, data.users[records])
            return self._rows(data.users[records], -clip).sum(axis=0)

        return total

    def silo_delta(self, x, data, local, streams):
        self._computes(data, data.users)
        return self._rows(np.zeros(1, dtype=np.int64), FAR if 0 in data.users else -FAR)[0]

    def evaluate(self, x, records):
        return {}

    def predict(self, x, features):
        return np.zeros(len(features))


def federation_of(counts) -> Federation:
    """Silo s holds counts[s][u] records of user u."""
    counts = np.asarray(counts)
    silos = []
    for index, row in enumerate(counts):
        users = np.repeat(np.arange(len(row)), row)
        features = np.arange(len(users), dtype=np.float32)[:, None]
        silos.append(SiloData(f"silo-{index}", features, np.zeros(len(users), np.float32), users))
    nothing = Records(np.zeros((1, 1), np.float32), np.zeros(1, np.float32))
    return Federation("adversarial", tuple(silos), counts.shape[1], Task(0), nothing)


PROTECTED = [name for name, named in METHODS.items() if named.with_defaults.privacy_unit is not None]
GAUSSIAN = [name for name in PROTECTED if not METHODS[name].with_defaults.local]
LOCAL = [name for name in PROTECTED if METHODS[name].with_defaults.local]
"""Clients that perturb what they send by themselves."""


def with_settings(name: str, wanted: dict, **defaults):
    """The method with the settings it has among ``defaults``; None where it does not take all that is ``wanted``."""
    named = lookup(name)
    known = {field.name for field in fields(named.method)} - set(named.fixed)
    if not set(wanted) <= known:
        return None
    try:
        return build(name, **{key: value for key, value in defaults.items() if key in known}, **wanted)
    except ConfigError:
        return None


def release(method, federation, learner, *, absent=(), aggregation="plain", **options):
    """One round after the other: the integers that each silo sent (under plain), and by how much the model moved.

    Gives (server, [{silo: integers}], [movement]). ``absent`` silos do not answer.
    """
    server, silos = make_sessions(method, federation, learner=learner, aggregation=aggregation, **options)
    sent, moved = [], []
    while requests := server.requests():
        if server.stage is Stage.ROUND and absent and not server.missing_silos:
            server.exclude(absent)
            continue
        vectors, before = {}, server.model
        for name, request in requests.items():
            answer = silos[name].reply(request)
            server.receive(name, answer)
            body = decode(answer, experiment="d" * 64, silo=name, limit=10**9)
            if isinstance(body, m.Update) and aggregation == "plain":
                vectors[name] = from_residues(m.unpack_residues(body.vector, learner.dimension, name)).astype(float)
        server.collect()
        if server.stage is Stage.COLLECTED:
            server.charge()
            server.advance()
            sent.append(vectors)
            moved.append(server.model - before)
    return server, sent, moved


def took_part(method, federation, **options):
    """(server, (rounds, users)): whom the model follows in each round, as anyone can tell where there is little noise.

    Every user moves a coordinate of its own by the clip, or not at all.
    """
    learner = OwnCoordinates(federation.users, federation.users)
    server, _, moved = release(replace(method, noise_multiplier=0.001), federation, learner, **options)
    moved = np.abs(moved)
    return server, moved > moved.max() / 2
