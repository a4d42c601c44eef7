"""FedAvg under client-level local DP: every client perturbs every weight itself (SRR-FL and its rivals).

Varun, Feng, Wang, Sural, Hong: "Towards Accurate and Stronger Local Differential Privacy for Federated Learning with
Staircase Randomized Response", CODASPY 2024. The rival with two outputs is LDP-FL (Sun, Qian, Chen, IJCAI 2021).

A client is a silo, and the privacy unit. In a round the server picks a fraction f_r of the clients; each of them::

    x_k = x_t;  Q epochs of SGD on its records
    send  y_j = M(w_j)  for every weight j:   w = x_k (as published), or w = x_k - x_t (``sends = "deltas"``)

Server: x_(t+1) = x_t + eta_g (mean_k y - x_t), or x_t + eta_g mean_k y. With ``debias`` the mean is first mapped back
by the inverse of w -> E[M(w)], which is right where clients are alike.

Guarantee. M is epsilon-DP for one weight. A client's data move all n_w of its weights, so a round costs n_w epsilon
towards whoever can tell whose values they are, the server included, and rounds add up. Nobody need be trusted.

Symbols: epsilon ``epsilon_weight``, f_r ``fraction``, c ``center``, r ``radius``, p ``precision``, m ``groups``,
Delta(d) ``delta_sizes``. Those of the range may be lists, one entry per layer (tensor of the model).
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, Final

import numpy as np

from uldp.data.federation import IntArray, SiloData
from uldp.errors import ConfigError
from uldp.learners.base import Learner
from uldp.mechanisms.local import LocalMechanism
from uldp.mechanisms.local_registry import LOCAL_MECHANISMS, local_mechanism
from uldp.methods.base import Contribution, Facts, Method, Observer, State, require
from uldp.methods.local import TrainsLocally
from uldp.methods.picking import PicksSilos
from uldp.privacy.events import Event, LocalReports
from uldp.rng import Secrets, SecretStream, Streams
from uldp.vectors import FixedPoint, Vector

SENDS: Final = ("weights", "deltas")
RANGES: Final = ("fixed", "model")
EXTREMAL: Final = ("two-point", "grr")
"""Mechanisms for which the larger share of clones is proven (:mod:`uldp.privacy.shuffle`)."""
WIDEST: Final = 2.0
"""A range that follows the model is at most so many times as wide as ``radius`` says. The global model is as noisy as
the range is wide; without a bound the range would widen itself."""
GRIDDED: Final = ("srr", "grr")
PerLayer = float | tuple[float, ...]
CountPerLayer = int | tuple[int, ...]
_SOME_HAVE: Final = ("precision", "groups", "delta_sizes")
_NAMES: Final = {"delta_sizes": "delta"}
_BITS: Final = 40  # a perturbed value in 2^-40 of its largest size: rounding what is already private costs nothing


@dataclass(frozen=True, kw_only=True)
class LdpFedAvg(PicksSilos, TrainsLocally, Method):
    """Federated averaging of values that the clients perturbed."""

    epsilon_weight: float = 5.0
    mechanism: str = "piecewise"
    sends: str = "deltas"
    global_lr: float = 1.0
    center: PerLayer = 0.0
    radius: PerLayer = 0.075
    precision: CountPerLayer = 4
    groups: CountPerLayer = 10
    delta_sizes: PerLayer = 20.0
    ranges: str = "fixed"
    """``model``: before every round, a layer's radius is twice the median distance of the global model's weights in it
    from the center, but at least ``radius`` and at most ``WIDEST`` times that."""
    debias: bool = False
    layers: tuple[int, ...] = ()
    """Sizes of the model's tensors; filled in when the model is known."""

    summary: ClassVar[str] = "every client perturbs every weight itself; nobody need be trusted, epsilon is enormous"
    paper: ClassVar[str] = "SRR-FL (CODASPY 2024)"
    unit: ClassVar[str | None] = "client"
    shared_noise: ClassVar[bool] = False
    covers_replacement: ClassVar[bool] = True
    local_noise: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.noise_multiplier == 0, "noise_multiplier", self.noise_multiplier, "0 (clients perturb)", "privacy")
        require(self.sample_rate == 1, "sample_rate", self.sample_rate, "1 (clients are picked by method.fraction)")
        require(self.compensate == 0, "compensate", self.compensate, "0 (no noise is shared)", "privacy")
        require(0 < self.global_lr < math.inf, "global_lr", self.global_lr, "a positive number")
        for key, known in (("sends", SENDS), ("ranges", RANGES), ("mechanism", tuple(LOCAL_MECHANISMS))):
            require(getattr(self, key) in known, key, getattr(self, key), f"one of {', '.join(known)}")
        require(
            self.ranges == "fixed" or (self.sends == "weights" and self.mechanism not in GRIDDED),
            "ranges",
            self.ranges,
            "'fixed', unless method.sends is 'weights' and method.mechanism has no grid (two-point, piecewise, hybrid)",
        )
        for layer in range(len(self.layers) or 1):
            self._mechanism(layer)

    def for_model(self, layers: tuple[int, ...]) -> LdpFedAvg:
        for key in ("center", "radius", "precision", "groups", "delta_sizes"):
            value = getattr(self, key)
            require(
                not isinstance(value, tuple) or len(value) == len(layers),
                key,
                list(value) if isinstance(value, tuple) else value,
                f"one number, or one for each of the model's {len(layers)} tensors",
            )
        return replace(self, layers=layers)

    def _setting(self, key: str, layer: int) -> Any:
        value = getattr(self, key)
        if not isinstance(value, tuple):
            return value
        if not value:
            raise ConfigError("an empty list; give one number, or one per tensor", place=f"method.{key}")
        return value[min(layer, len(value) - 1)]

    def _mechanism(self, layer: int, x: Vector | None = None) -> LocalMechanism:
        """The mechanism of a layer; with ranges from the model, as wide as its present weights ``x`` ask for."""
        center, radius = float(self._setting("center", layer)), float(self._setting("radius", layer))
        if self.ranges == "model" and x is not None and len(x):
            # The global model is public, so this tells nothing. The median does not follow its few noisiest weights.
            followed = 2 * float(np.median(np.abs(x - center)))
            radius = min(max(radius, followed), WIDEST * radius)
        settings = {"epsilon": self.epsilon_weight, "center": center, "radius": radius}
        for key in self._of_mechanism():
            settings[_NAMES.get(key, key)] = self._setting(key, layer)
        try:
            return local_mechanism(self.mechanism, **settings)
        except ConfigError as error:
            given = getattr(self, (error.place or "").removeprefix("method."), None)
            if not isinstance(given, tuple):
                raise
            entry = f"entry {layer + 1} of {list(given)}: {error.message}"
            raise ConfigError(entry, place=error.place, value=error.value) from error

    def _of_mechanism(self) -> tuple[str, ...]:
        """The settings that only some mechanisms have, those of this one."""
        known = {field.name for field in fields(LOCAL_MECHANISMS[self.mechanism])}
        return tuple(key for key in _SOME_HAVE if _NAMES.get(key, key) in known)

    def _parts(self, x: Vector) -> Iterator[tuple[slice, LocalMechanism]]:
        """The layers of a vector, each with its mechanism for the model ``x`` of this round."""
        start = 0
        for layer, size in enumerate(self.layers or (len(x),)):
            part = slice(start, start + size)
            yield part, self._mechanism(layer, x[part])
            start += size

    @property
    def extremal(self) -> bool:
        return self.mechanism in EXTREMAL

    def silo(
        self, x: Vector, data: SiloData, learner: Learner, streams: Streams, secrets: Secrets
    ) -> Iterator[Contribution]:
        delta = self.change(x, data, learner, streams)
        values = x + delta if self.sends == "weights" else delta
        for part, mechanism in self._parts(x):
            # What is not a number becomes the middle of the range: it has to become something in it.
            values[part][~np.isfinite(values[part])] = mechanism.center
        stream = self._stream(values, secrets)
        row = np.empty_like(x)
        for part, mechanism in self._parts(x):
            perturbed = mechanism.perturb(values[part], stream)
            row[part] = (perturbed - mechanism.center) / mechanism.largest_output
        yield None, row[None, :]

    @staticmethod
    def _stream(values: Vector, secrets: Secrets) -> SecretStream:
        """Bound to what is perturbed: the same draws on other weights would show their difference."""
        perturbing = secrets.child("perturb")
        content = hashlib.sha256(np.ascontiguousarray(values).tobytes()).hexdigest()
        return (perturbing if secrets.simulated else perturbing.child(content)).stream()

    def server(self, state: State, total: Vector, facts: Facts) -> State:
        mean = np.empty_like(total)
        for part, mechanism in self._parts(state.x):
            mean[part] = mechanism.center + mechanism.largest_output * total[part] / self.silos_per_round(facts)
            if self.debias:
                mean[part] = mechanism.invert_mean(mean[part])
        step = mean - state.x if self.sends == "weights" else mean
        return State(state.x + self.global_lr * step)

    def encoding(self, facts: Facts) -> FixedPoint:
        return FixedPoint(limit=1.0, bits=_BITS, saturate=True)

    def terms(self, facts: Facts) -> int:
        return facts.silos

    def event(self, facts: Facts, silos_heard: int) -> Event:
        return LocalReports(float(self.epsilon_weight), facts.dimension)

    def seen_by(self, facts: Facts, observer: Observer) -> Event:
        # A client's own perturbation protects it from everybody alike; others can take nothing off.
        return self.event(facts, facts.silos)

    def check(self, facts: Facts) -> None:
        super().check(facts)
        require(
            not self.layers or sum(self.layers) == facts.dimension,
            "layers",
            self.layers,
            f"sizes that add up to the model's {facts.dimension} parameters",
        )

    def notes(self, facts: Facts, counts: IntArray) -> tuple[str, ...]:
        own, defaults = self._of_mechanism(), {field.name: field.default for field in fields(self)}
        return tuple(
            f"method.{key} has no effect: mechanism {self.mechanism!r} has none."
            for key in _SOME_HAVE
            if key not in own and getattr(self, key) != defaults[key]
        )

    def caveats(self, facts: Facts) -> tuple[str, ...]:
        lines = [
            f"Per weight and round: epsilon {self.epsilon_weight:g} (pure local DP, {self.mechanism}). Per client and "
            f"round: {self.epsilon_weight * facts.dimension:g} without any delta, for its data move all "
            f"{facts.dimension} weights. The epsilons above are at the delta given, where many small ones compose to "
            "less than their sum.",
            "A client is protected as a whole, and so is a person whose records are all with one client. A person with "
            "records at s clients faces s times the local epsilon.",
        ]
        if self.samples_silos:
            lines.append(
                f"The server picks {self.silos_per_round(facts)} of {facts.silos} clients a round and knows whom; the "
                "numbers are for a client that is picked in every round."
            )
        if self.ranges == "model":
            lines.append(
                "The width of ranges follows the global model, which is public; it tells nothing about single clients."
            )
        return tuple(lines)

    def corrections(self) -> tuple[str, ...]:
        return (
            "The paper states epsilon per weight. A client's weights are all about the same data and compose (S5).",
        )
