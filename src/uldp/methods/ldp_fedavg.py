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
Delta(d) ``delta_sizes``. Those of the range may be lists, one entry per layer (tensor of the model), or "auto": c and r
then follow from the initial model (:mod:`uldp.mechanisms.ranges`), m and Delta(d) from epsilon, r, p and the number of
clients (:mod:`uldp.mechanisms.choose`). All of these are public.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, Final

from uldp.caveats import Caveat, Severity
from uldp.data.federation import IntArray, SiloData
from uldp.errors import ConfigError, require
from uldp.learners.base import Learner
from uldp.mechanisms.choose import best_staircase
from uldp.mechanisms.local_mechanism import LocalMechanism
from uldp.mechanisms.local_registry import LOCAL_MECHANISMS, local_mechanism
from uldp.mechanisms.ranges import MARGIN, WeightRange, weight_range
from uldp.methods.base import State, not_a_setting
from uldp.methods.local_training import LocalTrainingMixin, silo_change
from uldp.methods.subjects import silo_sampling_caveats
from uldp.privacy.releases import Contribution, LocalPerturbation, PublicFacts, SiloSampling
from uldp.privacy.releases.local_perturbation import Layer
from uldp.rng import Streams
from uldp.vectors import Vector

AUTO: Final = "auto"
SENDS: Final = ("weights", "deltas")
RANGES: Final = ("fixed", "model")
PerLayer = float | tuple[float, ...] | str
CountPerLayer = int | tuple[int, ...]
_SOME_HAVE: Final = ("precision", "groups", "delta_sizes")
_AUTOMATIC: Final = ("center", "radius", "groups", "delta_sizes")
_PLACEHOLDERS: Final = {"center": 0.0, "radius": 0.075, "groups": 1, "delta_sizes": 0.0}
"""For what is "auto" as long as there is no model: valid, and no release of a round is made of them."""
_NAMES: Final = {"delta_sizes": "delta"}


@dataclass(frozen=True, kw_only=True)
class LdpFedAvg(LocalTrainingMixin):
    """Federated averaging of values that the clients perturbed."""

    epsilon_weight: float = 5.0
    mechanism: str = "piecewise"
    sends: str = "deltas"
    global_lr: float = 1.0
    center: PerLayer = 0.0
    radius: PerLayer = 0.075
    precision: CountPerLayer = 4
    groups: CountPerLayer | str = 10
    delta_sizes: PerLayer = 20.0
    ranges: str = "fixed"
    """``model``: before every round, the width of a layer's range follows the global model
    (LocalPerturbation.follow_model)."""
    debias: bool = False
    fraction: float = 1.0
    """The share of the clients that takes part in a round."""
    layers: tuple[int, ...] = not_a_setting(())
    """Sizes of the model's tensors."""
    margin: float = not_a_setting(1.0)
    """How far ranges that follow the model reach, as a multiple of the spread of its weights."""

    summary: ClassVar[str] = "every client perturbs every weight itself; nobody need be trusted, epsilon is enormous"
    paper: ClassVar[str] = "SRR-FL (CODASPY 2024)"

    def __post_init__(self) -> None:
        noise, tolerance = self.noise_multiplier, self.dropout_tolerance
        require(noise == 0, "privacy.noise_multiplier", noise, "0 (clients perturb)")
        require(tolerance == 0, "privacy.dropout_tolerance", tolerance, "0 (no noise is shared)")
        require(0 < self.global_lr < math.inf, "method.global_lr", self.global_lr, "a positive number")
        for key, known in (("sends", SENDS), ("ranges", RANGES), ("mechanism", tuple(LOCAL_MECHANISMS))):
            require(getattr(self, key) in known, f"method.{key}", getattr(self, key), f"one of {', '.join(known)}")
        for key in _AUTOMATIC:
            value = getattr(self, key)
            require(value == AUTO or not isinstance(value, str), f"method.{key}", value, "numbers, or 'auto'")
        whole = self.sends == "weights"
        require(self.ranges == "fixed" or whole, "method.ranges", self.ranges, "'fixed' where changes are sent")
        wanted = "numbers where changes are sent: their range does not follow from public weights"
        for key in ("center", "radius"):
            require(whole or getattr(self, key) != AUTO, f"method.{key}", getattr(self, key), wanted)
        both = self.groups != AUTO or self.delta_sizes == AUTO
        require(both, "method.delta_sizes", self.delta_sizes, "'auto' too where method.groups is")
        super().__post_init__()

    def release(self, facts: PublicFacts) -> LocalPerturbation:
        sizes, sampling = self.layers or (facts.dimension,), SiloSampling(self.fraction)
        clients = max(1, sampling.per_round(facts.silos)) if facts.dimension else 0
        return LocalPerturbation(
            facts=facts,
            layers=tuple(Layer(size, self._mechanism(layer, clients), self.margin) for layer, size in enumerate(sizes)),
            follow_model=self.ranges == "model",
            silo_sampling=sampling,
        )

    def for_start(self, initial: Callable[[], Vector]) -> LdpFedAvg:
        if AUTO not in (self.center, self.radius):
            return self
        x, start = initial(), 0
        found: list[WeightRange] = []
        for size in self.layers or (len(x),):
            found.append(weight_range(x[start : start + size]))
            start += size
        return replace(
            self,
            center=tuple(one.center for one in found) if self.center == AUTO else self.center,
            radius=tuple(one.radius for one in found) if self.radius == AUTO else self.radius,
            margin=MARGIN if self.radius == AUTO else self.margin,
        )

    def for_model(self, layers: tuple[int, ...]) -> LdpFedAvg:
        for key in ("center", "radius", "precision", "groups", "delta_sizes"):
            value = getattr(self, key)
            require(
                not isinstance(value, tuple) or len(value) == len(layers),
                f"method.{key}",
                list(value) if isinstance(value, tuple) else value,
                f"one number, or one for each of the model's {len(layers)} tensors",
            )
        return replace(self, layers=layers)

    def _setting(self, key: str, layer: int) -> Any:
        value = getattr(self, key)
        if value == AUTO:
            return _PLACEHOLDERS[key]
        if not isinstance(value, tuple):
            return value
        if not value:
            raise ConfigError("an empty list; give one number, or one per tensor", location=f"method.{key}")
        return value[min(layer, len(value) - 1)]

    def _mechanism(self, layer: int, clients: int) -> LocalMechanism:
        """The mechanism of a layer; ``clients`` take part in a round, 0 as long as there is no model."""
        if clients and AUTO in (self.center, self.radius):
            raise ConfigError("'auto' needs the initial model (Method.for_start)", location="method.radius")
        settings: dict[str, Any] = {"epsilon": self.epsilon_weight}
        settings |= {key: float(self._setting(key, layer)) for key in ("center", "radius")}
        for key in self._of_mechanism():
            settings[_NAMES.get(key, key)] = self._setting(key, layer)
        try:
            if clients and "delta" in settings and self.delta_sizes == AUTO:
                groups = None if self.groups == AUTO else settings["groups"]
                about = (self.epsilon_weight, settings["radius"], settings["precision"])
                best = best_staircase(*about, clients=clients, groups=groups)
                settings |= {"groups": best.groups, "delta": best.delta}
            return local_mechanism(self.mechanism, **settings)
        except ConfigError as error:
            given = getattr(self, (error.location or "").removeprefix("method."), None)
            if not isinstance(given, tuple):
                raise
            entry = f"entry {layer + 1} of {list(given)}: {error.message}"
            raise ConfigError(entry, location=error.location, value=error.value) from error

    def _of_mechanism(self) -> tuple[str, ...]:
        """The settings that only some mechanisms have, those of this one."""
        known = {field.name for field in fields(LOCAL_MECHANISMS[self.mechanism])}
        return tuple(key for key in _SOME_HAVE if _NAMES.get(key, key) in known)

    def silo(self, x: Vector, data: SiloData, learner: Learner, streams: Streams) -> Iterator[Contribution]:
        delta = silo_change(x, data, learner, self.local_training, streams)
        yield None, (x + delta if self.sends == "weights" else delta)[None, :]

    def server(self, state: State, total: Vector, facts: PublicFacts) -> State:
        mean = self.release(facts).mean(total, state.x, debias=self.debias)
        step = mean - state.x if self.sends == "weights" else mean
        return State(state.x + self.global_lr * step)

    def notes(self, facts: PublicFacts, counts: IntArray) -> tuple[str, ...]:
        own, defaults = self._of_mechanism(), {field.name: field.default for field in fields(self)}
        return tuple(
            f"method.{key} has no effect: mechanism {self.mechanism!r} has none."
            for key in _SOME_HAVE
            if key not in own and getattr(self, key) != defaults[key]
        )

    def caveats(self, facts: PublicFacts) -> tuple[Caveat, ...]:
        lines = [
            Caveat(
                "per-weight",
                f"Per weight and round: epsilon {self.epsilon_weight:g} (pure local DP, {self.mechanism}). Per client "
                f"and round: {self.epsilon_weight * facts.dimension:g} without any delta, for its data move all "
                f"{facts.dimension} weights. The epsilons above are at the delta given, where many small ones compose "
                "to less than their sum.",
                Severity.LIMITS,
            ),
            Caveat(
                "client-level",
                "A client is protected as a whole, and so is a person whose records are all with one client. A person "
                "with records at s clients faces s times the local epsilon.",
                Severity.LIMITS,
            ),
            *silo_sampling_caveats("clients", SiloSampling(self.fraction), facts),
        ]
        if self.ranges == "model":
            lines.append(
                Caveat(
                    "ranges-follow-model",
                    "The width of ranges follows the global model, which is public; it tells nothing about single "
                    "clients.",
                )
            )
        return tuple(lines)

    def corrections(self) -> tuple[str, ...]:
        return (
            "The paper states epsilon per weight. A client's weights are all about the same data and compose (S5).",
        )
