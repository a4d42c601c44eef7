"""The sentences of a privacy statement, each written once."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from uldp.caveats import Caveat, Severity
from uldp.privacy.releases import Release

if TYPE_CHECKING:
    from uldp.privacy.statement import Disclosure

PUBLIC: Final = "anyone who sees the released models"
NOT_SECRET: Final = "NOT A GUARANTEE FOR THIS RUN: the noise was generated from run.seed"
COUNTS_MARK: Final = "* of the noised numbers. Record counts are seen besides, and no epsilon covers those."
ADD_REMOVE_USER: Final = "add or remove all records of one user, |U| public"
ADJACENCY: Final = {
    "record": "add or remove one record, |U| public",
    "client": "replace all records of one client",
}
MIN_HOLDOUT_PEOPLE: Final = 10
"""A silo that holds out fewer people reports nothing about them."""


def show_epsilon(epsilon: float) -> str:
    """Epsilon for people.

    >>> show_epsilon(9.99726), show_epsilon(math.inf)
    ('9.997', 'infinite')
    """
    return f"{epsilon:.4g}" if math.isfinite(epsilon) else "infinite"


def finite_or_none(value: float) -> float | None:
    """JSON has no infinity: null stands for "no bound"."""
    return value if math.isfinite(value) else None


def finite_or_infinite(value: float | None) -> float:
    """What :func:`finite_or_none` wrote."""
    return math.inf if value is None else float(value)


def noise_kind(*, simulated: bool) -> str:
    """What ``noise`` says beside every epsilon of a run: anyone who knows the seed can compute simulated noise."""
    return "simulated" if simulated else "secret"


def guarantee(
    unit: str | None,
    epsilon: float,
    delta: float,
    *,
    simulated: bool,
    no_guarantee: str = "",
    scope: str = "",
    asserted_by: Sequence[str] = (),
) -> str:
    """An epsilon in words, as it stands beside the number wherever a run's epsilon is written down.

    >>> guarantee("user", 2.5, 1e-5, simulated=False)
    'User-level DP with epsilon 2.5 at delta 1e-05.'
    >>> guarantee("user", 2.5, 1e-5, simulated=True).partition(". ")[0]
    'NOT A GUARANTEE FOR THIS RUN: the noise was generated from run.seed'
    >>> guarantee("user", 2.5, 1e-5, simulated=False, asserted_by=["ward.methods:Own"]).partition(": ")[0]
    'ASSERTED BY ward.methods:Own, NOT PROVEN BY uldp'
    """
    if unit is None:
        return "No privacy: this method bounds nobody's influence and adds no noise."
    if no_guarantee:
        return f"NO GUARANTEE: {no_guarantee}."
    if math.isinf(epsilon):
        return "NO PRIVACY: the noise is zero, so epsilon is infinite."
    kind = "Client-level local DP" if unit == "client" else f"{unit.capitalize()}-level DP"
    words = f"{kind} with epsilon {epsilon:.4g} at delta {delta:g}{scope}."
    words = f"{NOT_SECRET}. With secret noise it would be: {words}" if simulated else words
    return f"{assertion(asserted_by)} {words}" if asserted_by else words


def assertion(by: Sequence[str]) -> str:
    """The third-party code that a number rests on. It precedes everything else."""
    return f"ASSERTED BY {', '.join(by)}, NOT PROVEN BY uldp:"


def scope(unit: str | None, rounds: int, accountant: str) -> str:
    """Against whom the guarantee is, and about what."""
    if unit == "client":
        return (
            f" against everybody, the server included: all records of any one client could have been others "
            f"({rounds} rounds, {accountant})"
        )
    what = "all records of any one user, in all silos together," if unit == "user" else "any one record"
    return f" against {PUBLIC}: {what} could have been left out (add/remove, {rounds} rounds, {accountant})"


def seen_in_words(release: Release, disclosure: Disclosure, *, any_missing: bool) -> tuple[str, str]:
    """What the server and a silo see, in words."""
    kind = "sum" if release.shared_noise else "model"
    server = f"each silo's noised {kind}" if disclosure.server_sees_each_silo else "the noised total"
    server += f" ({disclosure.name} aggregation)"
    silo = "the model of every round" + (" and its own share of the noise" if release.shared_noise else "")
    if any_missing and not disclosure.server_sees_each_silo:
        server += " and, of rounds that were repeated without a silo, at worst each silo's noised sum"
    if release.user_sampling.by_server:
        server += " and the sample"
        silo += " and the sample" if disclosure.silos_know_sample else ""
    if disclosure.shows_counts and release.exchange is not None:
        server += f"; and, in the clear, {release.exchange.shown_to_server}, which no epsilon covers"
        silo += f"; and, in the clear, {release.exchange.shown_to_silos}, which no epsilon covers"
    return server, silo


def seen_by_two_silos(release: Release, disclosure: Disclosure) -> str:
    """What two silos that collude see, in words."""
    words = "the same, and each other's shares of the noise"
    if not disclosure.silo_pairs_learn:
        return words
    if not release.user_sampling.everybody:
        words += " and, of users whose table they share, the sample"
    if release.exchange is not None:
        words += "; and the record totals of users whose table they share, which no epsilon covers"
    return words


def seen_by_server_and_silo(release: Release) -> str:
    """What the server and a silo that collude see, in words, where each alone is kept from some of it."""
    words = "what both see" + ("" if release.user_sampling.everybody else ", and the sample")
    return words if release.exchange is None else f"{words}; and everybody's record totals, which no epsilon covers"


def about_people(release: Release, delta: float, *, hashed_ids: bool) -> list[Caveat]:
    """What weakens the headline: shared user indices, a delta that is too large."""
    lines = []
    if hashed_ids and release.privacy_unit == "user":
        text = (
            "Ids are hashed, so two people may share a bucket. For them the larger numbers hold, those of replace-one "
            "adjacency."
        )
        lines.append(Caveat("shared-buckets", text, Severity.WEAKENS))
    if release.privacy_unit == "user" and delta * release.facts.users >= 1:
        text = f"delta {delta:g} is not below 1/|U|: it permits revealing one user outright."
        lines.append(Caveat("large-delta", text, Severity.WEAKENS))
    return lines


def about_holdout(disclosure: Disclosure) -> list[Caveat]:
    """What must be said where silos measure the model on people whom they hold out."""
    if not disclosure.holdout_metrics:
        return []
    server = "each silo's sums" if disclosure.server_sees_each_silo else "the totals over all silos (under masks)"
    text = (
        "Metrics of hold-out people are outside the guarantee: sums of their losses and hits (or errors) and the "
        f"number of their records, without noise, at the last model. The server sees {server}, the public the means "
        "and the number of records, and a silo can subtract its own part. They are asked for once in a run; a silo "
        f"that holds out fewer than {MIN_HOLDOUT_PEOPLE} people counts none of them, and if a silo does not respond "
        "there are no metrics. Hold-out people take no part in training (where a silo brings a file of its own: in "
        "that silo). Two runs whose hold-outs differ by one person show that person's loss."
    )
    return [Caveat("holdout-metrics", text, Severity.WEAKENS)]


def about_large_epsilons(disclosure: Disclosure, epsilons: Sequence[float], delta: float) -> list[Caveat]:
    """What must be said where e^epsilon outweighs the security of keys (docs/decisions/0019, Zeros).

    Args:
        disclosure: What the aggregation shows to whom.
        epsilons: Those against adversaries from whom keys hide something.
        delta: The delta that they hold at.

    Returns:
        One caveat if some finite epsilon is so large: an advantage of 2^-bits against the keys counts e^epsilon times.
    """
    limit = disclosure.security_bits * math.log(2) + math.log(delta)
    if not disclosure.security_bits or not any(limit < epsilon < math.inf for epsilon in epsilons):
        return []
    text = (
        f"An epsilon above {math.floor(limit)} towards the server or the silos is a weaker claim: no feasible "
        "computation tells what they see from something that has this epsilon. It is no bound on the probabilities of "
        f"what they see, for e^epsilon outweighs the {disclosure.security_bits} bits of security of the keys."
    )
    return [Caveat("large-epsilon", text, Severity.LIMITS)]


@dataclass(frozen=True)
class CaveatContext:
    """What the common caveats depend on. ``missing``: how many silos were missing in each round."""

    release: Release
    disclosure: Disclosure
    simulated: bool
    colocated: bool
    missing: tuple[int, ...] = ()


def common_caveats(about: CaveatContext) -> list[Caveat]:
    """What has to be said of every method with a guarantee."""
    if about.release.privacy_unit is None:
        return []
    return [
        *_counts_and_sample(about),
        *_noise(about),
        *_missing_silos(about),
        *about.disclosure.caveats,
        *_trust(about),
        Caveat(
            "not-covered",
            "Not covered: test metrics (computed on the test records without noise) and times, choices made after "
            "looking at them, a silo's refusal to start, and further runs on the same data, which add up.",
        ),
    ]


def _counts_and_sample(about: CaveatContext) -> list[Caveat]:
    release, disclosure, lines = about.release, about.disclosure, []
    if disclosure.shows_counts:
        hidden = ' aggregation.name = "lattice" hides them where it fits.' if release.user_weighting is not None else ""
        text = (
            "Record counts are exchanged in the clear: towards the server and the silos there is no user-level "
            f"guarantee about presence.{hidden}"
        )
        lines.append(Caveat("counts-shown", text, Severity.LIMITS))
    sampling, groups = release.user_sampling, release.participation.groups
    if groups > 1:
        text = (
            f"People take turns in {groups} fixed groups (method.participation_groups), which everybody may know: a "
            "person's records are read in the rounds of one group only, and epsilon is that of the group with most of "
            "them. Nothing is amplified by it."
        )
        return [*lines, Caveat("participation-groups", text)]
    if sampling.everybody or release.privacy_unit != "user":
        return lines
    if sampling.private:
        chosen, slots = sampling.slots
        who = "neither the server nor a silo" if disclosure.secure else "not even the server"
        text = (
            f"Users are sampled in private, with probability {chosen}/{slots}: {who} knows who was. Besides "
            "the totals they see how long things take, and whether a party refuses. The server and a silo that "
            "collude know the sample."
        )
        return [*lines, Caveat("private-sample", text)]
    who = "The server and the silos know" if disclosure.silos_know_sample else "The server (but no silo) knows"
    limit = " (method.max_participations would bound it)"
    if sampling.max_participations:
        limit = f"; but nobody takes part in more than {sampling.max_participations} rounds (method.max_participations)"
    text = f"{who} which users were sampled, so sub-sampling does not lower epsilon towards them{limit}."
    return [*lines, Caveat("sample-known", text, Severity.LIMITS)]


def _noise(about: CaveatContext) -> list[Caveat]:
    if not about.simulated:
        return []
    text = (
        "The noise is simulated from the seed: anyone who knows run.seed can subtract it. "
        'Set run.secrets = "os" before a model trained on real data is released.'
    )
    return [Caveat("simulated-noise", text)]


def _missing_silos(about: CaveatContext) -> list[Caveat]:
    """What follows from silos that may leave a round, or did."""
    lines, disclosure = [], about.disclosure
    if any(about.missing):
        rounds = sum(number > 0 for number in about.missing)
        text = (
            f"Silos were missing in {rounds} of {len(about.missing)} rounds, and their noise with them; the numbers "
            "count it."
        )
        lines.append(Caveat("silos-missing", text))
    if not about.colocated and disclosure.required_silos is not None and not disclosure.server_sees_each_silo:
        text = (
            "A round may be repeated without silos that do not answer. A server that lies about who is missing learns "
            "single silos' noised sums, as under plain; all that limits it is that at least "
            f"{disclosure.required_silos} of {about.release.facts.silos} silos take part (aggregation.min_silos)."
        )
        lines.append(Caveat("repeated-rounds", text, Severity.LIMITS))
    return lines


def _trust(about: CaveatContext) -> list[Caveat]:
    """What is assumed of the parties."""
    release, disclosure, lines = about.release, about.disclosure, []
    if about.colocated and (not disclosure.server_sees_each_silo or disclosure.shuffles):
        keys = " from the seed" if about.simulated else ""
        text = (
            f"All parties ran in one place, which made the silos' keys{keys}: what is said of the server and of single "
            "silos holds where each of them runs on its own."
        )
        lines.append(Caveat("one-place", text))
    if release.local and disclosure.shuffles:
        text = (
            "Assumed for the local numbers: the client itself perturbs as it should. The server's number also assumes "
            "that the shuffler mixes honestly, and that the other clients of the round perturb as they should and tell "
            "the server nothing: those who do not, do not count as clients."
        )
    elif release.local:
        text = "Assumed: the client itself perturbs as it should. Nobody else need be trusted."
    else:
        noise = "adds its share of the noise" if release.shared_noise else "adds its noise"
        text = (
            f"Assumed: the server and the silos follow the protocol, every silo {noise}, and the server and silos do "
            "not collude."
        )
    return [*lines, Caveat("assumed", text)]
