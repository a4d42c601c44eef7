"""The privacy statement: which epsilon holds against whom, and what it does not cover. Part of every result.

A statement is composed from the release (what each adversary sees), the aggregation (what else it discloses) and the
ledger. Rendering is in :mod:`uldp.reports.statement`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from uldp.caveats import Caveat, Severity
from uldp.errors import RunError
from uldp.privacy import sentences
from uldp.privacy.accountants import Epsilon, account, account_replace_one
from uldp.privacy.distance import NO_DISTANCE, Distance
from uldp.privacy.events import Composition, Event, LocalReports, flatten
from uldp.privacy.ledger import Ledger, largest
from uldp.privacy.releases import Adversary, LocalPerturbation, NoisedModel, Release, views
from uldp.privacy.sentences import finite_or_infinite, finite_or_none, noise_kind
from uldp.privacy.shuffle import shuffled_run


@dataclass(frozen=True)
class Exposure:
    """One adversary's epsilon, under add/remove and under replace-one adjacency."""

    who: str
    sees: str
    epsilon: float
    replace_one: float
    counts: bool = False
    """Whether this adversary is shown record counts too, in the clear."""

    @property
    def mark(self) -> str:
        """An asterisk beside epsilon if this adversary also sees record counts, which epsilon does not cover."""
        return " *" if self.counts else ""

    def to_json(self) -> dict[str, Any]:
        return {
            "who": self.who,
            "sees": self.sees,
            "sees_counts": self.counts,
            "epsilon": finite_or_none(self.epsilon),
            "epsilon_replace_one": finite_or_none(self.replace_one),
        }

    @classmethod
    def from_json(cls, tree: Mapping[str, Any]) -> Exposure:
        epsilons = (finite_or_infinite(tree["epsilon"]), finite_or_infinite(tree["epsilon_replace_one"]))
        return cls(str(tree["who"]), str(tree["sees"]), *epsilons, bool(tree["sees_counts"]))


@dataclass(frozen=True)
class Disclosure:
    """What an aggregation shows to whom, besides the released models.

    Args:
        name: The aggregation, as statements name it.
        server_sees_each_silo: The server sees each silo's noised sum, not just their total.
        shows_counts: Record counts are shown in the clear.
        silos_know_sample: Silos know which users were sampled in a round.
        silo_pairs_learn: Two silos together learn some users' record totals, and whether these users were sampled.
        secure: The aggregation's keys are large enough to rely on; small ones are for tests.
        shuffles: A shuffler mixes the clients' values before the server sees them.
        required_silos: How many silos a repeated round needs when others do not respond; None without repetitions.
        holdout_metrics: The server sees metrics of held-out users.
        distance: How much the server's view of a round may differ from the mechanism that the event describes.
        security_bits: Of the keys that hide something from the server or the silos; 0 where none do.
        caveats: What else a statement must say about the aggregation.
    """

    name: str
    server_sees_each_silo: bool
    shows_counts: bool
    silos_know_sample: bool
    silo_pairs_learn: bool = False
    secure: bool = True
    shuffles: bool = False
    required_silos: int | None = None
    holdout_metrics: bool = False
    distance: Distance = NO_DISTANCE
    security_bits: int = 0
    caveats: tuple[Caveat, ...] = ()


@dataclass(frozen=True)
class Background:
    """What a statement says about data and method.

    Args:
        caveats: What limits the guarantee.
        corrections: Where the implementation corrects the paper.
        no_guarantee: Why there is no guarantee for these data; empty where there is one.
        hashed_ids: Two people may share a user index.
        asserted_by: Third-party code on which epsilon rests.
    """

    caveats: tuple[Caveat, ...] = ()
    corrections: tuple[str, ...] = ()
    no_guarantee: str = ""
    hashed_ids: bool = False
    asserted_by: tuple[str, ...] = ()


@dataclass(frozen=True)
class Statement:
    """An (epsilon, delta) guarantee in words and numbers. Made by :func:`compose`.

    Args:
        privacy_unit: Whom it protects: ``user``, ``record`` or ``client``; None without a guarantee.
        epsilon: Against anyone who sees the released models.
        delta: The delta for which epsilon was computed.
        accountant: The accountant that computed epsilon.
        rounds: How many rounds were released.
        simulated: Whether the noise was generated from the seed.
        exposures: What each adversary sees, and the epsilon against it.
        caveats: What limits the guarantee.
        no_guarantee: Why there is no guarantee although noise was added; empty where there is one.
        corrections: Where the implementation corrects the paper.
        per_person: For a guarantee about single records: pairs (records, epsilon of a person with that many).
        asserted_by: Third-party code on which epsilon rests.

    Example:
        >>> import uldp
        >>> experiment = uldp.Experiment.from_tree({
        ...     "data": {"dataset": "synthetic", "users": 20, "options": {"records": 200}},
        ...     "method": {"name": "uldp-avg", "rounds": 2}, "privacy": {"noise_multiplier": 5.0}})
        >>> statement = uldp.prepare(experiment).planned_statement()
        >>> statement.holds, statement.privacy_unit, round(statement.epsilon, 2)
        (True, 'user', 1.06)

    ``print(statement)`` shows the whole statement; a notebook shows it as a page.
    """

    privacy_unit: str | None
    epsilon: float
    delta: float
    accountant: str
    rounds: int
    simulated: bool
    exposures: tuple[Exposure, ...]
    caveats: tuple[Caveat, ...]
    no_guarantee: str = ""
    corrections: tuple[str, ...] = ()
    per_person: tuple[tuple[int, float], ...] = ()
    asserted_by: tuple[str, ...] = ()

    def __str__(self) -> str:
        from uldp.reports.statement import text

        return "\n".join(text(self))

    def _repr_html_(self) -> str:
        from uldp.reports.statement import fragment

        return fragment(self)

    @property
    def holds(self) -> bool:
        """Whether there is a guarantee at all."""
        return self.privacy_unit is not None and not self.no_guarantee and math.isfinite(self.epsilon)

    @property
    def noise(self) -> str:
        return noise_kind(simulated=self.simulated)

    def headline(self) -> str:
        """The guarantee in one sentence."""
        return sentences.guarantee(
            self.privacy_unit,
            self.epsilon,
            self.delta,
            simulated=self.simulated,
            no_guarantee=self.no_guarantee,
            scope=sentences.scope(self.privacy_unit, self.rounds, self.accountant),
            asserted_by=self.asserted_by,
        )

    def weakening_caveats(self) -> tuple[Caveat, ...]:
        """Caveats that are printed right below the headline."""
        return tuple(caveat for caveat in self.caveats if caveat.severity is Severity.WEAKENS)

    def other_caveats(self) -> tuple[Caveat, ...]:
        """All other caveats."""
        return tuple(caveat for caveat in self.caveats if caveat.severity is not Severity.WEAKENS)

    def main_caveat(self) -> Caveat | None:
        """The single most important caveat: the first of the most severe ones."""
        return max(self.caveats, key=lambda caveat: caveat.severity, default=None)

    def to_json(self) -> dict[str, Any]:
        """The statement as a plain tree: the content of ``statement.json``."""
        return {
            "guarantee": self.headline(),
            "unit": self.privacy_unit,
            "adjacency": sentences.ADJACENCY.get(self.privacy_unit or "", sentences.ADD_REMOVE_USER),
            "epsilon": finite_or_none(self.epsilon),
            "delta": self.delta,
            "accountant": self.accountant,
            "rounds": self.rounds,
            "noise": self.noise,
            "asserted_by": list(self.asserted_by),
            "no_guarantee": self.no_guarantee,
            "exposures": [exposure.to_json() for exposure in self.exposures],
            "records_per_person": [{"records": n, "epsilon": finite_or_none(e)} for n, e in self.per_person],
            "caveats": [
                {"code": caveat.code, "severity": caveat.severity.name.lower(), "text": caveat.text}
                for caveat in self.caveats
            ],
            "corrections": list(self.corrections),
        }

    @classmethod
    def from_json(cls, tree: Mapping[str, Any]) -> Statement:
        """The statement that :meth:`to_json` wrote.

        Args:
            tree: What it returned.

        Raises:
            RunError: The tree is damaged, or was written by another version of uldp.
        """
        try:
            return cls(
                privacy_unit=None if tree["unit"] is None else str(tree["unit"]),
                epsilon=finite_or_infinite(tree["epsilon"]),
                delta=float(tree["delta"]),
                accountant=str(tree["accountant"]),
                rounds=int(tree["rounds"]),
                simulated=tree["noise"] != noise_kind(simulated=False),
                exposures=tuple(map(Exposure.from_json, tree["exposures"])),
                caveats=tuple(
                    Caveat(str(one["code"]), str(one["text"]), Severity[str(one["severity"]).upper()])
                    for one in tree["caveats"]
                ),
                no_guarantee=str(tree["no_guarantee"]),
                corrections=tuple(map(str, tree["corrections"])),
                per_person=tuple(
                    (int(one["records"]), finite_or_infinite(one["epsilon"])) for one in tree["records_per_person"]
                ),
                asserted_by=tuple(map(str, tree["asserted_by"])),
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            why = "is damaged, or of another version of uldp; restore it, or train again"
            raise RunError(why, location="statement.json") from error


def compose(
    release: Release,
    disclosure: Disclosure,
    ledger: Ledger,
    background: Background,
    *,
    simulated: bool,
    colocated: bool = True,
    silos_heard: Sequence[int] = (),
) -> Statement:
    """Compose the statement about the releases in a ledger.

    Args:
        release: What a round releases.
        disclosure: What the aggregation shows to whom.
        ledger: What was released.
        background: What the statement says about data and method.
        simulated: Whether the noise was generated from the seed.
        colocated: Whether all parties ran in one place, so that one party could see what another one holds.
        silos_heard: How many silos took part in each round; all of them where a round is not listed.

    Returns:
        The statement, for :mod:`uldp.reports.statement` to render.
    """
    facts, unit = release.facts, release.privacy_unit
    no_guarantee = background.no_guarantee if unit is not None else ""
    spent = Epsilon(math.inf, "none") if no_guarantee else ledger.epsilon()
    rounds = Counter(entry.round for entry in ledger.entries)
    releases = list(rounds.values())  # of each round: 1, or more if it was repeated without silos that did not respond
    missing = [facts.silos - silos_heard[round_ - 1] if round_ <= len(silos_heard) else 0 for round_ in rounds]
    guaranteed = unit is not None and not no_guarantee
    per_person = release.per_person() if guaranteed and isinstance(release, NoisedModel) else {}
    context = sentences.CaveatContext(
        release, disclosure, simulated=simulated, colocated=colocated, missing=tuple(missing)
    )
    exposures = exposures_of(release, disclosure, ledger, releases, missing) if guaranteed else ()
    hidden_from = [row.epsilon for row in exposures if not row.who.startswith(sentences.PUBLIC)]
    return Statement(
        privacy_unit=unit,
        epsilon=spent.value,
        delta=ledger.delta,
        accountant=spent.accountant,
        rounds=len(releases),
        simulated=simulated,
        exposures=exposures,
        caveats=(
            *background.caveats,
            *sentences.about_people(release, ledger.delta, hashed_ids=background.hashed_ids and guaranteed),
            *sentences.about_holdout(disclosure),
            *(release.caveats() if guaranteed else ()),
            *sentences.common_caveats(context),
            *sentences.about_large_epsilons(disclosure, hidden_from, ledger.delta),
        ),
        no_guarantee=no_guarantee,
        corrections=background.corrections,
        per_person=tuple((n, account({event: sum(releases)}, ledger.delta).value) for n, event in per_person.items()),
        asserted_by=background.asserted_by if unit is not None else (),
    )


def exposures_of(
    release: Release, disclosure: Disclosure, ledger: Ledger, releases: Sequence[int], missing: Sequence[int] = ()
) -> tuple[Exposure, ...]:
    """Each adversary's epsilon.

    Args:
        release: What a round releases.
        disclosure: What the aggregation shows to whom.
        ledger: What was released.
        releases: How many releases each round made; more than one if it was repeated.
        missing: How many silos did not respond in each round.
    """
    if release.local:
        return _local_exposures(release, disclosure, ledger, sum(releases))
    rows = []
    for who, sees, adversary in adversaries_of(release, disclosure, any_missing=any(missing)):
        # The ledger lists what the public sees. It also serves for an adversary who sees exactly that of every round.
        same_as_public = not any(missing) and release.view(adversary) == release.event(release.facts.silos)
        if same_as_public or adversary == Adversary():
            view = ledger.composition()
        else:
            view = largest(_composed_view(release, adversary, *part) for part in _by_group(ledger, releases, missing))
        distance = disclosure.distance.times(sum(releases)) if adversary.who == "server" else NO_DISTANCE
        epsilon = distance.epsilon(partial(_add_remove_epsilon, view), ledger.delta)
        replace_one = epsilon
        if not release.replace_one:
            replace_one = distance.epsilon(partial(_replace_one_epsilon, view), ledger.delta)
        rows.append(Exposure(who, sees, epsilon, replace_one, _sees_counts(release, disclosure, adversary)))
    return tuple(rows)


def _sees_counts(release: Release, disclosure: Disclosure, adversary: Adversary) -> bool:
    """Whether an adversary learns record counts, besides what is released.

    Silos exchange record counts only for a release that has an ``exchange``.
    """
    if (
        adversary.who == "silos"
        and adversary.colluding > 1
        and disclosure.silo_pairs_learn
        and release.exchange is not None
    ):
        return True
    if adversary.with_silo and release.exchange is not None:
        return True
    return disclosure.shows_counts and adversary.who != "public"


def _add_remove_epsilon(seen: Composition, delta: float) -> float:
    return account(seen, delta).value


def _replace_one_epsilon(seen: Composition, delta: float) -> float:
    """Epsilon under replace-one adjacency, of a release whose event is stated for add/remove adjacency."""
    if any(isinstance(event, LocalReports) for event in flatten(seen)):
        return math.inf  # local reports have this epsilon only where the release declares replace-one adjacency
    return account_replace_one(seen, delta).value


def adversaries_of(
    release: Release, disclosure: Disclosure, *, any_missing: bool = False
) -> list[tuple[str, str, Adversary]]:
    """The adversaries of a statement, one for each of its lines: name, view in words, and the adversary itself."""
    silos, shared, sampling = release.facts.silos, release.shared_noise, release.user_sampling
    server, silo = sentences.seen_in_words(release, disclosure, any_missing=any_missing)
    one = Adversary("silos", knows_sample=disclosure.silos_know_sample)
    found = [
        (sentences.PUBLIC, "the model of every round", Adversary()),
        (
            "the server",
            server,
            Adversary("server", sees_silo_sums=disclosure.server_sees_each_silo, knows_sample=sampling.by_server),
        ),
        ("one silo", silo, one),
    ]
    if silos > 2 and shared:
        colluding = replace(one, colluding=2, knows_sample=disclosure.silos_know_sample or disclosure.silo_pairs_learn)
        found.append(("two colluding silos", sentences.seen_by_two_silos(release, disclosure), colluding))
    if silos > 1 and shared and (sampling.private or (release.exchange is not None and not disclosure.shows_counts)):
        # Together they may learn what is hidden from each of them alone.
        together = Adversary("server", sees_silo_sums=disclosure.server_sees_each_silo, with_silo=True)
        found.append(("the server and one silo", sentences.seen_by_server_and_silo(release), together))
    if silos > 1 and shared:
        found.append((f"{sentences.PUBLIC}, one silo dropped out", "the model of every round", Adversary(dropped=1)))
    return found


def _by_group(
    ledger: Ledger, releases: Sequence[int], missing: Sequence[int]
) -> list[tuple[Sequence[int], Sequence[int]]]:
    """Releases and missing silos of each participation group's rounds; without groups, those of all rounds."""
    groups = list({entry.round: entry.group for entry in ledger.entries}.values())
    if not any(group is not None for group in groups):
        return [(releases, missing)]
    absent = [*missing, *[0] * (len(releases) - len(missing))]
    found: list[tuple[Sequence[int], Sequence[int]]] = []
    for group in dict.fromkeys(group for group in groups if group is not None):
        own = [index for index, whose in enumerate(groups) if whose in (None, group)]
        found.append(([releases[index] for index in own], [absent[index] for index in own]))
    return found


def _composed_view(
    release: Release, adversary: Adversary, releases: Sequence[int], missing: Sequence[int]
) -> Composition:
    """What an adversary sees of several rounds, given the number of releases and of missing silos in each.

    When a round is repeated without a silo, that silo's response to the first attempt may still reach the server. The
    two totals then reveal its noised sum. This is covered: for such a round every silo's noised sum counts as seen.
    """
    seen: Counter[Event] = Counter()
    absent = [*missing, *[0] * (len(releases) - len(missing))]
    for number in sorted(set(absent)):
        view = replace(adversary, dropped=adversary.dropped + number)
        if number and adversary.who == "server":
            view = replace(view, sees_silo_sums=True)
        part = [count for count, silos in zip(releases, absent, strict=True) if silos == number]
        seen.update(views(release, view, part))
    return seen


def _local_exposures(release: Release, disclosure: Disclosure, ledger: Ledger, releases: int) -> tuple[Exposure, ...]:
    """The epsilon against anyone who sees the clients' values and, with a shuffler, that against the server."""
    found = ledger.epsilon().value
    values = "every client's perturbed values"
    event = release.event(release.facts.silos)
    if not (disclosure.shuffles and releases and isinstance(event, LocalReports)):
        return (Exposure("anybody, the server included", values, found, found),)
    clients = release.silo_sampling.per_round(release.facts.silos)
    # A tighter shuffling bound is proven for some mechanisms only, the extremal ones.
    extremal = isinstance(release, LocalPerturbation) and release.extremal
    shuffled = shuffled_run(event.epsilon, clients, event.count, releases, ledger.delta, extremal=extremal).per_run
    return (
        Exposure("the shuffler", values, found, found),
        Exposure("the server", "the clients' perturbed values, shuffled", shuffled, shuffled),
    )
