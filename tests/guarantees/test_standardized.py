"""``auto`` of linear models: rows of moments and of standardised gradients keep what the release states of rows.

Whatever the server sends, a row is a function of one person's records, it is clipped, and nothing but totals moves the
model, the coordinates and the start.
"""

from __future__ import annotations

import math
from dataclasses import replace

import msgspec
import numpy as np
import pytest
import torch
from tests.support import (
    build,
    decode,
    drive,
    drive_with_restarts,
    make_sessions,
    small_federation,
    step,
    step_until,
)
from torch import nn

from uldp.data.federation import SiloData, Task
from uldp.errors import MessageRefused
from uldp.learners import moments
from uldp.learners.models import linear_outputs
from uldp.learners.moments import user_moments
from uldp.learners.torch import TorchLearner
from uldp.methods.base import State
from uldp.methods.standardization import HEAD, Coordinates, MomentEstimate, RowContent, bias_for, expected_labels
from uldp.privacy.releases import PublicFacts
from uldp.protocol.messages import UpdateRequest, encode
from uldp.rng import Secrets, Streams

ROUNDS = 12
USERS, FEATURES = 6, 4
TASKS = {"two classes": Task(2), "three classes": Task(3), "a number": Task(0)}
NORMS = {"with a schema": 2.0, "without": math.inf}
EXTREME = (0.0, 1.0, -1.0, 1e-300, 1e300, -1e300, 1e-3)


def federation_for(task):
    """Some people; of one class more than of another, far from the middle of their ranges."""
    drawn = small_federation(USERS, dimension=FEATURES, scale=0.2)

    def with_labels(silo):
        labels = silo.labels if not task.classes else (silo.labels > 0.3).astype(np.int64) * (task.classes - 1)
        return replace(silo, features=silo.features + 0.3, labels=labels)

    return replace(drawn, silos=tuple(map(with_labels, drawn.silos)), task=task)


def learner_for(task, weight=0.0):
    model = nn.Linear(FEATURES, task.classes if task.classes > 2 else 1)
    for parameter in model.parameters():
        nn.init.constant_(parameter, weight)
    return TorchLearner(model, task, dtype="float64")


def sessions(task, norm, federation=None, weight=0.0):
    learner = learner_for(task, weight)
    known = {"linear_outputs": learner.linear_outputs, "feature_norm": norm}
    method = build("auto", rounds=ROUNDS, noise_multiplier=2.0)
    return make_sessions(method, federation or federation_for(task), aggregation="masked", learner=learner, known=known)


CASES = pytest.mark.parametrize(
    ("task", "norm"), [(task, norm) for task in TASKS.values() for norm in NORMS.values()], ids=str
)


def contents(server):
    """What the rows of the rounds are about."""
    facts, method = server.plan.facts, server.plan.method
    state = State(np.zeros(facts.dimension))
    return [
        Coordinates.unpack(method.broadcast(state, facts.in_round(r, 3))[facts.dimension :], FEATURES).content
        for r in range(1, ROUNDS + 1)
    ]


@CASES
def test_rounds_are_about_means_then_spreads_then_steps(task, norm):
    server, _ = sessions(task, norm)
    found = contents(server)
    assert found == sorted(found) and set(found) >= {RowContent.MEANS, RowContent.STEPS}
    assert (RowContent.SPREADS in found) == (norm < math.inf or not task.classes)


def models(task, norm, federation, replies=None):
    server, silos = sessions(task, norm, federation)
    said, found = [], []
    while requests := server.requests():
        turn = len(said)
        said.append(replies[turn] if replies else {name: silos[name].reply(sent) for name, sent in requests.items()})
        for name, reply in said[-1].items():
            server.receive(name, reply)
        server.collect()
        server.charge()
        server.advance()
        found.append((server.model.tobytes(), [*requests.values()]))
    return found, said


@CASES
def test_models_and_coordinates_follow_from_the_released_totals_alone(task, norm):
    federation = federation_for(task)
    trained, replies = models(task, norm, federation)
    again, _ = models(task, norm, federation.without(0), replies)
    assert trained == again  # the models, and every byte that was sent to a silo


@CASES
def test_a_restart_after_every_exchange_changes_no_bit(task, norm):
    server, silos = sessions(task, norm)
    drive(server, silos)
    assert drive_with_restarts(lambda: sessions(task, norm)).model.tobytes() == server.model.tobytes()


def broadcasts(server):
    """Vectors that a run sends, and such as no honest server would."""
    facts, method = server.plan.facts, server.plan.method
    own = [method.broadcast(State(np.zeros(facts.dimension)), facts.in_round(r, 3)) for r in (1, ROUNDS // 2, ROUNDS)]
    generator = np.random.default_rng(1)
    made_up = [generator.choice(EXTREME, size=len(own[0])) for _ in range(30)]
    for vector, content in zip(made_up, (0.0, 1.0, 2.0, -7.5, 1e300) * 6, strict=True):
        vector[facts.dimension] = content
    return [*own, *made_up]


def rows(server, federation, x):
    plan, learner = server.plan, learner_for(federation.task)
    found = {}
    for silo in federation:
        secrets = Secrets.simulated_from_seed(0)
        for users, values in plan.release.rows(plan.method, x, silo, learner, Streams.from_seed(0), secrets):
            found |= {(silo.name, int(user)): row for user, row in zip(users, np.array(values), strict=True)}
    return found


@CASES
def test_a_row_is_clipped_and_depends_on_its_person_alone_whatever_the_server_sends(task, norm):
    federation = federation_for(task)
    server, _ = sessions(task, norm)
    clip = server.plan.release.clip
    for x in broadcasts(server):
        together, without = rows(server, federation, x), rows(server, federation.without(0), x)
        assert set(together) - set(without) == {(silo.name, 0) for silo in federation if 0 in silo.users}
        for key, row in without.items():
            assert np.array_equal(row, together[key], equal_nan=True)
        for row in together.values():
            assert not np.isfinite(row).all() or np.linalg.norm(row) <= clip * (1 + 1e-12)


def test_a_broadcast_has_one_length_and_another_is_refused():
    server, silos = sessions(Task(2), 2.0)
    assert server.plan.broadcast_size == (FEATURES + 1) + HEAD + (FEATURES + 1) + FEATURES
    step_until(UpdateRequest, server, silos)
    for name, request in server.requests().items():
        sent = decode(request, experiment=server.plan.digest, silo=name, limit=server.plan.message_limit)
        for other in (sent.model[:-8], sent.model + bytes(8), sent.model[: 8 * (FEATURES + 1)]):
            with pytest.raises(MessageRefused, match="are expected"):
                silos[name].reply(encode(server.plan.digest, name, msgspec.structs.replace(sent, model=other)))
        silos[name].reply(request)  # nothing has changed


def test_moments_are_means_over_a_persons_records():
    silo = federation_for(Task(3)).silos[0]
    centre = np.linspace(-1, 1, FEATURES + 3)
    values = np.concatenate([silo.features.astype(float), np.eye(3)[silo.labels]], axis=1)
    for given, wanted in ((None, values), (centre, (values - centre) ** 2)):
        ((users, found),) = user_moments(silo, Task(3), 3, given, FEATURES + 5)
        assert not found[:, FEATURES + 3 :].any()
        assert np.array_equal(users, np.unique(silo.users))
        for user, row in zip(users, found, strict=True):
            np.testing.assert_allclose(row[: FEATURES + 3], wanted[silo.users == user].mean(axis=0), rtol=1e-12)


def test_a_persons_moments_are_the_same_bits_in_any_company(monkeypatch):
    """Whoever else is there, and however much of the silo is looked at together; also with very many records."""
    generator = np.random.default_rng(0)
    users = np.concatenate([np.full(moments.CHUNK * 3 + 7, 5), generator.integers(0, 5, 900)])
    features = generator.normal(size=(len(users), FEATURES)).astype(np.float32)
    silo = SiloData("one", features, generator.integers(0, 3, len(users)), users)
    together = dict(_moments_of(silo))
    for block in (1, 50, 2**20):
        monkeypatch.setattr(moments, "BLOCK_NUMBERS", block)
        assert all(np.array_equal(row, together[user]) for user, row in _moments_of(silo))
        for user in range(6):
            ((alone, row),) = _moments_of(silo.take(users == user))
            assert alone == user and np.array_equal(row, together[user])


def _moments_of(silo):
    for users, rows in user_moments(silo, Task(3), 3, None, FEATURES + 3):
        yield from zip(users.tolist(), rows, strict=True)


@pytest.mark.parametrize(("rate", "truth"), [(0.01, 0.01), (0.05, 0.2), (0.5, 0.02)])
def test_a_start_without_a_schema_is_not_biased_by_the_clip(rate, truth):
    """A public rate that is right stays; one that is not is corrected."""
    learner = learner_for(Task(2))
    facts = PublicFacts(1000, 1, learner.dimension, linear_outputs=1)
    method = build("auto", rounds=ROUNDS, noise_multiplier=1e-6).for_facts(facts)
    state = State(np.concatenate([np.zeros(FEATURES), bias_for(np.array([rate]), "classification", 1e-9)]))
    labels = (np.arange(1000) < 1000 * truth).astype(np.int64)
    silo = SiloData("one", np.zeros((1000, FEATURES), np.float32), labels, np.arange(1000))
    for round_ in range(1, sum(method.recipe.linear.first_rounds(ROUNDS)[:1]) + 1):
        about = facts.in_round(round_, 1)
        parts = method.release(facts).rows(
            method,
            method.broadcast(state, about),
            silo,
            learner,
            Streams.from_seed(0),
            Secrets.simulated_from_seed(0),
        )
        state = method.server(state, np.sum([rows.sum(axis=0) for _, rows in parts], axis=0), about)
    np.testing.assert_allclose(expected_labels(state.x[FEATURES:], "classification"), truth, rtol=1e-6)


def test_labels_that_vary_more_than_features_do_not_shorten_spreads():
    found = MomentEstimate(np.array([0.0225] * 4 + [0.36]), 1e-8)
    row = np.sqrt(4 * 0.0225**2 + 0.36**2)
    assert found.squares_length(4, 0.25, of_labels=True) > 1.4 * row
    assert found.squares_length(4, 0.25, of_labels=False) < row


def test_a_silo_that_is_not_heard_leaves_the_centre_where_it_is():
    learner = learner_for(Task(2))
    facts = PublicFacts(100, 4, learner.dimension, linear_outputs=1, feature_norm=2.0)
    method = build("auto", rounds=ROUNDS, noise_multiplier=1e-6).for_facts(facts)
    total = np.array([10.0, 20.0, -10.0, 5.0, 3.0])
    start = State(np.zeros(5))
    whole = method.server(start, total, facts.in_round(1, 4))
    part = method.server(start, 0.75 * total, facts.in_round(1, 3))
    np.testing.assert_allclose(part.memory["centre"], whole.memory["centre"], rtol=1e-6)


@pytest.mark.parametrize("odd", ["hook", "parameter", "order", "frozen"])
def test_what_is_not_known_to_be_linear_is_not_taken_for_it(odd):
    layer = nn.Linear(FEATURES, 1)
    if odd == "hook":
        layer.register_forward_hook(lambda layer, given, out: out.tanh())
    elif odd == "parameter":
        layer.register_parameter("scale", nn.Parameter(torch.ones(1)))
    elif odd == "order":
        weight = layer.weight
        del layer.weight
        layer.register_parameter("weight", weight)
    else:
        layer.bias.requires_grad_(False)
    assert linear_outputs(layer) == 0 and linear_outputs(nn.Sequential(layer)) == 0
    assert linear_outputs(nn.Linear(FEATURES, 1)) == linear_outputs(nn.Sequential(nn.Linear(FEATURES, 1))) == 1


def test_standardised_gradients_are_those_of_standardised_features():
    """And a step in these coordinates changes the model as the restored step changes the original one."""
    generator = np.random.default_rng(0)
    task, centre, spread = Task(3), generator.normal(size=FEATURES), generator.uniform(0.2, 2, FEATURES)
    learner, silo = learner_for(task), federation_for(task).silos[0]
    silo = replace(silo, features=silo.features.astype(np.float64))
    agreed = Coordinates(RowContent.STEPS, 1.0, np.concatenate([centre, np.zeros(3)]), spread)
    weights, bias = generator.normal(size=(3, FEATURES)), generator.normal(size=3)

    def gradients(w, b, features):
        x = np.concatenate([w.ravel(), b])
        return learner.user_gradients(x, replace(silo, features=features), Streams.from_seed(0))

    standardised = (silo.features - centre) / spread
    ours = np.concatenate(
        [agreed.standardised(rows) for _, rows in gradients(weights, bias, silo.features.astype(np.float32))]
    )
    theirs = np.concatenate(
        [rows for _, rows in gradients(weights * spread, bias + weights @ centre, standardised.astype(np.float32))]
    )
    np.testing.assert_allclose(ours, theirs, atol=1e-5)
    move = generator.normal(size=len(ours[0]))
    change = agreed.restored(move)
    outputs = silo.features @ change[: 3 * FEATURES].reshape(3, FEATURES).T + change[3 * FEATURES :]
    np.testing.assert_allclose(
        outputs, standardised @ move[: 3 * FEATURES].reshape(3, FEATURES).T + move[3 * FEATURES :], atol=1e-9
    )


def test_without_noise_the_coordinates_are_means_and_spreads_of_people():
    task = Task(2)
    federation = federation_for(task)
    learner = learner_for(task)
    known = {"linear_outputs": 1, "feature_norm": 2.0}
    method = build("auto", rounds=200, noise_multiplier=1e-4)
    server, _ = make_sessions(method, federation, learner=learner, known=known)
    facts, method = server.plan.facts, server.plan.method
    first = sum(method.recipe.linear.first_rounds(200))
    state = State(np.zeros(facts.dimension))
    counts = federation.counts()
    for round_ in range(1, first + 1):
        x, total = method.broadcast(state, facts.in_round(round_, 3)), np.zeros(facts.dimension)
        for (name, user), row in rows(server, federation, x).items():
            index = [silo.name for silo in federation].index(name)
            total += counts[index, user] / counts[:, user].sum() * row
        state = method.server(state, total, facts.in_round(round_, 3))
    features = np.concatenate([silo.features for silo in federation]).astype(float)
    labels, users = (np.concatenate([getattr(silo, key) for silo in federation]) for key in ("labels", "users"))
    of_people = [features[users == user] for user in np.unique(users)]
    centre = np.mean([own.mean(axis=0) for own in of_people], axis=0)
    np.testing.assert_allclose(state.memory["centre"][:FEATURES], centre, atol=1e-3)
    positive = np.mean([labels[users == user].mean() for user in np.unique(users)])
    np.testing.assert_allclose(expected_labels(state.x[FEATURES:], "classification"), positive, atol=1e-3)
    squares = np.mean([((own - centre) ** 2).mean(axis=0) for own in of_people], axis=0)
    wanted = squares.mean() * (squares / squares.mean()) ** 0.75
    np.testing.assert_allclose(state.memory["spread"] ** 2, wanted, rtol=0.05)


def test_what_may_be_noise_leaves_the_coordinates_as_they_are():
    generator = np.random.default_rng(3)
    noise = MomentEstimate(generator.normal(size=2001), 1.2)
    assert not noise.shrunk(2000)[:2000].any()
    recipe = build("auto").recipe.linear
    spread = MomentEstimate(0.09 + 0.1 * generator.normal(size=2001), 0.012).spreads(2000, recipe)
    assert np.ptp(spread) == 0 and spread[0] == pytest.approx(0.3, rel=0.05)


@pytest.mark.parametrize("labels", [[0.01], [0.5], [0.2, 0.3, 0.5]])
def test_the_start_predicts_the_labels_means(labels):
    np.testing.assert_allclose(expected_labels(bias_for(np.array(labels), "classification", 1e-6), ""), labels)


def test_a_model_that_was_given_weights_keeps_its_start():
    server, silos = sessions(Task(2), 2.0, weight=0.3)
    means, _ = server.plan.method.recipe.linear.first_rounds(ROUNDS)
    while server.round <= means:
        assert (server.model == np.float64(np.float32(0.3))).all()
        step(server, silos)


def test_few_rounds_are_all_steps():
    learner = learner_for(Task(2))
    facts = PublicFacts(USERS, 3, learner.dimension, linear_outputs=1, feature_norm=2.0)
    method = build("auto", rounds=5, noise_multiplier=1.0).for_facts(facts)
    assert method.recipe.linear.first_rounds(5) == (0, 0)
    after = method.server(State(np.zeros(5)), np.ones(5), facts.in_round(1, 3))
    assert np.isfinite(after.x).all() and after.x.any()
