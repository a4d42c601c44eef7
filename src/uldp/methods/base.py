"""What a method is: a silo part, a server part, and the event that says what was released.

A method is a frozen dataclass. Its fields are the keys of the ``[method]`` section of an experiment (and
``noise_multiplier``, which comes from ``[privacy]``). See ``docs/add-a-method.md``.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, Literal

import numpy as np

from uldp.data.federation import IntArray, SiloData
from uldp.errors import ConfigError, MessageRefused, shown
from uldp.learners.base import Learner
from uldp.limits import MAX_ROUNDS, check_whole
from uldp.privacy.events import Event, NonPrivate
from uldp.privacy.ledger import merge
from uldp.rng import Secrets, Streams
from uldp.vectors import LARGEST_LIMIT, SMALLEST_LIMIT, FixedPoint, Vector


@dataclass(frozen=True)
class Facts:
    """What everybody knows about a federation: |U|, |S| and the number d of parameters.

    ``dither``: by how many units the aggregation rounds each coordinate of the total, at a point that may be known.
    """

    users: int
    silos: int
    dimension: int
    dither: int = 0


@dataclass(frozen=True)
class State:
    """What the server carries from round to round: the model, and whatever vectors a method remembers beside it."""

    x: Vector
    memory: Mapping[str, Vector] = field(default_factory=dict)


@dataclass(frozen=True)
class Observer:
    """Who looks on: the world, the server, or some silos that pool what they see, noise shares included.

    ``dropped`` silos sent nothing, and their shares of the noise are missing from the total. The aggregation decides
    whether the server sees each silo's sum (``sums``) and whether the observer knows which users were sampled
    (``sample``; the world never does).
    """

    who: Literal["world", "server", "silos"] = "world"
    colluding: int = 1
    dropped: int = 0
    sums: bool = True
    sample: bool = True

    def shares(self, facts: Facts) -> int:
        """How many shares of the noise this observer cannot take off the total."""
        return max(0, facts.silos - self.dropped - (self.colluding if self.who == "silos" else 0))


SMALLEST_RATE: Final = 1e-9
"""The smallest probability with which a user or a record is sampled."""

Contribution = tuple[IntArray | None, Vector]
"""Users and one row for each; ``None`` for a row that belongs to the silo as a whole."""


@dataclass(frozen=True, kw_only=True)
class Method(ABC):
    """One paper's algorithm."""

    rounds: int = 10
    noise_multiplier: float = 0.0

    summary: ClassVar[str]
    """One line for ``uldp methods``."""
    paper: ClassVar[str]
    unit: ClassVar[str | None] = "user"
    """Whom the guarantee protects; None for a method without one."""

    shared_noise: ClassVar[bool] = True
    """Whether the noise of the total is made of the silos' shares, which may be missing or known to some."""
    covers_replacement: ClassVar[bool] = False
    """Whether the event also bounds what can be seen if a user's records are replaced instead of left out."""
    local_noise: ClassVar[bool] = False
    """Whether every client perturbs what it sends by itself, so that the noise is no setting of ``[privacy]``."""
    fitted_by: ClassVar[str] = ""
    """The setting that may read the data (see :meth:`fitted`)."""
    tells: ClassVar[Mapping[str, str]] = {"server": "everybody's record counts", "silo": "everybody's record totals"}
    """What the exchange of counts shows in the clear, where there is one."""

    sample_rate: float = 1.0
    compensate: int = 0
    """The silos' shares of the noise are so large that the guarantee holds though this many are missing or known."""

    def __post_init__(self) -> None:
        self._check_counts(1, MAX_ROUNDS, "rounds")
        require(
            0 <= self.noise_multiplier < math.inf,
            "noise_multiplier",
            self.noise_multiplier,
            "0 or more",
            "privacy",
        )
        require(SMALLEST_RATE <= self.sample_rate <= 1, "sample_rate", self.sample_rate, f"from {SMALLEST_RATE:g} to 1")
        require(self.compensate >= 0, "compensate", self.compensate, "0 or more", "privacy")

    def _check_counts(self, least: int, most: int, *keys: str) -> None:
        """Refuse whole numbers among the settings that are out of bounds."""
        for key in keys:
            check_whole(getattr(self, key), least, most, f"method.{key}")

    @property
    def needs_counts(self) -> bool:
        """Whether record counts matter, so that they are exchanged before the first round."""
        return False

    @property
    def extremal(self) -> bool:
        """Of local noise: whether the outputs of any two inputs overlap only where all inputs' do (privacy/shuffle)."""
        return False

    @property
    def samples_silos(self) -> bool:
        """Whether the server picks some of the silos for a round, instead of some users."""
        return False

    def silos_per_round(self, facts: Facts) -> int:
        """How many silos take part in a round."""
        return facts.silos

    def for_model(self, layers: tuple[int, ...]) -> Method:
        """The method for a model whose tensors have these sizes."""
        return self

    @property
    def private_sampling(self) -> bool:
        """Whether neither the server nor the silos may know which users were sampled."""
        return False

    @property
    def sampling_slots(self) -> tuple[int, int]:
        """(m, P) with sample_rate = m / P, where users are sampled in private."""
        return 1, 1

    @property
    def participation_limit(self) -> int:
        """In how many rounds one user is sampled at most; 0 for no limit."""
        return 0

    @property
    def claims(self) -> bool:
        """Whether ``privacy.epsilon`` is only what a paper claims, and the noise is made for that (see ``void``)."""
        return False

    def claiming(self, epsilon: float, delta: float, facts: Facts) -> Method:
        """The method with its noise made for what is claimed."""
        return self

    @property
    def void(self) -> str:
        """Why these settings keep no promise at all; empty where they keep one."""
        return ""

    def check_counts(self, facts: Facts, counts: IntArray) -> None:  # noqa: B027
        """Refuse data that break what the guarantee assumes of them. Only where all silos' counts are in one place."""

    def assumptions(self, facts: Facts) -> tuple[str, ...]:
        """What the headline rests on and nobody can check."""
        return ()

    def fitted(self, totals: IntArray) -> Method:
        """The method for users with so many records: settings that are left to the data are filled in here."""
        return self

    def tell(self, facts: Facts, counts: IntArray) -> IntArray:
        """(silos, users): what each silo is told about each user, from all silos' counts. The totals N_u."""
        return np.broadcast_to(counts.sum(axis=0, dtype=np.int64), counts.shape)

    def check_told(self, facts: Facts, counts: IntArray, told: IntArray) -> None:
        """Refuse what cannot be true, given the silo's own counts."""
        if (told < counts).any():
            # Such totals would give weights above 1, and with them a larger sensitivity than the noise is made for.
            raise MessageRefused("a total is smaller than this silo's own count", place="method")

    def kept(self, data: SiloData, told: IntArray | None, streams: Streams) -> SiloData:
        """The records that take part, the same in every round."""
        return data

    @abstractmethod
    def silo(
        self, x: Vector, data: SiloData, learner: Learner, streams: Streams, secrets: Secrets
    ) -> Iterator[Contribution]:
        """The silo's part: rows to be weighted, encoded and summed.

        ``streams`` is for what may be known (order of records, dropout), ``secrets`` for what a claim rests on.
        """

    def remark(self, data: SiloData, secrets: Secrets) -> int:
        """A number that the silo tells beside its vector, in the clear; the same data and secrets as for :meth:`silo`.

        0 where there is none. Nothing covers it: a method that has one keeps no promise about it.
        """
        return 0

    @property
    def largest_remark(self) -> int:
        return 0

    def server_noise(self, facts: Facts, remarks: Sequence[int]) -> float:
        """The deviation, in units, of the noise that a trusted server adds to the total; 0 where silos add it all."""
        return 0.0

    @abstractmethod
    def server(self, state: State, total: Vector, facts: Facts) -> State:
        """The server's part: the next state from the noised total."""

    @abstractmethod
    def encoding(self, facts: Facts) -> FixedPoint:
        """How rows become integers."""

    @abstractmethod
    def event(self, facts: Facts, silos_heard: int) -> Event:
        """What the world sees of a round in which ``silos_heard`` silos took part."""

    def noise_scale(self, facts: Facts) -> float:
        """The deviation of one silo's share of the noise, in units of the encoding."""
        return 0.0

    def weights(self, facts: Facts, counts: IntArray, totals: IntArray | None) -> Vector | None:
        """w_su for all users of one silo, from this user's own counts only; None for weight 1."""
        return None

    @property
    def user_weighting(self) -> str | None:
        """One of ``WEIGHTINGS``, so that an aggregation can apply the weights by itself; None where nobody has one."""
        return None

    def seen_by(self, facts: Facts, observer: Observer) -> Event:
        """What an observer sees of a round. A method that does not say makes no claim but towards the world.

        The world does not know the sample; the server does; silos may, and take their own noise off the total.
        """
        return self.event(facts, observer.shares(facts)) if observer.who == "world" else NonPrivate()

    def seen_over(self, facts: Facts, observer: Observer, releases: Sequence[int]) -> Mapping[Event, int]:
        """What an observer sees of several rounds, with so many releases each (one, but for repetitions).

        Releases of one round share its sample, so they are merged before they are composed.
        """
        event = self.seen_by(facts, observer)
        return Counter(seen for count in releases for seen in merge([event] * count))

    def terms(self, facts: Facts) -> int:
        """How many rows are added up at most."""
        return max(facts.users, facts.silos)

    def check(self, facts: Facts) -> None:
        """Refuse settings under which a sum could overflow or the noise would not be what the event says."""
        require(
            self.compensate < facts.silos,
            "compensate",
            self.compensate,
            f"below the number of silos ({facts.silos}): somebody must add noise",
            "privacy",
        )
        scale = self.noise_scale(facts)
        self.encoding(facts).check_range(self.terms(facts), scale * math.sqrt(facts.silos))

    def caveats(self, facts: Facts) -> tuple[str, ...]:
        """Sentences that a privacy statement must carry for this method."""
        return ()

    def notes(self, facts: Facts, counts: IntArray) -> tuple[str, ...]:
        """What whoever holds the data should know, given all silos' counts. Not noised: it goes nowhere else."""
        return ()

    def per_person(self, facts: Facts) -> Mapping[int, Event]:
        """Where single records are protected: what a person with so many of them faces in a round."""
        return {}

    def corrections(self) -> tuple[str, ...]:
        """What the paper claims for these settings and does not hold, and what we state instead."""
        return ()


def require(holds: bool, key: str, value: Any, wanted: str, section: str = "method") -> None:
    """One clear sentence for a setting that does not hold."""
    if not holds:
        raise ConfigError(f"{wanted}, not {shown(value)}", place=f"{section}.{key}", value=value)


def require_limit(key: str, value: float) -> None:
    """Refuse a clip or a range whose squares would vanish or overflow."""
    limits = f"a number from {SMALLEST_LIMIT:g} to {LARGEST_LIMIT:g}"
    require(SMALLEST_LIMIT <= value <= LARGEST_LIMIT, key, value, limits)
