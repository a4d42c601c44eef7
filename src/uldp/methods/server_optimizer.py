"""What the server makes of the noised totals: SGD, momentum, Adam, or steps that know how much of a total is noise.

Reddi et al., "Adaptive Federated Optimization", ICLR 2021, for optimisers on the server; here they also know the
variance of the noise, exactly, from the release and the silos that were heard. Everything here is post-processing: a
:class:`NoisedTotal` holds what was released and what is public, and there is nothing else to look at.

With g the noised total of a round, nv the variance of its noise and t the round, from 0 to T - 1::

    sgd, momentum:  x += lr (1 - t/T) m / n                        n: the people who took part in the round
    adam:           x += lr a (1 - t/T) m / sqrt(max(v - nv, nv))  a: the recipe's first step
    auto:           the same with sqrt(1 - t/T), times the share of signal in a longer mean of totals
    m = b1 m + (1 - b1) g,  v = b2 v + (1 - b2) g^2  (auto: the mean of g^2 over coordinates; nv is averaged alike)

m, v and nv are corrected for their start at zero. The scale of g cancels in the second line, and with it the numbers
of users and silos. Where less than half of v is signal, what counts is the noise: a total of nothing but noise then
moves the model by steps of at most their size, and not by noise that is scaled up.

The longer mean M has noise of a known variance too, so 1 - E|noise of M|^2 / |M|^2 estimates how much of it is signal
(James and Stein's factor). Where the totals agree over many rounds, steps are as long as the recipe allows; where there
is little to learn they become short, and the model stays near the base rate instead of walking at random.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from uldp.elementary import row_sums
from uldp.methods.base import State
from uldp.vectors import Vector

MIN_SHARE: Final = 0.15
"""Of the steps, where no signal is to be seen yet."""


@dataclass(frozen=True)
class NoisedTotal:
    """What a server optimiser sees of a round.

    Args:
        values: The noised total.
        noise_variance: Of each of its coordinates.
        people: How many people are in it, as far as that is public.
        step: The recipe's first step.
        remaining: 1 - t/T, the part of the rounds that is not over yet.
    """

    values: Vector
    noise_variance: float
    people: float
    step: float
    remaining: float


@dataclass(frozen=True)
class ServerOptimizer:
    """From a model and a noised total to the next model; state is in :class:`~uldp.methods.base.State`'s memory.

    Args:
        momentum: b1, how much of the mean of totals is kept; 0 for none.
        second_moment: b2, how much of the mean of squares is kept; 0 for steps that are not divided by it.
        per_coordinate: Whether every coordinate has its own second moment (Adam), or all share one.
        trend: How much of the longer mean is kept whose share of signal scales the steps; 0 for none.

    Example:
        >>> optimizer = ServerOptimizer(momentum=0.5)
        >>> state = optimizer.step(State(np.zeros(1)), NoisedTotal(np.array([8.0]), 1.0, 4.0, 0.1, 1.0), lr=1.0)
        >>> state.x, state.memory["first_moment"]
        (array([2.]), array([4.]))
    """

    momentum: float = 0.0
    second_moment: float = 0.0
    per_coordinate: bool = False
    trend: float = 0.0

    def step(self, state: State, total: NoisedTotal, lr: float) -> State:
        """The state after one round."""
        memory: dict[str, Vector] = {}
        mean = total.values
        if self.momentum:
            mean = _moving_mean("first_moment", total.values, self.momentum, state.memory, memory)
        length = lr * (math.sqrt(total.remaining) if self.trend else total.remaining)
        if not self.second_moment:
            return State(state.x + length / total.people * mean, memory)
        squares = total.values * total.values
        if not self.per_coordinate:  # added up in an order of ours: the same bits on every processor
            squares = row_sums(squares[None, :], overwrite=True) / max(1, len(total.values))
        energy = _moving_mean("second_moment", squares, self.second_moment, state.memory, memory)
        noise = _moving_mean("noise", np.array([total.noise_variance]), self.second_moment, state.memory, memory)
        scale = np.sqrt(np.maximum(energy - noise, noise))
        direction = np.divide(mean, scale, out=np.zeros_like(mean), where=scale > 0)
        if self.trend:
            length *= _signal_share(total, self.trend, state.memory, memory)
        return State(state.x + length * total.step * direction, memory)


def _signal_share(total: NoisedTotal, decay: float, before: Mapping[str, Vector], after: dict[str, Vector]) -> float:
    """The part of a long mean of totals that is not noise, at least ``MIN_SHARE``."""
    trend = _moving_mean("trend", total.values, decay, before, after)
    # The noise of independent rounds: their weights are squared, where those of the mean are added.
    noise = decay * decay * before.get("trend_noise", np.zeros(1)) + (1 - decay) * (1 - decay) * total.noise_variance
    after["trend_noise"] = noise
    weight = float(after["trend_weight"][0])
    energy = float(row_sums((trend * trend)[None, :], overwrite=True)[0]) / max(1, len(trend))
    if energy <= 0:
        return MIN_SHARE
    return max(MIN_SHARE, 1 - float(noise[0]) / (weight * weight * energy))


def _moving_mean(
    name: str, value: Vector, decay: float, before: Mapping[str, Vector], after: dict[str, Vector]
) -> Vector:
    """The exponential moving mean of what came under this name, divided by the weights that it has seen so far."""
    weights = f"{name}_weight"  # b^t by products: powers of the C library round differently
    after[name] = decay * before.get(name, np.zeros_like(value)) + (1 - decay) * value
    after[weights] = decay * before.get(weights, np.zeros(1)) + (1 - decay)
    return after[name] / after[weights]


SERVER_OPTIMIZERS: Final[Mapping[str, ServerOptimizer]] = {
    "sgd": ServerOptimizer(),
    "momentum": ServerOptimizer(0.8),
    "adam": ServerOptimizer(0.8, 0.95, per_coordinate=True),
    "auto": ServerOptimizer(0.6, 0.95, trend=0.97),
}
