"""Methods and releases from outside of uldp that try to state more noise than they add.

On our release types they cannot: whatever rows they make, one user moves the integers by at most the clip, and the
event in the ledger is that of the noise that was drawn. What no release can check is that row u is about user u alone,
and a release type that is not ours may say anything. So wherever such code runs, the statement, in its first line,
names whose code asserts the number.
"""

from __future__ import annotations

import inspect
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import pytest
from tests.guarantees.adversary import FAR, PAILLIER, OwnCoordinates, federation_of, release
from tests.support import decode, drive, make_plan, make_sessions, moved, rows_of, small_federation

from uldp.aggregation import AGGREGATIONS
from uldp.aggregation.plain import Plain
from uldp.caveats import Caveat, Severity
from uldp.errors import ConfigError, ModelError
from uldp.experiment.build import PreparedExperiment, prepare
from uldp.experiment.config import Experiment
from uldp.mechanisms.local_registry import LOCAL_MECHANISMS
from uldp.mechanisms.two_point import TwoPoint
from uldp.methods.base import Method, State
from uldp.methods.registry import METHODS, is_builtin
from uldp.methods.uldp_avg import UldpAvg
from uldp.privacy.accountants import account
from uldp.privacy.events import Event, Gaussian, Group, Repeated, parameters
from uldp.privacy.releases import (
    ClippedSilo,
    GaussianSum,
    LocalPerturbation,
    NoisedModel,
    PublicFacts,
    Release,
    Unprotected,
    UserSampling,
)
from uldp.privacy.releases.local_perturbation import Layer
from uldp.reports import statement as reports
from uldp.rng import Secrets
from uldp.runs.directory import RunDirectory
from uldp.runtimes.simulation import run, silo_session, simulated_plan
from uldp.sessions.server import ServerSession, Stage
from uldp.vectors import FixedPoint, from_residues

TRUE, STATED = 5.0, 1000.0
"""The noise that is added, and the noise that the liars below would like to be believed."""


# --- what somebody else may write ---------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Foreign(Method):
    """An honest method of somebody's own, which sends nothing but zeros. The liars below derive from it."""

    clip: float = 1.0
    weighting: str = "uniform"
    sample_rate: float = 1.0

    summary: ClassVar[str] = "somebody's own"
    paper: ClassVar[str] = "none"

    def release(self, facts: PublicFacts) -> Release:
        return GaussianSum(
            facts=facts,
            clip=self.clip,
            noise_multiplier=self.noise_multiplier,
            weighting=self.weighting,
            user_sampling=UserSampling(self.sample_rate),
        )

    def silo(self, x, data, learner, streams) -> Iterator[Any]:
        users = np.unique(data.users)
        yield users, np.zeros((len(users), len(x)))

    def server(self, state, total, facts) -> State:
        return State(state.x + total)


def pulls(x, count=1, coordinate=0, length=FAR):
    """So many rows that pull a coordinate as far as they can."""
    rows = np.zeros((count, len(x)))
    rows[:, coordinate] = length
    return rows


class LongRows(Foreign):
    def silo(self, x, data, learner, streams):
        if 0 in data.users:
            yield np.array([0]), pulls(x)


class RowsBeyondFloats(Foreign):
    def silo(self, x, data, learner, streams):
        if 0 in data.users:
            yield np.array([0]), pulls(x, length=1e308) + pulls(x, coordinate=1, length=1e308)


class RowsThatAreNoNumbers(Foreign):
    def silo(self, x, data, learner, streams):
        if 0 in data.users:
            yield np.array([0]), pulls(x, length=math.inf)
            yield np.array([0]), pulls(x, length=math.nan)


class ManyRowsInABlock(Foreign):
    def silo(self, x, data, learner, streams):
        if 0 in data.users:
            yield np.array([0] * 7), pulls(x, 7)


class ManyBlocks(Foreign):
    def silo(self, x, data, learner, streams):
        if 0 in data.users:
            for kind in (np.int64, np.uint8, np.int16, np.uint64):
                yield np.zeros(1, dtype=kind), pulls(x)


class AmongOthers(Foreign):
    """User 0 once in the first block, and twice among others in the second one."""

    def silo(self, x, data, learner, streams):
        users = np.unique(data.users)
        others = users[users > 0]
        yield others[:1], pulls(x, 1, coordinate=1)
        if 0 in users:
            yield np.array([0]), pulls(x)
            yield np.concatenate([[0], others, [0]]), pulls(x, len(others) + 2, coordinate=2)
        else:
            yield others, pulls(x, len(others), coordinate=2)


class Tricky(np.ndarray):
    """Says of itself what somebody wants to hear: one entry, and that it is zero."""

    def min(self, *arguments, **named):
        return 0

    def max(self, *arguments, **named):
        return 0

    def __len__(self):
        return 1


class ReusedBuffer(Foreign):
    """One array for all users: it is another user's when the rows are weighted, if somebody looks at it that late.

    The other one has all records in this silo, and so all of its weight.
    """

    def silo(self, x, data, learner, streams):
        mine = int(np.bincount(data.users).argmax())
        buffer = np.array([0])
        if 0 in data.users:
            yield buffer, pulls(x)
        buffer[0] = mine
        yield buffer, np.zeros((1, len(x)))


class RowsOfAbsentUsers(Foreign):
    """User 0's records moved onto all users who have none here."""

    def silo(self, x, data, learner, streams):
        absent = np.setdiff1d(np.arange(5), data.users)
        yield absent, pulls(x, len(absent)) if 0 in data.users else np.zeros((len(absent), len(x)))
        yield from super().silo(x, data, learner, streams)
        if 0 in data.users:
            yield absent, pulls(x, len(absent))


class AnotherArrayEachTime:
    """One array at the first look, and another one at the next."""

    def __init__(self, first, then):
        self.arrays = [first, then]

    def __len__(self):
        return len(self.arrays[0])

    def __array__(self, dtype=None, copy=None):
        return self.arrays.pop(0) if len(self.arrays) > 1 else self.arrays[0]


class ChangingRows(Foreign):
    """Within the clip when they are looked at, far outside when they are added."""

    def silo(self, x, data, learner, streams):
        if 0 in data.users:
            yield np.array([0]), AnotherArrayEachTime(np.zeros((1, len(x))), pulls(x))


class ChangingUsers(Foreign):
    """User 0 when it is looked at whose row it is, and user 1 when it is weighted."""

    def silo(self, x, data, learner, streams):
        if 0 in data.users:
            yield AnotherArrayEachTime(np.array([0]), np.array([1])), pulls(x)


ROWS = [LongRows, ChangingUsers, ManyRowsInABlock, ManyBlocks, AmongOthers, ReusedBuffer]
WEAK_ROWS = [RowsBeyondFloats, RowsThatAreNoNumbers, RowsOfAbsentUsers, ChangingRows]
"""Whose rows count as nothing at all."""
COUNTS = np.array([[3, 9, 0, 0, 1], [3, 0, 9, 0, 1], [3, 0, 0, 9, 1]])
"""User 0 is in all silos; users 1 to 3 have all of their records in one."""


def sums(method, federation, **options):
    """What the silos of one round add up to, without noise, as Python integers."""
    _, sent, _ = release(replace(method, noise_multiplier=0.0, rounds=1), federation, OwnCoordinates(6), **options)
    return [int(sum(values)) for values in zip(*sent[0].values(), strict=True)]


# --- rows: the bound is kept in integers --------------------------------------------------------------------------


@pytest.mark.parametrize("weighting", ["none", "uniform", "records"])
@pytest.mark.parametrize("kind", ROWS + WEAK_ROWS, ids=lambda kind: kind.__name__)
def test_whatever_rows_a_method_makes_one_user_moves_the_sum_by_at_most_the_clip(kind, weighting):
    method, federation = kind(clip=0.3, weighting=weighting), federation_of(COUNTS)
    made = make_plan(method, federation, 6).release
    distance = moved(sums(method, federation), sums(method, federation.without(0)))
    assert distance <= (made.sensitivity * made.encoding.integer_limit) ** 2  # integers: no tolerance
    if kind in WEAK_ROWS:
        assert distance == 0
    else:  # the test can fail: the bound is attained, up to the margin for rounding and to weights rounded down
        assert distance > (0.99999 * made.sensitivity * made.encoding.integer_limit) ** 2


@pytest.mark.parametrize(
    "aggregation", ["plain", "masked", replace(PAILLIER, max_records=45)], ids=["plain", "masked", "paillier"]
)
@pytest.mark.parametrize("kind", [*ROWS, *WEAK_ROWS], ids=lambda kind: kind.__name__)
def test_so_under_every_aggregation(kind, aggregation):
    """Under paillier rows wait for each other before they are weighted."""
    method = kind(clip=0.3, weighting="records", rounds=1)
    federation = federation_of(COUNTS)
    with_0, without = (
        release(method, data, OwnCoordinates(6), aggregation=aggregation)[2][0]
        for data in (federation, federation.without(0))
    )
    facts = make_plan(method, federation, 6, aggregation).facts
    unit = 0.3 / FixedPoint(limit=0.3).integer_limit
    assert np.linalg.norm(with_0 - without) <= 0.3 + facts.rounding * 2 * math.sqrt(6) * unit


class Remembers(LongRows):
    """Rows also for users whose records it saw in earlier rounds, whether they are sampled now or not."""

    def silo(self, x, data, learner, streams):
        SEEN.setdefault(data.name, set()).update(data.users.tolist())
        users = np.array(sorted(SEEN[data.name]), dtype=np.int64)
        yield users, np.eye(len(x))[users]


class Forgets(Foreign):
    def silo(self, x, data, learner, streams):
        users = np.unique(data.users)
        yield users, np.eye(len(x))[users]


SEEN: dict[str, set[int]] = {}


def test_users_outside_the_sample_have_no_row_though_a_method_remembers_them():
    """Else a sample of rate q would be stated, and everybody would take part."""
    SEEN.clear()
    federation = federation_of(np.ones((2, 6), dtype=int))
    sent = [release(kind(sample_rate=0.5, rounds=8), federation, OwnCoordinates(6))[1] for kind in (Remembers, Forgets)]
    assert len(SEEN["silo-0"]) == 6
    for one, other in zip(*sent, strict=True):
        assert all((one[silo] == other[silo]).all() for silo in one)
    assert any((vectors["silo-0"] == 0).any() for vectors in sent[0])  # somebody was left out of some sample


def yielding(*blocks):
    """A method that yields these blocks, as functions of the model."""

    class Yields(Foreign):
        def silo(self, x, data, learner, streams):
            for block in blocks:
                yield block(x)

    return Yields


BAD_BLOCKS = {
    "no user": lambda x: (None, pulls(x)),
    "below the first user": lambda x: (np.array([-1]), pulls(x)),
    "beyond the last user": lambda x: (np.array([5]), pulls(x)),
    "far beyond": lambda x: (np.array([2**40]), pulls(x)),
    "beyond, and says it is not": lambda x: (np.array([-1]).view(Tricky), pulls(x)),
    "more rows than users": lambda x: (np.array([0]), pulls(x, 2)),
    "more rows than users, and says they are not": lambda x: (np.array([0]), pulls(x, 2).view(Tricky)),
    "more users than rows": lambda x: (np.array([0, 1]), pulls(x)),
    "one row as a vector": lambda x: (np.array([0]), pulls(x)[0]),
    "a row that is longer than the model": lambda x: (np.array([0]), np.ones((1, len(x) + 1))),
    "a row that is shorter": lambda x: (np.array([0]), np.ones((1, len(x) - 1))),
    "users as numbers with a fraction": lambda x: (np.array([0.0, 0.5]), pulls(x, 2)),
    "users as a mask": lambda x: (np.ones(5, dtype=bool), pulls(x, 5)),
    "users as a matrix": lambda x: (np.array([[0], [1]]), pulls(x, 2)),
    "three dimensions": lambda x: (np.array([0]), pulls(x)[None]),
    "users without an array": lambda x: (0, pulls(x)),
}


@pytest.mark.parametrize("weighting", ["none", "uniform", "records"])
@pytest.mark.parametrize("block", BAD_BLOCKS.values(), ids=list(BAD_BLOCKS))
def test_rows_that_are_nobodys_are_refused(block, weighting):
    with pytest.raises(ModelError, match=r"method\.silo"):
        sums(yielding(block)(weighting=weighting), federation_of(COUNTS))


def test_users_and_rows_may_be_lists():
    federation = federation_of(COUNTS)
    listed = yielding(lambda x: ([0, 0], pulls(x, 2).tolist()))()
    assert sums(listed, federation) == sums(ManyRowsInABlock(), federation)


class OneVector(Foreign):
    """On a ClippedSilo: user 0 turns the vector of every silo round."""

    def release(self, facts):
        return ClippedSilo(facts=facts, clip=self.clip, noise_multiplier=self.noise_multiplier)

    def silo(self, x, data, learner, streams):
        yield None, pulls(x, length=FAR if 0 in data.users else -FAR)


def test_a_silos_vector_moves_by_two_clips_whatever_a_method_makes():
    method, federation = OneVector(clip=0.3), federation_of(COUNTS)
    units = make_plan(method, federation, 6).release.encoding.integer_limit
    distance = moved(sums(method, federation), sums(method, federation.without(0)))
    assert (0.99999 * 2 * 3 * units) ** 2 < distance <= (2 * 3 * units) ** 2


@pytest.mark.parametrize(
    "blocks",
    [
        [lambda x: (None, pulls(x))] * 2,
        [lambda x: (None, pulls(x, 2))],
        [lambda x: (np.array([0]), pulls(x))],
        [lambda x: (None, pulls(x)[0])],
        [lambda x: (None, np.ones((1, len(x) + 1)))],
        [],
    ],
)
def test_a_silo_that_sends_one_vector_sends_one(blocks):
    class Yields(OneVector):
        silo = yielding(*blocks).silo

    with pytest.raises(ModelError, match=r"method\.silo"):
        sums(Yields(), federation_of(COUNTS))


# --- noise: what the ledger says is what was drawn ----------------------------------------------------------------

COORDINATES = 4000
ERROR = 5 / math.sqrt(2 * COORDINATES)
"""Five standard errors of a deviation. The liars are off by a factor of two hundred."""


def tree_of(kind, secrets="simulated", **sections) -> dict[str, Any]:
    tree = {
        "data": {"dataset": "synthetic", "users": 6, "silos": 3, "options": {"records": 60, "features": COORDINATES}},
        "model": {"name": "logistic"},
        "method": {"name": f"{kind.__module__}:{kind.__qualname__}", "rounds": 2},
        "privacy": {"noise_multiplier": TRUE},
        "aggregation": {"name": "plain"},
        "run": {"threads": 1, "secrets": secrets},
    }
    return {key: {**value, **sections.get(key, {})} for key, value in tree.items()}


def prepared(kind, secrets="simulated", **sections) -> PreparedExperiment:
    return prepare(Experiment.from_tree(tree_of(kind, secrets, **sections)))


def small(kind, secrets="simulated", **sections) -> PreparedExperiment:
    """With few parameters, where no noise is measured."""
    return prepared(kind, secrets, **{"data": {"options": {"records": 60, "features": 5}}, **sections})


def rounds_of(ready: PreparedExperiment):
    """(server, [total in units]): all rounds of an experiment, with what the silos' vectors add up to."""
    from uldp.protocol import messages as m

    secrets = Secrets.simulated_from_seed(0)
    plan = simulated_plan(ready, secrets)
    server = ServerSession(plan, ready.learner.initial(ready.streams), ready.ledger(), secrets)
    silos = {name: silo_session(ready, plan, secrets, name) for name in plan.silos}
    totals = []
    while requests := server.requests():
        total = np.zeros(plan.facts.dimension, dtype=np.uint64)
        for name, request in requests.items():
            answer = silos[name].reply(request)
            body = decode(answer, experiment=plan.digest, silo=name, limit=plan.message_limit)
            if isinstance(body, m.Update):
                total += m.unpack_residues(body.vector, plan.facts.dimension, name)
            server.receive(name, answer)
        server.collect()
        if server.stage is Stage.COLLECTED:
            totals.append(from_residues(total))
        server.charge()
        server.advance()
    return server, totals


def check_noise(ready: PreparedExperiment) -> None:
    """Every round's event is that of the noise which was drawn, and so is every line of the statement."""
    server, totals = rounds_of(ready)
    units = ready.plan.release.encoding.integer_limit
    assert len(totals) == len(server.ledger.entries) == 2
    for total, entry in zip(totals, server.ledger.entries, strict=True):
        assert isinstance(entry.event, Gaussian)
        assert total.std() / units == pytest.approx(entry.event.noise_multiplier, rel=ERROR)
    honest = account({Gaussian(min(total.std() for total in totals) / units * (1 + ERROR)): 2}, 1e-5).value
    for statement in (ready.planned_statement(), run(ready).statement):
        assert all(row.epsilon >= honest for row in statement.exposures)
        assert statement.epsilon >= honest


@dataclass(frozen=True, kw_only=True)
class EvenSilos(GaussianSum):
    """A release type with a check of its own, which takes no arguments."""

    def check(self) -> None:
        super().check()
        if self.facts.silos % 2:
            raise ConfigError("an even number, please", location="data.silos", value=self.facts.silos)


class ChecksItsRelease(Foreign):
    def release(self, facts: PublicFacts) -> EvenSilos:
        return EvenSilos(facts=facts, clip=self.clip, noise_multiplier=self.noise_multiplier)


def test_a_release_type_may_have_a_check_of_its_own():
    assert small(ChecksItsRelease, data={"silos": 2, "options": {"records": 60}}).plan.facts.silos == 2
    with pytest.raises(ConfigError, match=r"^data.silos: an even number, please$"):
        small(ChecksItsRelease, data={"silos": 3, "options": {"records": 60}})


def with_noise(facts: PublicFacts, noise: float) -> GaussianSum:
    return GaussianSum(facts=facts, clip=1.0, noise_multiplier=noise, weighting="uniform")


class Fickle(Foreign):
    """Another value at each call."""

    def release(self, facts):
        CALLS.append(facts)
        return with_noise(facts, TRUE if len(CALLS) % 2 else STATED)


CALLS: list[PublicFacts] = []
KEPT: list[GaussianSum] = []


class KeepsItsRelease(Foreign):
    """Keeps the value that it made, and changes it when the noise has been drawn."""

    def release(self, facts):
        KEPT.append(with_noise(facts, TRUE))
        return KEPT[-1]

    def server(self, state, total, facts):
        for kept in KEPT:
            object.__setattr__(kept, "noise_multiplier", STATED)
        return super().server(state, total, facts)

    def silo(self, x, data, learner, streams):
        for kept in KEPT:
            object.__setattr__(kept, "noise_multiplier", TRUE)
        yield from super().silo(x, data, learner, streams)


class HangsAnEvent(Foreign):
    """One of our releases, with an event of its own hung onto it."""

    def release(self, facts):
        made = with_noise(facts, TRUE)
        for name in ("event", "view"):
            object.__setattr__(made, name, lambda _: Gaussian(STATED))
        return made


class TwoFaced(float):
    """One number for who draws the noise, another one for who accounts for it."""

    def __mul__(self, other):
        frame, accounted = inspect.currentframe().f_back, False
        while frame is not None:
            accounted |= frame.f_code.co_name in ("event", "view", "views")
            frame = frame.f_back
        return (STATED if accounted else TRUE) * other


class TwoFacedNumber(Foreign):
    def release(self, facts):
        return with_noise(facts, TwoFaced(TRUE))


@pytest.mark.parametrize(
    "kind", [Foreign, Fickle, KeepsItsRelease, HangsAnEvent, TwoFacedNumber], ids=lambda kind: kind.__name__
)
def test_on_our_releases_the_event_is_that_of_the_noise_that_is_drawn(kind):
    CALLS.clear()
    KEPT.clear()
    check_noise(prepared(kind))


def test_a_release_that_changes_its_mind_is_asked_once():
    CALLS.clear()
    ready = small(Fickle)
    before, asked = ready.plan.release, len(CALLS)
    run(ready)
    assert ready.plan.release is before
    assert len(CALLS) == asked  # whoever draws the noise and whoever accounts for it read the plan's


@pytest.mark.parametrize(
    "change", [{"silos": 300}, {"users": 7}, {"dimension": 1}, {"rounding": 1}], ids=lambda change: next(iter(change))
)
def test_a_release_for_another_federation_is_refused(monkeypatch, change):
    monkeypatch.setattr(
        Foreign, "release", lambda self, facts: with_noise(replace(facts, **change), self.noise_multiplier)
    )
    with pytest.raises(ConfigError, match="its release is made for"):
        small(Foreign)


class PliantFacts(PublicFacts):
    """Facts that equal all others."""

    def __eq__(self, other):
        return True

    def __ne__(self, other):
        return False

    __hash__ = None


class WithPliantFacts(Foreign):
    def release(self, facts):
        return with_noise(PliantFacts(facts.users, 300, facts.dimension, facts.rounding), TRUE)


class NobodyIsSampled(UserSampling):
    """States a small rate, and takes everybody."""

    @property
    def everybody(self):
        return True


class StatesASample(Foreign):
    def release(self, facts):
        return replace(with_noise(facts, TRUE), user_sampling=NobodyIsSampled(0.01))


@pytest.mark.parametrize("kind", [WithPliantFacts, StatesASample], ids=lambda kind: kind.__name__)
def test_values_of_other_types_inside_of_our_releases_are_refused(kind):
    with pytest.raises(ConfigError, match=r"^method: .* not part of uldp"):
        small(kind)


# --- noise of DP-SGD ----------------------------------------------------------------------------------------------


class SendsItself(Foreign):
    """On a release that trains by itself: sends a vector without any noise, if somebody asks for it."""

    def release(self, facts):
        return NoisedModel(
            facts=facts, clip=0.5, noise_multiplier=self.noise_multiplier, steps=4, rate=0.5, batch_size=2.0, lr=0.2
        )

    def silo(self, x, data, learner, streams):
        yield None, np.full((1, len(x)), FAR)


def test_a_release_that_trains_by_itself_does_not_ask_the_method():
    method = SendsItself(noise_multiplier=3.0, rounds=1)
    server, sent, _ = release(method, federation_of(COUNTS), OwnCoordinates(COORDINATES))
    (entry,) = server.ledger.entries
    event = entry.event
    assert isinstance(event, Repeated) and event.times == 4 and not isinstance(event.event, Group)
    encoding = make_plan(method, federation_of(COUNTS), COORDINATES).release.encoding
    step = 0.2 / 2.0 * 0.5 * encoding.integer_limit / encoding.limit  # one clip in one step, in units
    for vector in sent[0].values():  # user 0 moves the first coordinate only
        drawn = vector[1:].std() / step / math.sqrt(4)
        assert drawn == pytest.approx(parameters(event.event).noise_multiplier, rel=ERROR)


# --- clients that perturb -----------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Honest(TwoPoint):
    """Perturbs nothing, and says that it is one of ours."""

    def _perturb_block(self, block, stream):
        """Weights as they are."""


class OtherMechanism(Foreign):
    def release(self, facts):
        return LocalPerturbation(facts=facts, layers=(Layer(facts.dimension, Honest(epsilon=0.1)),))


@dataclass(frozen=True)
class OtherLayer(Layer):
    """Another mechanism when a range follows the model."""

    def at(self, x):
        return Honest(epsilon=0.1)


class HidesAMechanism(Foreign):
    def release(self, facts):
        layers = (OtherLayer(facts.dimension, TwoPoint(epsilon=0.1)),)
        return LocalPerturbation(facts=facts, layers=layers, follow_model=True)


class LayersAtTheSecondLook(tuple):
    """The first time it is looked through, all is well."""

    def __iter__(self):
        LOOKS.append(1)
        good = Layer(self[0].size, TwoPoint(epsilon=0.1))
        return iter([good] if len(LOOKS) % 2 else [Layer(self[0].size, Honest(epsilon=0.1))])


LOOKS: list[int] = []


class ChangesItsLayers(Foreign):
    def release(self, facts):
        layers = LayersAtTheSecondLook([Layer(facts.dimension, TwoPoint(epsilon=0.1))])
        return LocalPerturbation(facts=facts, layers=layers)


@pytest.mark.parametrize("kind", [OtherMechanism, HidesAMechanism, ChangesItsLayers], ids=lambda kind: kind.__name__)
def test_a_mechanism_that_is_not_ours_needs_a_release_type_of_its_own(kind):
    LOOKS.clear()
    with pytest.raises(ConfigError, match=r"method\.(mechanism|layers)"):
        kind().release(PublicFacts(6, 3, 4))
    with pytest.raises(ConfigError, match=r"method\.(mechanism|layers)"):
        small(kind, privacy={"noise_multiplier": None})


class Poisoned(Foreign):
    """One of our mechanisms with other probabilities in its cache: each weight becomes one of two values for sure."""

    def release(self, facts):
        mechanism = TwoPoint(epsilon=0.1)
        mechanism.__dict__["smallest_mass"] = 0
        mechanism.__dict__["reach"] = mechanism.radius
        return LocalPerturbation(facts=facts, layers=(Layer(facts.dimension, mechanism),))

    def silo(self, x, data, learner, streams):
        yield None, np.full((1, len(x)), FAR)


def test_a_mechanism_whose_cache_was_filled_by_somebody_else_is_made_anew():
    ready = prepared(Poisoned, privacy={"noise_multiplier": None})
    data = ready.data(ready.plan.silos[0])
    x = np.zeros(ready.plan.facts.dimension)
    ((_, row),) = rows_of(ready.plan.method, x, data, ready.learner, release=ready.plan.release)
    upper = float((row > 0).mean())
    assert abs(upper - math.exp(0.1) / (1 + math.exp(0.1))) < 5 * 0.5 / math.sqrt(len(x))


@dataclass(frozen=True, kw_only=True)
class MovesTheModel(Foreign):
    """Writes into the model that it is handed, from which the width of ranges is taken."""

    writes: bool = True

    def release(self, facts):
        layers = (Layer(facts.dimension, TwoPoint(epsilon=3.0, radius=0.1)),)
        return LocalPerturbation(facts=facts, layers=layers, follow_model=True)

    def silo(self, x, data, learner, streams):
        sent = np.full((1, len(x)), 0.15)
        if self.writes:
            x[:] = FAR
        yield None, sent


def test_the_width_of_a_range_follows_the_public_model_and_not_what_a_method_makes_of_it():
    data = small_federation().silos[0]
    rows = [
        rows_of(MovesTheModel(writes=writes), np.full(200, 0.05), data, None)[0][1].tobytes()
        for writes in (True, False)
    ]
    assert rows[0] == rows[1]


# --- who asserts the number ---------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class OtherEvent(GaussianSum):
    """One of ours, but for its event."""

    def event(self, silos_heard: int) -> Event:
        return Gaussian(STATED)


@dataclass(frozen=True, kw_only=True)
class OtherNoise(GaussianSum):
    """One of ours, but for the noise that is drawn."""

    @property
    def silo_noise_std(self) -> float:
        return super().silo_noise_std * TRUE / STATED

    def event(self, silos_heard: int) -> Event:
        return with_noise(self.facts, STATED).event(silos_heard)


@dataclass(frozen=True, kw_only=True)
class OtherRows(GaussianSum):
    """One of ours, but for the rows, which nobody clips."""

    def rows(self, method, x, data, learner, streams, secrets):
        return method.silo(x, data, learner, streams)


@dataclass(frozen=True, kw_only=True)
class OwnRelease(Release):
    """Adds noise for sigma = 5, and states 1000."""

    @property
    def privacy_unit(self) -> str:
        return "user"

    @property
    def encoding(self) -> FixedPoint:
        return FixedPoint(limit=1.0)

    @property
    def silo_noise_std(self) -> float:
        return TRUE * self.encoding.integer_limit / math.sqrt(self.facts.silos)

    def rows(self, method, x, data, learner, streams, secrets):
        return method.silo(x, data, learner, streams)

    def event(self, silos_heard: int) -> Event:
        return Gaussian(STATED)


@dataclass(frozen=True, kw_only=True)
class Undecided(OwnRelease):
    """Has no unit while it is asked whose code it is: where there is no guarantee, nobody is named."""

    @property
    def privacy_unit(self) -> str | None:
        return None if {"asserted_by", "background"} & set(_callers()) else "user"


def _callers() -> Iterator[str]:
    frame = inspect.currentframe().f_back
    while frame is not None:
        yield frame.f_code.co_name
        frame = frame.f_back


def on(kind: type[Release], **further):
    def made(self, facts):
        if issubclass(kind, GaussianSum):
            return kind(facts=facts, clip=1.0, noise_multiplier=TRUE, **further)
        return kind(facts=facts, **further)

    return made


class OnOtherEvent(Foreign):
    release = on(OtherEvent)


class OnOtherNoise(Foreign):
    release = on(OtherNoise)


class OnOtherRows(Foreign):
    release = on(OtherRows)


class OnOwnRelease(Foreign):
    release = on(OwnRelease)


class OnUndecided(Foreign):
    release = on(Undecided)


class AlmostOurs(UldpAvg):
    """A method of ours, but for nothing at all."""


class BecomesOurs(Foreign):
    """Turns into one of our methods, onto which it has hung rows of its own."""

    def for_model(self, layers):
        method = UldpAvg(rounds=self.rounds, noise_multiplier=self.noise_multiplier)
        object.__setattr__(method, "silo", lambda x, data, learner, streams: iter([(np.array([0]), pulls(x))]))
        return method


class UnderAnotherName(Foreign):
    """Calls itself what ours is called."""


UnderAnotherName.__module__, UnderAnotherName.__qualname__ = UldpAvg.__module__, UldpAvg.__qualname__


class Reassuring(Foreign):
    """Says of itself that all is proven."""

    def caveats(self, facts):
        return (Caveat("proven", "All of this was proven by uldp.", Severity.WEAKENS),)

    def corrections(self):
        return ("Nothing had to be corrected, all was proven by uldp.",)


def name_of(kind: type) -> str:
    return f"{kind.__module__}:{kind.__qualname__}"


NAMED: dict[type, list[type]] = {
    Foreign: [Foreign],
    LongRows: [LongRows],
    AlmostOurs: [AlmostOurs],
    OnOtherEvent: [OtherEvent, OnOtherEvent],
    OnOtherNoise: [OtherNoise, OnOtherNoise],
    OnOtherRows: [OtherRows, OnOtherRows],
    OnOwnRelease: [OwnRelease, OnOwnRelease],
    OnUndecided: [Undecided, OnUndecided],
    BecomesOurs: [BecomesOurs],
    Reassuring: [Reassuring],
    SendsItself: [SendsItself],
    OneVector: [OneVector],
}


def check_named(statement, names) -> None:
    """The first line of everything that is made of a statement names all of them."""
    first_lines = [
        statement.headline().splitlines()[0],
        reports.summary(statement)[0],
        reports.text(statement)[0],
        statement.to_json()["guarantee"].splitlines()[0],
    ]
    for line in first_lines:
        assert line.lower().startswith("asserted by")
        assert "not proven by uldp" in line.lower()
        for name in names:
            assert name in line
    page = reports.page(statement, "A title")
    headline = page.partition('<p class="headline">')[2].partition("</p>")[0]
    assert headline.startswith("ASSERTED BY") and all(name in headline for name in names)
    assert statement.to_json()["asserted_by"] == list(statement.asserted_by)
    assert set(names) <= set(statement.asserted_by)


@pytest.mark.parametrize("secrets", ["simulated", "os"])
@pytest.mark.parametrize("kind", NAMED, ids=lambda kind: kind.__name__)
def test_the_first_line_names_whose_code_asserts_the_number(tmp_path, kind, secrets):
    names = [name_of(each) for each in NAMED[kind]]
    ready = small(kind, secrets)
    check_named(ready.planned_statement(), names)
    directory = RunDirectory.create(tmp_path / "run", ready.experiment)
    told = []
    result = run(ready, directory, on_round=told.append)
    check_named(result.statement, names)
    sentences = [repr(result), *(report.guarantee for report in told)]
    sentences += [json.dumps(report.to_json()) for report in told]
    assert len(told) == 2
    for sentence in sentences:
        assert "ASSERTED BY " in sentence and all(name in sentence for name in names)
        assert sentence.index("ASSERTED BY ") < sentence.index("DP with epsilon")
    document = result.to_json()["statement"]
    assert document["asserted_by"] == list(result.statement.asserted_by) == names

    written = ("statement.json", "statement.txt", "statement.html", "result.json", "metrics.jsonl")
    files = {name: (tmp_path / "run" / name).read_text() for name in written}
    assert json.loads(files["statement.json"])["asserted_by"] == names
    assert json.loads(files["result.json"])["statement"]["asserted_by"] == names
    assert files["statement.txt"].startswith("ASSERTED BY") and names[0] in files["statement.txt"].splitlines()[0]
    assert all("ASSERTED BY" in line for line in files["metrics.jsonl"].splitlines())
    assert "ASSERTED BY" in files["statement.html"]


def test_who_states_a_thousand_and_adds_five_is_named_and_not_believed():
    """The liar of the title: its number stands there, as its author's."""
    ready = prepared(OnOwnRelease)
    server, totals = rounds_of(ready)
    units = ready.plan.release.encoding.integer_limit
    assert totals[0].std() / units == pytest.approx(TRUE, rel=ERROR)
    assert {entry.event for entry in server.ledger.entries} == {Gaussian(STATED)}
    result = run(ready)
    assert result.epsilon == account({Gaussian(STATED): 2}, 1e-5).value
    check_named(result.statement, [name_of(OwnRelease), name_of(OnOwnRelease)])
    # it says nothing of what others see, so nothing is claimed towards them
    public, server, silo = result.statement.exposures
    assert public.epsilon == result.epsilon and math.isinf(server.epsilon) and math.isinf(silo.epsilon)


def test_a_class_under_a_name_of_ours_is_named_as_the_experiment_names_it():
    asked = f"{__name__}:UnderAnotherName"
    tree = tree_of(Foreign, data={"options": {"records": 60, "features": 5}})
    ready = prepare(Experiment.from_tree({**tree, "method": {"name": asked, "rounds": 2}}))
    check_named(ready.planned_statement(), [asked])
    check_named(run(ready).statement, [asked])


def test_reassuring_words_come_after_the_name():
    lines = reports.summary(small(Reassuring).planned_statement())
    assert "NOT PROVEN BY uldp" in lines[0]
    assert all("All of this" not in line for line in lines[:1])


class WithoutAGuarantee(Foreign):
    def release(self, facts):
        return Unprotected(facts=facts)

    def silo(self, x, data, learner, streams):
        yield None, np.zeros((1, len(x)))


def test_nobody_is_named_where_nothing_is_asserted():
    ready = small(WithoutAGuarantee, privacy={"noise_multiplier": None})
    for statement in (ready.planned_statement(), run(ready).statement):
        assert statement.headline().startswith("No privacy")
        assert statement.asserted_by == ()
        assert reports.summary(statement)[0].startswith("No privacy")


@pytest.mark.parametrize("name", METHODS)
def test_our_own_methods_are_asserted_by_nobody_else(name):
    tree = tree_of(Foreign, data={"options": {"records": 60, "features": 5}})
    tree["method"] = {"name": name, "rounds": 2}
    if METHODS[name].with_defaults.privacy_unit is None or METHODS[name].with_defaults.local:
        tree["privacy"] = {}
    statement = prepare(Experiment.from_tree(tree)).planned_statement()
    assert statement.asserted_by == ()
    assert "ASSERTED" not in "\n".join(reports.text(statement))


class CheapWhileNoiseIsLookedFor(Foreign):
    """Has much noise while it is calibrated, and little when it is used."""

    def release(self, facts):
        return with_noise(facts, STATED if "calibrate" in _callers() else 0.5)


def test_a_budget_is_kept_by_what_would_be_drawn():
    ready = small(CheapWhileNoiseIsLookedFor, privacy={"noise_multiplier": None, "epsilon": 2.0})
    assert ready.planned_statement().epsilon == account({ready.plan.release.event(3): 2}, 1e-5).value > 2.0
    result = run(ready)
    assert result.rounds == 0 and result.epsilon == 0


class SaysItHasNoUnit(Foreign):
    """So that nobody sets its noise."""

    privacy_unit = None


class SaysItPerturbs(Foreign):
    local = True


class SaysItProtects(Foreign):
    privacy_unit = "user"

    def release(self, facts):
        return Unprotected(facts=facts)

    def silo(self, x, data, learner, streams):
        yield None, np.zeros((1, len(x)))


@pytest.mark.parametrize("kind", [SaysItHasNoUnit, SaysItPerturbs, SaysItProtects], ids=lambda kind: kind.__name__)
def test_the_statement_is_about_the_release_whatever_the_method_says_of_itself(kind):
    ready = small(kind, privacy={"noise_multiplier": None if kind is SaysItPerturbs else TRUE})
    for statement in (ready.planned_statement(), run(ready).statement):
        assert not statement.holds and math.isinf(statement.epsilon)
        assert "no privacy" in statement.headline().lower()


class NoNoise(Plain):
    """An aggregation that forgets the noise."""

    def silo(self, context, index, counts, secrets, identity):
        silent = replace(context.release, noise_multiplier=0.0)
        return super().silo(replace(context, release=silent), index, counts, secrets, identity)


def test_an_aggregation_that_adds_the_noise_is_named_too():
    tree = tree_of(Foreign, data={"options": {"records": 60, "features": 5}}, aggregation={"name": name_of(NoNoise)})
    tree["method"] = {"name": "uldp-avg", "rounds": 2}
    ready = prepare(Experiment.from_tree(tree))
    check_named(ready.planned_statement(), [name_of(NoNoise)])
    check_named(run(ready).statement, [name_of(NoNoise)])


def test_the_streams_that_a_method_gets_do_not_tell_the_noise():
    """It is not handed the secrets; and what it is handed is the same whatever they are."""
    seen = []

    class Listens(Foreign):
        def silo(self, x, data, learner, streams):
            seen.append(streams.generator().integers(0, 2**62))
            yield from super().silo(x, data, learner, streams)

    for key in (b"a", b"b"):
        server, silos = make_sessions(
            Listens(noise_multiplier=TRUE, rounds=1), federation_of(COUNTS), secrets=Secrets.from_key(key * 32),
            learner=OwnCoordinates(6),
        )  # fmt: skip
        drive(server, silos)
    assert len(seen) == 6 and seen[:3] == seen[3:]


@dataclass(frozen=True, kw_only=True)
class Raising(Foreign):
    """Fails on somebody's records, and names them."""

    at: str = "silo"

    def release(self, facts: PublicFacts) -> GaussianSum:
        return GaussianSum(facts=facts, clip=1.0, noise_multiplier=TRUE)

    def silo(self, x: Any, data: Any, learner: Any, streams: Any) -> Iterator[Any]:
        if self.at == "silo":
            raise KeyError("patient 17")
        yield from ()

    def server(self, state: State, total: Any, facts: PublicFacts) -> State:
        raise ValueError("patient 17")


@pytest.mark.parametrize(("at", "error"), [("silo", "KeyError"), ("server", "ValueError")])
def test_an_error_in_somebody_s_method_is_one_sentence_without_records(at, error):
    server, silos = make_sessions(Raising(at=at), small_federation())
    with pytest.raises(
        ModelError, match=rf"^method.{at}: .*:Raising raised {error} \(test_foreign_methods.py, line \d+\)$"
    ):
        drive(server, silos)


# --- values that change, lie about their type, or are put where ours stand ------------------------------------------


class CallsItselfABool(TwoFaced):
    """A number for who draws the noise and another one for who accounts for it; it says that it is a bool."""

    __class__ = bool

    def __int__(self):
        return int(TRUE)


class LyingNumber(Foreign):
    def release(self, facts):
        return with_noise(facts, CallsItselfABool(TRUE))


def test_an_object_that_calls_itself_a_bool_becomes_a_plain_number():
    noise = small(LyingNumber).plan.release.noise_multiplier
    assert type(noise) is int and noise == TRUE


class ChangesTheFacts(Foreign):
    """More silos than there are would take a part of the noise away, and of what is stated none."""

    def release(self, facts):
        object.__setattr__(facts, "silos", 100 * facts.silos)
        return with_noise(facts, TRUE)


def test_facts_that_a_method_changed_are_not_the_experiments():
    with pytest.raises(ConfigError, match="its release is made for"):
        small(ChangesTheFacts)


class LooksLikeOurs(type(GaussianSum)):
    """Its classes are equal to ours, for whoever asks by ``==`` or looks into a set."""

    def __eq__(self, other):
        return any(other is one for one in (GaussianSum, UldpAvg, self))

    def __hash__(self):
        return hash(GaussianSum if any(one is GaussianSum for one in self.__mro__) else UldpAvg)


@dataclass(frozen=True, kw_only=True)
class EqualToOurs(GaussianSum, metaclass=LooksLikeOurs):
    def event(self, silos_heard: int) -> Event:
        return Gaussian(STATED)


class OnEqualToOurs(Foreign, metaclass=LooksLikeOurs):
    release = on(EqualToOurs)


def test_classes_that_call_themselves_equal_to_ours_are_named():
    ready = small(OnEqualToOurs)
    assert is_builtin(UldpAvg(noise_multiplier=TRUE)) and not is_builtin(ready.plan.method)
    check_named(ready.planned_statement(), [name_of(EqualToOurs), name_of(OnEqualToOurs)])
    check_named(run(ready).statement, [name_of(EqualToOurs), name_of(OnEqualToOurs)])


class BecomesOursInPlace(Foreign):
    """Changes its own class when it is asked for its rows."""

    def silo(self, x, data, learner, streams):
        object.__setattr__(self, "__class__", UldpAvg)
        yield from Foreign.silo(self, x, data, learner, streams)


class ReachesTheRelease(Foreign):
    """Finds the release that calls it, and hangs an event of its own onto it."""

    def silo(self, x, data, learner, streams):
        for frame in inspect.stack():
            caller = frame.frame.f_locals.get("self")
            if isinstance(caller, GaussianSum):
                object.__setattr__(caller, "event", lambda silos_heard: Gaussian(STATED))
        yield from super().silo(x, data, learner, streams)


@pytest.mark.parametrize("kind", [BecomesOursInPlace, ReachesTheRelease], ids=lambda kind: kind.__name__)
def test_what_a_method_does_to_values_of_ours_happens_under_its_name(kind):
    ready = small(kind)
    check_named(ready.planned_statement(), [name_of(kind)])
    check_named(run(ready).statement, [name_of(kind)])


@dataclass(frozen=True)
class HangsRows(Experiment):
    """An experiment with one of our methods, onto which it hangs rows that nobody asked for."""

    def with_noise(self, noise_multiplier):
        method = super().with_noise(noise_multiplier)
        object.__setattr__(method, "silo", lambda x, data, learner, streams: iter([(np.array([0]), pulls(x))]))
        return method


def test_a_function_that_hangs_on_a_method_of_ours_is_not_called():
    tree = tree_of(Foreign, data={"options": {"records": 60, "features": 5}})
    tree["method"] = {"name": "uldp-avg", "rounds": 2}
    plan = prepare(HangsRows.from_tree(tree)).plan
    assert is_builtin(plan.method) and "silo" not in vars(plan.method)
    assert plan.method.silo.__func__ is UldpAvg.silo


@pytest.mark.parametrize(
    "registry", [METHODS, AGGREGATIONS, LOCAL_MECHANISMS], ids=["methods", "aggregations", "local"]
)
def test_nobody_puts_a_class_of_theirs_among_ours(registry):
    with pytest.raises(TypeError):
        registry["mine"] = Foreign
