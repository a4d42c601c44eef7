"""What a round releases, as data: a release states events, an accountant turns them into an epsilon."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from uldp.errors import ConfigError, require
from uldp.limits import check_whole


@dataclass(frozen=True)
class Gaussian:
    """A sum with sensitivity 1 and Gaussian noise.

    Args:
        noise_multiplier: The standard deviation of the noise.

    Raises:
        ConfigError: It is not positive and finite.

    Example:
        >>> from uldp.privacy.accountants import account
        >>> round(account({Gaussian(5.0): 20}, delta=1e-5).value, 3)
        3.849
    """

    noise_multiplier: float

    def __post_init__(self) -> None:
        require(0 < self.noise_multiplier < math.inf, "noise_multiplier", self.noise_multiplier, "a positive number")


@dataclass(frozen=True)
class PoissonSampled:
    """``event`` on a Poisson sample.

    Args:
        sample_rate: The probability with which each user is in the sample, independently.
        event: What is released of the sample.

    Raises:
        ConfigError: The rate is no probability above 0.

    Example:
        >>> PoissonSampled(0.1, Gaussian(5.0)).sample_rate
        0.1
    """

    sample_rate: float
    event: Gaussian

    def __post_init__(self) -> None:
        require(0 < self.sample_rate <= 1, "sample_rate", self.sample_rate, "a probability above 0 and at most 1")


@dataclass(frozen=True)
class Group:
    """A release of records, for a user who has several of them: a step of DP-SGD.

    Args:
        size: k, how many records one user has at most.
        event: What is released: every record's gradient is clipped to 1, each record is sampled by itself.
        at_most: How many of a user's sampled records count at most; None for all.

    Raises:
        ConfigError: A size below 1, or an event of another kind.

    Example:
        >>> Group(8, PoissonSampled(0.01, Gaussian(5.0))).size
        8
    """

    size: int
    event: Gaussian | PoissonSampled
    at_most: int | None = None

    def __post_init__(self) -> None:
        check_whole(self.size, 1, None, "group size")
        if self.at_most is not None:
            check_whole(self.at_most, 1, None, "largest group")
        if not isinstance(self.event, Gaussian | PoissonSampled):
            raise ConfigError(f"a group is of single releases, not of {self.event}", location="event")

    def __hash__(self) -> int:
        # The hash of None is another one in every process; with it the order of sums would be, and their last digits.
        return hash((self.size, self.event, self.at_most or 0))


@dataclass(frozen=True)
class Repeated:
    """Several releases within a round, each with its own sample and noise (adaptive composition).

    Args:
        times: How many.
        event: Each of them.

    Raises:
        ConfigError: Fewer than 1.

    Example:
        >>> Repeated(100, Group(8, PoissonSampled(0.01, Gaussian(5.0)))).times
        100
    """

    times: int
    event: Event

    def __post_init__(self) -> None:
        check_whole(self.times, 1, None, "times")


@dataclass(frozen=True)
class Joint:
    """One release with two parts: what a user contributes in any case, and what they contribute when sampled.

    The noise is the sum of two independent parts too, so the release is a function of both: their composition.
    """

    always: Gaussian
    sampled: PoissonSampled

    def __post_init__(self) -> None:
        if not isinstance(self.always, Gaussian) or not isinstance(self.sampled, PoissonSampled):
            raise ConfigError(f"a Gaussian and a sampled one, not {self.always}, {self.sampled}", location="event")


MAX_SPLITS: Final = 5_000
"""In how many ways the records of a user may be spread over silos, so that each way is accounted for by itself."""


@dataclass(frozen=True)
class Spread:
    """Steps of DP-SGD in silos that sample at rates of their own, for a user whose records lie in any of them.

    Args:
        size: k, how many records one user has at most over all silos.
        silos: For each silo, how many steps it takes, and what a step releases about one record.

    Raises:
        ConfigError: A size below 1, or an event of another kind.

    Example:
        >>> few, many = PoissonSampled(0.1, Gaussian(5.0)), PoissonSampled(0.02, Gaussian(5.0))
        >>> [len(way) for way in Spread(2, ((10, few), (50, many))).ways()]
        [1, 2, 1]
    """

    size: int
    silos: tuple[tuple[int, Gaussian | PoissonSampled], ...]

    def __post_init__(self) -> None:
        check_whole(self.size, 1, None, "group size")
        for steps, event in self.silos:
            check_whole(steps, 1, None, "steps")
            if not isinstance(event, Gaussian | PoissonSampled):
                raise ConfigError(f"steps on single records, not {event}", location="event")

    def ways(self) -> list[dict[Event, int]]:
        """How the records may lie: a composition for each way, or with too many ways the one that bounds them all."""
        if math.comb(self.size + len(self.silos) - 1, self.size) > MAX_SPLITS:
            return [self.everywhere()]
        return [self._composition(sizes) for sizes in _splits(self.size, len(self.silos))]

    def everywhere(self) -> dict[Event, int]:
        """All of the user's records in every silo at once: fewer records in a silo never show more."""
        return self._composition((self.size,) * len(self.silos))

    def _composition(self, sizes: tuple[int, ...]) -> dict[Event, int]:
        found: Counter[Event] = Counter()
        for size, (steps, event) in zip(sizes, self.silos, strict=True):
            if size:
                found[Group(size, event)] += steps
        return dict(found)


def _splits(records: int, silos: int) -> Iterator[tuple[int, ...]]:
    """All ways to spread records over silos."""
    if silos == 1:
        yield (records,)
        return
    for first in range(records, -1, -1):
        for rest in _splits(records - first, silos - 1):
            yield (first, *rest)


@dataclass(frozen=True)
class LocalReports:
    """Values that one client perturbed itself, each under pure local DP.

    Args:
        epsilon: The epsilon of one value.
        count: How many values.

    Raises:
        ConfigError: A number that is not positive.

    Example:
        >>> LocalReports(epsilon=2.0, count=100).count
        100
    """

    epsilon: float
    count: int

    def __post_init__(self) -> None:
        check_whole(self.count, 1, None, "count")
        require(0 < self.epsilon < math.inf, "epsilon", self.epsilon, "a positive number")


@dataclass(frozen=True)
class NonPrivate:
    """A release without any guarantee: its epsilon is infinite.

    Example:
        >>> sampled_gaussian(noise_multiplier=0.0)
        NonPrivate()
    """


NoisedSum = Gaussian | PoissonSampled | Group
"""One release of a sum with Gaussian noise."""

Single = NoisedSum | LocalReports | NonPrivate
"""An event without repetitions."""

Event = Single | Repeated | Joint | Spread

Composition = Mapping[Event, int]
"""Events and how often each happened; equal events are merged before anything is computed."""


def sampled_gaussian(noise_multiplier: float, sample_rate: float = 1.0) -> Gaussian | PoissonSampled | NonPrivate:
    """The event of a noised sum, Poisson-sampled if the rate is below 1; without noise :class:`NonPrivate`."""
    if noise_multiplier == 0:
        return NonPrivate()
    event = Gaussian(noise_multiplier)
    return event if sample_rate == 1 else PoissonSampled(sample_rate, event)


def dp_sgd(noise_multiplier: float, sample_rate: float, steps: int, group_size: int) -> Event:
    """The event of ``steps`` steps of DP-SGD on records of which one user owns at most ``group_size``.

    >>> dp_sgd(5.0, 0.01, 100, 8) == Repeated(100, Group(8, PoissonSampled(0.01, Gaussian(5.0))))
    True
    """
    event = sampled_gaussian(noise_multiplier, sample_rate)
    return event if isinstance(event, NonPrivate) else Repeated(steps, Group(group_size, event))


@dataclass(frozen=True)
class Parameters:
    """The numbers of a release: noise multiplier sigma, sample rate q, records per user k, how many of them count."""

    noise_multiplier: float
    sample_rate: float
    size: int
    at_most: int | None = None

    @property
    def max_clips(self) -> int:
        """By how many clips a user moves the sum at most."""
        return self.size if self.at_most is None else min(self.size, self.at_most)


def parameters(event: NoisedSum) -> Parameters:
    """The numbers of ``event``."""
    match event:
        case Gaussian(noise_multiplier):
            return Parameters(noise_multiplier, 1.0, 1)
        case PoissonSampled(sample_rate, Gaussian(noise_multiplier)):
            return Parameters(noise_multiplier, sample_rate, 1)
        case Group(size, inner, at_most):
            single = parameters(inner)
            return Parameters(single.noise_multiplier, single.sample_rate, size, at_most)


def normal(event: NoisedSum) -> NoisedSum:
    """The simplest event that means the same: a group of one is its event, a sample of all is no sample."""
    of = parameters(event)
    plain = Gaussian(of.noise_multiplier)
    if of.sample_rate == 1:
        return plain if of.max_clips == 1 else Group(of.max_clips, plain)
    inner = PoissonSampled(of.sample_rate, plain)
    return inner if of.size == 1 else Group(of.size, inner, None if of.max_clips == of.size else of.at_most)


def flatten(composition: Composition) -> dict[Single, int]:
    """``composition`` without repetitions, in normal form, equal events merged.

    Of a :class:`Spread` it takes the bound over all ways; :func:`ways` keeps them apart.

    >>> flatten({Repeated(3, Group(1, Gaussian(2.0))): 2, Gaussian(2.0): 1})
    {Gaussian(noise_multiplier=2.0): 7}
    """
    counts: Counter[Single] = Counter()
    for event, count in composition.items():
        if count < 0:
            raise ConfigError(f"{event} cannot have happened {count} times", location="privacy", value=count)
        inner, times = event, count
        while isinstance(inner, Repeated):
            times, inner = times * inner.times, inner.event
        if isinstance(inner, Spread):
            parts = inner.everywhere()
        else:
            parts = dict.fromkeys((inner.always, inner.sampled) if isinstance(inner, Joint) else (inner,), 1)
        for part, count_of_part in parts.items():
            if times:
                assert isinstance(part, Single)
                simple = part if isinstance(part, NonPrivate | LocalReports) else normal(part)
                counts[simple] += times * count_of_part
    return dict(counts)


def ways(composition: Composition) -> list[Composition]:
    """The compositions of which one is a user's, depending on where the user's records lie.

    They stay where they are, so one :class:`Spread` that happened often is one way often. With several different ones
    the bound over all ways is taken.

    >>> few, many = PoissonSampled(0.1, Gaussian(5.0)), PoissonSampled(0.02, Gaussian(5.0))
    >>> ways({Spread(1, ((10, few), (50, many))): 3}) == [{Group(1, few): 30}, {Group(1, many): 150}]
    True
    """
    spread = [event for event in composition if isinstance(event, Spread)]
    if len(spread) != 1:
        return [composition]
    times = composition[spread[0]]
    others = Counter({event: count for event, count in composition.items() if event is not spread[0]})
    return [others + Counter({event: times * count for event, count in way.items()}) for way in spread[0].ways()]


def event_to_json(event: Event) -> dict[str, Any]:
    match event:
        case Gaussian(noise_multiplier):
            return {"event": "gaussian", "noise_multiplier": noise_multiplier}
        case PoissonSampled(sample_rate, inner):
            return {"event": "poisson-sampled", "sample_rate": sample_rate, "of": event_to_json(inner)}
        case Group(size, single, at_most):
            bound = {} if at_most is None else {"at_most": at_most}
            return {"event": "group", "size": size, **bound, "of": event_to_json(single)}
        case Repeated(times, repeated):
            return {"event": "repeated", "times": times, "of": event_to_json(repeated)}
        case Spread(size, silos):
            steps = [{"times": times, "of": event_to_json(single)} for times, single in silos]
            return {"event": "spread", "size": size, "silos": steps}
        case Joint(always, sampled):
            return {"event": "joint", "always": event_to_json(always), "sampled": event_to_json(sampled)}
        case LocalReports(epsilon, count):
            return {"event": "local-reports", "epsilon": epsilon, "count": count}
        case NonPrivate():
            return {"event": "non-private"}


def event_from_json(tree: dict[str, Any]) -> Event:
    """The event of ``event_to_json``; other keys, other types and other nestings are refused."""
    match tree:
        case {"event": "gaussian", "noise_multiplier": float(noise_multiplier), **rest} if not rest:
            return Gaussian(noise_multiplier)
        case {"event": "poisson-sampled", "sample_rate": float(sample_rate), "of": dict(inner), **rest} if not rest:
            event = event_from_json(inner)
            if isinstance(event, Gaussian):
                return PoissonSampled(sample_rate, event)
        case {"event": "group", "size": int(size), "of": dict(inner), **rest} if rest.keys() <= {"at_most"}:
            event, at_most = event_from_json(inner), rest.get("at_most")
            if isinstance(event, Gaussian | PoissonSampled) and (not rest or isinstance(at_most, int)):
                return Group(size, event, at_most)
        case {"event": "repeated", "times": int(times), "of": dict(inner), **rest} if not rest:
            return Repeated(times, event_from_json(inner))
        case {"event": "spread", "size": int(size), "silos": list(silos), **rest} if not rest:
            return Spread(size, tuple(_steps_from_json(silo) for silo in silos))
        case {"event": "joint", "always": dict(first), "sampled": dict(second), **rest} if not rest:
            always, sampled = event_from_json(first), event_from_json(second)
            if isinstance(always, Gaussian) and isinstance(sampled, PoissonSampled):
                return Joint(always, sampled)
        case {"event": "local-reports", "epsilon": float(epsilon), "count": int(count), **rest} if not rest:
            return LocalReports(epsilon, count)
        case {"event": "non-private", **rest} if not rest:
            return NonPrivate()
    raise ConfigError(f"unknown privacy event {tree!r}", location="ledger", value=repr(tree))


def _steps_from_json(tree: object) -> tuple[int, Gaussian | PoissonSampled]:
    match tree:
        case {"times": int(times), "of": dict(inner), **rest} if not rest:
            event = event_from_json(inner)
            if isinstance(event, Gaussian | PoissonSampled):
                return times, event
    raise ConfigError(f"unknown steps {tree!r}", location="ledger", value=repr(tree))
