"""What a method is: what it releases, a part inside the silos, and a part on the server.

A method is a frozen dataclass. Its fields are the keys of the ``[method]`` section of an experiment; a field marked
with :func:`not_a_setting` comes from elsewhere. See ``docs/add-a-method.md``.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import Field, dataclass, field, fields
from typing import Any, ClassVar, Final

from uldp.caveats import Caveat
from uldp.data.federation import IntArray, SiloData
from uldp.errors import ModelError, require
from uldp.learners.base import Learner
from uldp.limits import MAX_ROUNDS, check_whole
from uldp.privacy.releases import Contribution, PublicFacts, Release, RoundFacts
from uldp.rng import Streams
from uldp.vectors import Vector

PLACEHOLDER_FACTS: Final = PublicFacts(users=2, silos=1, dimension=0)
"""Facts to ask a method for what does not depend on the federation."""


def not_a_setting(default: Any) -> Any:
    """A field that is no key of ``[method]``: it comes from ``[privacy]``, from the model or from the data."""
    return field(default=default, metadata={"not_a_setting": True})


def is_setting(item: Field[Any]) -> bool:
    """Whether a field of a method is a key of ``[method]``."""
    return not item.metadata.get("not_a_setting", False)


@dataclass(frozen=True)
class State:
    """What the server carries from round to round.

    Args:
        x: The model, a flat float64 vector.
        memory: Further vectors that a method needs on the server (momentum, for instance), by name.

    Example:
        >>> import numpy as np
        >>> state = State(np.zeros(2), {"momentum": np.ones(2)})
        >>> State(state.x + state.memory["momentum"], state.memory).x
        array([1., 1.])
    """

    x: Vector
    memory: Mapping[str, Vector] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Method(ABC):
    """One paper's algorithm: what it releases, its part in a silo, its part on the server.

    Subclass it as a frozen, keyword-only dataclass; fields are the keys of ``[method]``.

    Args:
        rounds: T.
        noise_multiplier: sigma, from ``[privacy]``, given or calibrated to a target epsilon.
        dropout_tolerance: How many silos' shares of the noise may be missing or known while the guarantee holds.

    Raises:
        ConfigError: A setting that no federation allows.

    Example:
        >>> from uldp.methods.uldp_avg import UldpAvg
        >>> method = UldpAvg(rounds=5, noise_multiplier=5.0)
        >>> method.release(PublicFacts(users=100, silos=5, dimension=10)).privacy_unit
        'user'
    """

    rounds: int = 10
    noise_multiplier: float = not_a_setting(0.0)
    dropout_tolerance: int = not_a_setting(0)
    """The shares of the noise are enlarged so that the guarantee holds while this many are missing or known."""

    summary: ClassVar[str]
    """One line for ``uldp methods``."""
    paper: ClassVar[str]
    neutral_start: ClassVar[bool] = False
    """Whether the last layer of a built-in model starts with zeros instead of random weights."""
    reads_data: ClassVar[str] = ""
    """The setting that may be computed from the data (see :meth:`for_data`)."""

    def __post_init__(self) -> None:
        check_whole(self.rounds, 1, MAX_ROUNDS, "method.rounds")
        noise, tolerance = self.noise_multiplier, self.dropout_tolerance
        require(0 <= noise < math.inf, "privacy.noise_multiplier", noise, "0 or more")
        require(tolerance >= 0, "privacy.dropout_tolerance", tolerance, "0 or more")
        self.release(PLACEHOLDER_FACTS)  # refuses settings that no federation allows

    @abstractmethod
    def release(self, facts: PublicFacts) -> Release:
        """What a round releases, from the settings and the public facts alone.

        Args:
            facts: What everybody knows about the federation.

        Returns:
            One frozen value: the noise is drawn from it, and the event is read from it.

        Raises:
            ConfigError: A setting is wrong, for any federation or for this one.
        """

    def silo(self, x: Vector, data: SiloData, learner: Learner, streams: Streams) -> Iterator[Contribution]:
        """The part inside a silo. A release that trains by itself (``NoisedModel``) does not ask for it.

        Args:
            x: What :meth:`broadcast` returned: the model of the round, a flat vector.
            data: The silo's records that take part.
            learner: Trains and evaluates models.
            streams: For randomness that may be known (order of records, dropout).

        Returns:
            Pairs (users, rows), where row u is a function of x and of user u's records alone.
        """
        raise ModelError(f"{type(self).__name__} has no part inside a silo", location="method.silo")

    def broadcast(self, state: State, facts: RoundFacts) -> Vector:
        """What the server sends to the silos: the model, and behind it whatever else :meth:`silo` needs.

        Args:
            state: The model and the method's own vectors.
            facts: What is public about the round that begins.

        Returns:
            The ``x`` of :meth:`silo`; of the same length in every round.
        """
        return state.x

    @abstractmethod
    def server(self, state: State, total: Vector, facts: RoundFacts) -> State:
        """The part on the server.

        Args:
            state: The model and the method's own vectors.
            total: The noised total of the round's rows.
            facts: What is public about the round.

        Returns:
            The next state.
        """

    def for_facts(self, facts: PublicFacts) -> Method:
        """The method with settings that follow from public facts filled in.

        Args:
            facts: What everybody knows about the federation.
        """
        return self

    def for_model(self, layers: tuple[int, ...]) -> Method:
        """The method for a model.

        Args:
            layers: The sizes of its tensors.
        """
        return self

    def for_start(self, initial: Callable[[], Vector]) -> Method:
        """The method with settings that follow from the initial model filled in; called after :meth:`for_model`.

        Args:
            initial: Makes the flat vector x_0. It follows from public settings, the seed among them.
        """
        return self

    def for_data(self, totals: IntArray) -> Method:
        """The method with a setting that is computed from the data filled in (``reads_data``).

        Args:
            totals: Each user's number of records over all silos.
        """
        return self

    def caveats(self, facts: PublicFacts) -> tuple[Caveat, ...]:
        """What a privacy statement must say about this method, beside what its release says.

        Args:
            facts: What everybody knows about the federation.
        """
        return ()

    def notes(self, facts: PublicFacts, counts: IntArray) -> tuple[str, ...]:
        """Notes for the party that holds the data: without noise, shown to no other party.

        Args:
            facts: What everybody knows about the federation.
            counts: (silos, users), the numbers of records.
        """
        return ()

    def corrections(self) -> tuple[str, ...]:
        """Claims of the paper for these settings that do not hold, and what is stated instead."""
        return ()

    @property
    def privacy_unit(self) -> str | None:
        """Whom the guarantee protects; None for a method without one."""
        return self.release(PLACEHOLDER_FACTS).privacy_unit

    @property
    def local(self) -> bool:
        """Local DP: clients perturb their own values, and ``[privacy]`` has no noise multiplier."""
        return self.release(PLACEHOLDER_FACTS).local


def settings(method: type[Method]) -> dict[str, Field[Any]]:
    """The keys of ``[method]``, and their fields."""
    return {item.name: item for item in fields(method) if is_setting(item)}
