"""The data owner's last word: what a silo takes part in, and how much its people may face over all experiments.

``policy.toml`` lies with the silo and goes nowhere else::

    max_epsilon = 3.0                     # over all experiments together; without it nothing is capped, only counted
    delta = 1e-6
    allowed_aggregations = ["masked", "paillier"]
    allowed_methods = ["uldp-avg", "uldp-avg-w"]
    allowed_code = []                     # package.module:Name that experiments may run here; without it any
    allow_counts = false                  # whether record counts may be shown in the clear, which no epsilon covers
    allow_metrics = true                  # send sums over hold-out people, which no noise covers and no epsilon counts
    revoked_keys = ["72b35f7a..."]        # public keys, of any silo, with which this one takes part in nothing
    against = ["public", "server", "silos"]

Before a round is computed, its cost is on this silo's own ledger; a round that would pass the cap is refused. What is
charged is the most that a round can show: as few silos as the experiment allows, and a server that saved both attempts
of a repeated round, and under ``lattice`` what encryptions of zero leave in the total that the server decrypts
(:mod:`uldp.privacy.distance`). Every kind of adversary in ``against`` is charged by itself, and the worst counts. As
in the statement, the server is taken to draw samples as agreed: under private sampling nobody can check that it did.

Metrics of hold-out people are not charged, for no epsilon covers them. Without ``allow_metrics`` a silo does not
send them, and the run ends without.
"""

from __future__ import annotations

import json
import math
import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from uldp.aggregation import AGGREGATIONS
from uldp.errors import BudgetExhausted, ConfigError, RunError, did_you_mean, error_context, printable, require
from uldp.experiment.config import AUTO, Experiment
from uldp.experiment.foreign import ForeignCode, foreign_code, read_name
from uldp.experiment.sections import read_section
from uldp.privacy.accountants import account, check_delta
from uldp.privacy.distance import NO_DISTANCE, Distance
from uldp.privacy.events import Composition, Event, NonPrivate, event_from_json, event_to_json
from uldp.privacy.ledger import largest, merge
from uldp.privacy.releases import Adversary, Participation
from uldp.privacy.sentences import finite_or_infinite, finite_or_none
from uldp.runs.files import append_line, read_lines, replace_file
from uldp.sessions.plan import Plan
from uldp.sessions.silo import ReleaseGuard
from uldp.trees import toml_tree

POLICY: Final = "policy.toml"
KNOWN: Final = "policy.known"
"""What the policy was when the silo was started last."""
ADVERSARIES: Final = ("public", "server", "silos")
PROTECTED: Final = ("user", "client")
"""Units under which a whole person is protected."""


class RefusedByOwner(ConfigError):
    """An experiment goes against the policy of a silo's owner."""


@dataclass(frozen=True, kw_only=True)
class Policy:
    """What the owner of a silo's data allows."""

    max_epsilon: float | None = None
    delta: float = 1e-5
    allowed_aggregations: tuple[str, ...] | None = None
    allowed_methods: tuple[str, ...] | None = None
    allowed_code: tuple[str, ...] | None = None
    """Models and methods that are not ours and may be imported for an experiment."""
    allow_counts: bool | None = None
    """Whether experiments may show record counts in the clear; if it is not said: only where nothing is capped."""
    allow_metrics: bool = False
    against: tuple[str, ...] = ADVERSARIES
    revoked_keys: tuple[str, ...] = ()
    """Public keys, of identities or of nodes, that an experiment must not name."""

    def __post_init__(self) -> None:
        check_delta(self.delta)
        cap = self.max_epsilon
        require(cap is None or 0 < cap < math.inf, "policy.max_epsilon", cap, "a positive, finite number")
        for name in self.allowed_aggregations or ():
            if name not in AGGREGATIONS and ":" not in name:
                known = f"some of {', '.join(sorted(AGGREGATIONS))}, not {name!r}{did_you_mean(name, AGGREGATIONS)}"
                raise ConfigError(known, location="policy.allowed_aggregations", value=name)
        for who in self.against:
            if who == "world":
                raise ConfigError("'world' is called 'public' now", location="policy.against", value=who)
            require(who in ADVERSARIES, "policy.against", who, f"some of {', '.join(ADVERSARIES)}")
        if "public" not in self.against:
            raise ConfigError("'public' belongs to it: anyone may see the released models", location="policy.against")

    @classmethod
    def from_file(cls, path: Path | str) -> Policy:
        try:
            tree = toml_tree(Path(path).read_text(encoding="utf-8"))
        except OSError as error:
            raise ConfigError(f"cannot be read: {error.strerror}", location=str(path), value=str(path)) from error
        except ValueError as error:  # also of what is no UTF-8
            raise ConfigError(f"is not valid TOML: {error}", location=str(path)) from error
        with error_context(str(path)):
            return read_section(cls, tree, "policy")

    @classmethod
    def of_silo(cls, state: Path, given: Path | None = None) -> Policy:
        """The policy of the silo with its ledger in ``state``: a file that is named, or the one that lies there.

        A silo that was under a policy does not go on without one by mistake.
        """
        file = state / POLICY if given is None else given
        if given is not None or os.path.lexists(file):  # also a link to a disk that is not there
            return cls.from_file(file)
        if (state / KNOWN).exists():
            raise ConfigError(
                f"this silo was under a policy before; give it with --policy, put it there, or delete {state / KNOWN} "
                "if its owner wants none",
                location=str(file),
            )
        return cls()

    def remember(self, state: Path) -> None:
        """Note in ``state`` that this policy was in force."""
        if self != Policy():
            replace_file(state / KNOWN, (json.dumps(asdict(self), indent=2) + "\n").encode())

    def __str__(self) -> str:
        if self == Policy():
            return "no policy: nothing is capped, only counted"
        cap = "no cap" if self.max_epsilon is None else f"epsilon {self.max_epsilon:g} at delta {self.delta:g}"
        lists = {"aggregations": self.allowed_aggregations, "methods": self.allowed_methods}
        lists["foreign code"] = self.allowed_code
        limits = [f"{what} {', '.join(names) or 'none'}" for what, names in lists.items() if names is not None]
        counts = f"record counts may {'' if self.shows_counts else 'not '}be shown"
        metrics = "metrics of hold-out people are sent" if self.allow_metrics else "no metrics of hold-out people"
        return "policy: " + ", ".join([f"{cap} against {', '.join(self.against)}", *limits, counts, metrics])

    @property
    def shows_counts(self) -> bool:
        """Whether experiments may show record counts in the clear."""
        return self.max_epsilon is None if self.allow_counts is None else self.allow_counts

    def check(self, experiment: Experiment, plan: Plan, no_guarantee: str = "") -> None:
        """Refuse an experiment that goes against the policy already by itself."""
        self.check_names(experiment.to_tree())
        if experiment.aggregation.name == AUTO:
            self._check_allowed("aggregations", plan.aggregation.name)
        if plan.shows_counts and not self.shows_counts:
            raise RefusedByOwner(
                "the experiment shows record counts in the clear, which no epsilon covers; take aggregation.name = "
                "'lattice' or a method that does not weigh by records, or say allow_counts = true",
                location="policy.allow_counts",
            )
        views, cap = views_of_a_round(plan, no_guarantee), self.max_epsilon
        rounds = plan.release.participation.rounds_of_a_user(plan.rounds)
        for who in self.against:
            cost = _epsilon(who, {views[who]: rounds}, plan.disclosure.distance.times(plan.rounds), self.delta)
            if cap is not None and cost > cap:
                raise RefusedByOwner(
                    f"this silo's owner allows epsilon {cap:g} at delta {self.delta:g}; the experiment would cost "
                    f"{_number(cost)} towards the {who}",
                    location="policy.max_epsilon",
                    value=cap,
                )

    def check_names(self, tree: Any) -> None:
        """Refuse an experiment's tree by what it names, before any of it is imported."""
        if method := read_name(tree, "method"):
            self._check_allowed("methods", method)
        name = read_name(tree, "aggregation") or AUTO
        if name != AUTO:  # which takes one of ours; which one, the plan says
            self._check_allowed("aggregations", name)
        for code in foreign_code(tree):
            self._check_allowed("code", code.name)
        self._check_keys(tree)

    def _check_keys(self, tree: Any) -> None:
        """Refuse an experiment with a key that the owner knows to be in other hands."""
        revoked = {_key_words(key) for key in self.revoked_keys}
        for section, key in (("aggregation", "identities"), ("deployment", "nodes")):
            part = tree.get(section) if isinstance(tree, Mapping) else None
            named = part.get(key) if isinstance(part, Mapping) else None
            for silo, public in named.items() if isinstance(named, Mapping) else ():
                if isinstance(public, str) and _key_words(public) in revoked:
                    where = f"{section}.{key}.{printable(str(silo))}"
                    why = f"the experiment has a revoked key as {where}; the silo needs a new one"
                    raise RefusedByOwner(why, location="policy.revoked_keys", value=public)

    def allows(self, code: Sequence[ForeignCode]) -> bool:
        """Whether the owner has named all of it."""
        return all(one.name in (self.allowed_code or ()) for one in code)

    def _check_allowed(self, key: str, name: str) -> None:
        allowed = getattr(self, f"allowed_{key}")
        if allowed is not None and name not in allowed:
            why = f"this silo's owner allows {', '.join(allowed) or 'none'}, the experiment has {name}"
            raise RefusedByOwner(why, location=f"policy.allowed_{key}", value=name)


def _key_words(key: str) -> tuple[str, ...]:
    """A public key without the remark that OpenSSH puts after it."""
    words = key.split()[:2]
    return tuple(words) if len(words) == 2 else (key.strip().lower(),)


def views_of_a_round(plan: Plan, no_guarantee: str = "") -> dict[str, Event]:
    """The most that one round can show to each kind of adversary, whichever silos respond in the end."""
    release, disclosure = plan.release, plan.disclosure
    if release.privacy_unit not in PROTECTED or no_guarantee:
        return {who: NonPrivate() for who in ADVERSARIES}
    gone = plan.facts.silos - plan.required_silos
    sums = disclosure.server_sees_each_silo or plan.may_repeat
    sample = release.user_sampling.by_server
    return {
        "public": release.view(Adversary(dropped=gone)),
        "server": release.view(Adversary("server", dropped=gone, sees_silo_sums=sums, knows_sample=sample)),
        "silos": release.view(Adversary("silos", dropped=gone, knows_sample=disclosure.silos_know_sample)),
    }


def _epsilon(who: str, seen: Composition, distance: Distance, delta: float) -> float:
    """Epsilon of what an adversary saw. Only the server's view is at a ``distance`` from what its events describe."""
    apart = distance if who == "server" else NO_DISTANCE
    return apart.epsilon(lambda at: account(seen, at).value, delta)


@dataclass(frozen=True)
class Charge:
    """One round's release. ``session`` distinguishes runs of the same experiment, ``content`` their requests."""

    experiment: str
    session: str
    round: int
    content: str
    events: Mapping[str, Event] = field(compare=False)
    group: int | None = field(default=None, compare=False)
    """The group of users whose records were read, where they take turns; None for everybody."""
    response: str = field(default="", compare=False)
    """A digest of the noised sum that was made of it; empty while it is computed."""
    distance: Distance = field(default=NO_DISTANCE, compare=False)
    """How far the server's view may be from its event, under the aggregation of the experiment."""

    @property
    def key(self) -> tuple[str, str, int, str]:
        return (self.experiment, self.session, self.round, self.content)

    def to_json(self) -> dict[str, Any]:
        events = {who: event_to_json(event) for who, event in self.events.items()}
        about = {"experiment": self.experiment, "session": self.session, "round": self.round}
        group = {} if self.group is None else {"group": self.group}
        distance = {} if self.distance == NO_DISTANCE else {"distance": _distance_to_json(self.distance)}
        return {**about, **group, "content": self.content, "answer": self.response, "events": events, **distance}

    @classmethod
    def from_json(cls, tree: Mapping[str, Any], location: str) -> Charge:
        try:
            found = tree["events"]
            if "world" in found:  # what earlier versions called the public; what was spent then stays spent
                found = {**found, "public": found["world"]}
            events = {who: event_from_json(found[who]) for who in ADVERSARIES}
            key = (str(tree["experiment"]), str(tree["session"]), int(tree["round"]), str(tree["content"]))
            group = None if tree.get("group") is None else int(tree["group"])
            return cls(*key, events, group, str(tree.get("answer", "")), _distance_from_json(tree.get("distance")))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise RunError(f"cannot read the entry {tree!r}", location=location) from error


def _distance_to_json(distance: Distance) -> dict[str, float | None]:
    return {"statistical": distance.statistical, "shift": finite_or_none(distance.shift)}


def _distance_from_json(tree: Mapping[str, Any] | None) -> Distance:
    if tree is None:  # of aggregations without one, and of versions that did not write it down
        return NO_DISTANCE
    distance = Distance(float(tree["statistical"]), finite_or_infinite(tree["shift"]))
    if not (0 <= distance.statistical < math.inf and distance.shift >= 0):
        raise ValueError("a distance is from 0 up")
    return distance


def _released_events(charges: Sequence[Charge], group: int | None, who: str) -> Counter[Event]:
    """What an experiment showed an adversary about the users of a group."""
    # Whatever the session: two responses to one round share the round's sample.
    rounds: dict[int, list[Event]] = {}
    for charge in charges:
        if charge.group in (None, group):
            rounds.setdefault(charge.round, []).append(charge.events[who])
    return Counter(event for events in rounds.values() for event in merge(events))


class OwnLedger:
    """What a silo has released in all experiments; on disk before anything is computed.

    ``on_write`` is called with every charge, once it is written.
    """

    def __init__(self, file: Path, policy: Policy, on_write: Callable[[Charge], None] = lambda charge: None) -> None:
        self._file = file
        self._policy = policy
        self._on_write = on_write
        charges = [Charge.from_json(line, str(file)) for line in read_lines(file)]
        self._charges = {charge.key: charge for charge in charges}

    @property
    def charges(self) -> tuple[Charge, ...]:
        return tuple(self._charges.values())

    def epsilon(self, *further: Charge) -> float:
        """What has been spent towards the worst adversary, with ``further`` releases."""
        worst, distance = 0.0, NO_DISTANCE
        by_experiment: dict[str, list[Charge]] = {}
        for charge in {**self._charges, **{one.key: one for one in further}}.values():
            by_experiment.setdefault(charge.experiment, []).append(charge)
            distance += charge.distance
        for who in self._policy.against:
            seen: Counter[Event] = Counter()
            for charges in by_experiment.values():
                groups = {charge.group for charge in charges} - {None} or {None}
                seen.update(largest(_released_events(charges, group, who) for group in groups))
            worst = max(worst, _epsilon(who, seen, distance, self._policy.delta) if seen else 0.0)
        return worst

    def check_affords(self, planned: Sequence[Charge], what: str, nothing: str) -> None:
        """Refuse what would pass the cap together with all that was spent before."""
        cap = self._policy.max_epsilon
        if cap is not None and (needed := self.epsilon(*planned)) > cap:
            raise BudgetExhausted(
                f"{what} would raise epsilon over all experiments with this silo from {_number(self.epsilon())} to "
                f"{_number(needed)}, its owner allows {cap:g}; {nothing}",
                location="policy.max_epsilon",
                value=cap,
            )

    def charge(self, charge: Charge) -> None:
        """Write ``charge`` down, unless it was before; refused if it would pass the cap."""
        if charge.key not in self._charges:
            self.check_affords([charge], f"round {charge.round}", "nothing was released")
            self._write(charge)

    def settle(self, charge: Charge) -> None:
        """Write down what a charged round came to. Another response to the same request is refused: it would be a
        second release, under the same masks."""
        before = self._charges[charge.key].response
        if before not in ("", charge.response):
            raise RunError(
                f"round {charge.round} comes out otherwise than when it was released before, as on another machine; go "
                "on where it was begun",
                location=str(self._file),
            )
        if not before:
            self._write(charge)

    def _write(self, charge: Charge) -> None:
        append_line(self._file, charge.to_json(), mode=0o600)
        self._charges[charge.key] = charge
        self._on_write(charge)


def describe_spending(ledger: OwnLedger) -> str:
    """What was spent, for people."""
    runs = len({charge.experiment for charge in ledger.charges})
    return f"epsilon {_number(ledger.epsilon())} spent so far in {runs} experiment{'' if runs == 1 else 's'}"


@dataclass(frozen=True)
class LedgerGuard(ReleaseGuard):
    """Charges a silo's own ledger for the rounds of one run."""

    ledger: OwnLedger
    experiment: str
    session: str
    views: Mapping[str, Event]
    participation: Participation = field(default_factory=Participation)
    distance: Distance = NO_DISTANCE

    @classmethod
    def of(cls, ledger: OwnLedger, plan: Plan, session: str, no_guarantee: str = "") -> LedgerGuard:
        """The guard of a run under ``plan``."""
        views, turns = views_of_a_round(plan, no_guarantee), plan.release.participation
        return cls(ledger, plan.digest, session, views, turns, plan.disclosure.distance)

    def before_round(self, round_: int, request: str) -> None:
        self.ledger.charge(self._charge(round_, request))

    def before_response(self, round_: int, request: str, content: str) -> None:
        self.ledger.settle(self._charge(round_, request, content))

    def _charge(self, round_: int, request: str, response: str = "") -> Charge:
        group = self.participation.group(round_)
        return Charge(self.experiment, self.session, round_, request, self.views, group, response, self.distance)

    def check(self, round_: int | None, rounds: int) -> None:
        """Refuse a ledger that does not fit a session at ``round_`` (None: that was never saved), and a new experiment
        that would pass the cap before its end."""
        here = [charge for charge in self.ledger.charges if charge.experiment == self.experiment]
        if round_ is None and here:  # also with other secrets: they would make new noise for the same rounds
            why = "this silo has responded in the experiment, and its session is gone; start a new experiment"
            raise RunError(why, location="session.bin")
        if round_ and round_ not in {charge.round for charge in here if charge.session == self.session}:
            raise RunError(
                f"the silo's ledger does not hold round {round_}, which was released; restore it: without it nobody "
                "knows what was spent",
                location="ledger.jsonl",
            )
        if round_ is None:
            planned = [self._charge(number, "planned") for number in range(1, rounds + 1)]
            self.ledger.check_affords(planned, "the experiment", "it was not begun")


def _number(epsilon: float) -> str:
    return f"{epsilon:.4g}" if math.isfinite(epsilon) else "without bound"
