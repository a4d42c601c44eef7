"""Values that every client perturbs itself, weight by weight (local DP; SRR-FL and its rivals).

Guarantee. The mechanism is epsilon-DP for one weight, whatever its value. A client's data move all of its weights, so a
round costs ``dimension`` times epsilon towards whoever knows whose values they are, the server included. Nobody need
be trusted, and the client as a whole is protected: its records could have been any others.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Final

import numpy as np

from uldp.data.federation import SiloData
from uldp.errors import require
from uldp.learners.base import Learner
from uldp.mechanisms.local_mechanism import LocalMechanism
from uldp.mechanisms.local_registry import LOCAL_MECHANISMS
from uldp.mechanisms.ranges import spread
from uldp.privacy.events import Event, LocalReports
from uldp.privacy.releases.base import Adversary, Release, SiloPart
from uldp.privacy.releases.sums import Contribution, single_row
from uldp.rng import Secrets, SecretStream, Streams
from uldp.vectors import FixedPoint, Vector

EXTREMAL: Final = ("two-point", "grr")
"""Mechanisms of which the outputs of any two inputs overlap only where all inputs' do."""
FOLLOWS_UP_TO: Final = 2.0
"""A range that follows the model is at most this many times as wide as its radius says. The global model is as noisy
as the range is wide; without a bound the range would widen itself."""
_BITS: Final = 40  # a perturbed value in 2^-40 of its largest size: rounding what is already private costs nothing


@dataclass(frozen=True)
class Layer:
    """One tensor of the model: its number of weights, and the mechanism that perturbs each of them.

    A range that follows the model reaches ``margin`` times as far as the tensor's weights spread.
    """

    size: int
    mechanism: LocalMechanism
    margin: float = 1.0

    def at(self, x: Vector) -> LocalMechanism:
        """The mechanism with a range as wide as the present weights ``x`` ask for.

        The global model is public, so this reveals nothing. Client and server compute it from the same bits.
        """
        mechanism = self.mechanism
        radius = mechanism.radius
        wanted = self.margin * spread(x, mechanism.center)
        return mechanism.widened(min(max(radius, wanted), FOLLOWS_UP_TO * radius))


@dataclass(frozen=True, kw_only=True)
class LocalPerturbation(Release):
    """Every weight of every client, perturbed by the client.

    Args:
        layers: The model's tensors, each with its mechanism.
        follow_model: Before every round, a layer's radius is ``margin`` times twice the median distance of the global
            model's weights from the center, but at least the mechanism's own and at most ``FOLLOWS_UP_TO`` times that.

    Raises:
        ConfigError: A mechanism that is not built in: its epsilon is not proven here. Or one that cannot widen.

    Example:
        >>> from uldp.methods.ldp_fedavg import LdpFedAvg
        >>> from uldp.privacy.releases import PublicFacts
        >>> method = LdpFedAvg(mechanism="piecewise", epsilon_weight=2.0)
        >>> method.release(PublicFacts(users=100, silos=5, dimension=10)).epsilon
        2.0
    """

    layers: tuple[Layer, ...]
    follow_model: bool = False

    local: ClassVar[bool] = True
    replace_one: ClassVar[bool] = True

    def __post_init__(self) -> None:
        known = set(LOCAL_MECHANISMS.values())
        plain = type(self.layers) is tuple and all(type(layer) is Layer for layer in self.layers)
        require(plain, "method.layers", type(self.layers).__name__, "a tuple of Layer")
        for layer in self.layers:
            # The epsilon of a third-party mechanism is an assertion: it needs a release type of its own.
            kind = type(layer.mechanism)
            require(kind in known, "method.mechanism", kind.__name__, f"one of {', '.join(LOCAL_MECHANISMS)}")
            if self.follow_model:  # refuse a range that cannot widen now, not in the middle of a round
                layer.mechanism.widened(FOLLOWS_UP_TO * layer.mechanism.radius)

    @property
    def epsilon(self) -> float:
        """Of one weight in one round."""
        return float(max(layer.mechanism.epsilon for layer in self.layers))

    @property
    def extremal(self) -> bool:
        """Whether the larger share of clones is proven for all mechanisms (:mod:`uldp.privacy.shuffle`)."""
        return all(layer.mechanism.name in EXTREMAL for layer in self.layers)

    @property
    def privacy_unit(self) -> str:
        return "client"

    @property
    def encoding(self) -> FixedPoint:
        return FixedPoint(limit=1.0, bits=_BITS, saturate=True)

    def parts(self, x: Vector) -> Iterator[tuple[slice, LocalMechanism]]:
        """The layers of a vector, each with its mechanism for the model ``x`` of this round."""
        start = 0
        for layer in self.layers:
            part = slice(start, start + layer.size)
            yield part, layer.at(x[part]) if self.follow_model else layer.mechanism
            start += layer.size

    def rows(
        self, method: SiloPart, x: Vector, data: SiloData, learner: Learner, streams: Streams, secrets: Secrets
    ) -> Iterator[Contribution]:
        parts = list(self.parts(x))  # before the method sees the model, and could write into it
        values = np.array(single_row(method.silo(x, data, learner, streams), len(x))[0], dtype=np.float64)
        for part, mechanism in parts:
            # What is not a number becomes the middle of the range: it has to become something in it.
            values[part][~np.isfinite(values[part])] = mechanism.center
        stream = perturbing_stream(values, secrets)
        row = np.empty_like(x)
        for part, mechanism in parts:
            perturbed = mechanism.perturb(values[part], stream)
            row[part] = (perturbed - mechanism.center) / mechanism.largest_output
        yield None, row[None, :]

    def mean(self, total: Vector, x: Vector, *, debias: bool = False) -> Vector:
        """The mean of the clients' perturbed values in a round with the model ``x``, from the decoded total.

        ``debias`` maps it back by the inverse of w -> E[M(w)], which is right where clients are alike.
        """
        mean = np.empty_like(total)
        clients = self.silo_sampling.per_round(self.facts.silos)
        for part, mechanism in self.parts(x):
            mean[part] = mechanism.center + mechanism.largest_output * total[part] / clients
            if debias:
                mean[part] = mechanism.invert_mean(mean[part])
        return mean

    def event(self, silos_heard: int) -> Event:
        return LocalReports(self.epsilon, self.facts.dimension)

    def view(self, adversary: Adversary) -> Event:
        # A client's own perturbation protects it from everybody alike; others can subtract nothing.
        return self.event(self.facts.silos)

    def check(self) -> None:
        super().check()
        sizes = [layer.size for layer in self.layers]
        require(
            sum(sizes) == self.facts.dimension,
            "method.layers",
            sizes,
            f"sizes that add up to the model's {self.facts.dimension} parameters",
        )


def perturbing_stream(values: Vector, secrets: Secrets) -> SecretStream:
    """Bound to what is perturbed: the same draws on other weights would show their difference."""
    perturbing = secrets.child("perturb")
    content = hashlib.sha256(np.ascontiguousarray(values).tobytes()).hexdigest()
    return (perturbing if secrets.simulated else perturbing.child(content)).stream()
