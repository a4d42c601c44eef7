"""What ``auto`` does, as one table of constants; a search varies it, and nothing else holds such a number.

The one number that no schedule can change is rho, the ratio of noise to signal of a whole run
(:meth:`uldp.privacy.releases.GaussianSum.noise_to_signal`): with more rounds at the same epsilon, signal and noise of
the summed totals grow alike. So clip and steps follow from rho and from the task. All of it is public.

The constants were searched for on made-up federations (:mod:`uldp.data.synthetic_tables`) and on the sets that
:mod:`uldp.bench.utility_sets` marks as searched; its other sets judge them. Near the optimum they matter little.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Final

from uldp.elementary import power
from uldp.methods.server_optimizer import SERVER_OPTIMIZERS, ServerOptimizer
from uldp.privacy.releases import PublicFacts

KNEE: Final = 0.05
"""The rho from which on noise is what limits the steps."""
PARAMETERS: Final = 16


QUIET: Final = 0.004
"""The rho below which the clip grows, with the square root."""
MAX_CLIP: Final = 2.0
"""How many times it grows at most."""
STANDARDISED: Final = 2.75
"""How many times as large features usually are that no schema scales to [-1, 1]: they have about unit variance."""


def feature_scale(facts: PublicFacts) -> float:
    """How large features are, in units of those under a schema. Gradients grow with it, and weights shrink."""
    return STANDARDISED if math.isinf(facts.feature_norm) else 1.0


@dataclass(frozen=True)
class TaskRecipe:
    """The constants of a task.

    Args:
        local_lr: The learning rate inside a silo, as far as it is stable.
        stable_lr: The largest stable learning rate times 1 + |x|^2: the loss's curvature along x is bounded by
            2 / stable_lr times |x|^2 (2 for squared error, 1/2 for cross-entropy).
        clip: The clip, for ``local_lr`` and rho from ``QUIET`` up. Squared errors of any size then count about alike,
            as in robust regression.
        step: By how much, in the root mean square, the first round moves a parameter where rho is ``KNEE``.
        gain: Steps grow with rho to the power of minus this below the knee.
        loss: And fall with rho to the power of minus this above it.
        max_step: They do not grow beyond this.
        width: They fall with the number of parameters to the power of minus this; ``step`` is for ``PARAMETERS``.
    """

    local_lr: float
    stable_lr: float
    clip: float
    step: float
    gain: float
    loss: float
    max_step: float
    width: float = 0.0

    def bounded_lr(self, facts: PublicFacts) -> float:
        """The local learning rate: beyond stability a user's training diverges, whatever the server does."""
        if math.isinf(facts.feature_norm):  # nothing is known
            return self.local_lr
        return min(self.local_lr, self.stable_lr / (1 + facts.feature_norm**2))

    def clip_at(self, rho: float, facts: PublicFacts) -> float:
        """C. A user's change is proportional to the local learning rate, and the clip has to go with it.

        And to the length of the records: of every category one feature is 1, while numbers seldom fill their ranges.
        Clipping biases what is learned; where there is next to no noise, a larger clip costs nothing.
        """
        length = feature_scale(facts) * math.sqrt(1 + facts.category_columns)
        length *= min(max(math.sqrt(QUIET / max(rho, 1e-9)), 1.0), MAX_CLIP)
        return self.clip * length * self.bounded_lr(facts) / self.local_lr

    def step_at(self, rho: float, facts: PublicFacts) -> float:
        """The first step of the noise-aware server."""
        ratio = max(rho, 1e-9) / KNEE
        wanted = self.step * float(power(ratio, -self.gain if ratio < 1 else -self.loss))
        width = float(power(max(facts.dimension, 1) / PARAMETERS, -self.width))
        return min(wanted, self.max_step) * width / feature_scale(facts)


@dataclass(frozen=True)
class LinearRecipe:
    """The constants of linear models (:mod:`uldp.methods.standardized_sgd`).

    Args:
        means: The share of the rounds that are about means.
        spreads: The share of the rounds that are about spreads.
        fewest: With fewer rounds than this none is spent on them.
        means_length: How long a row of means may be, for each number in it.
        squares_length: The same of squares, at first.
        usual_spread: Of a feature between -1 and 1, where nothing is known.
        usual_error: Of a label, likewise.
        equalised: How far features' spreads are made equal: 0 not at all, 1 wholly.
        least_spread: Of the usual one; nothing is taken for less.
        clip: How long a row of steps may be, relative to the errors and for each number, where rho is ``KNEE``.
        quiet: The clip falls with rho to the power of minus this.
        max_clip: How many times it grows at most.
        step: By how much, in the root mean square, the first round moves a parameter where rho is ``KNEE``.
        gain: Steps grow with rho to the power of minus this below the knee.
        reach: And with rho to the power of this above it: among much noise, a round's direction is less often right.
        loud: Up to this rho, from where on they fall as 1 / rho: little can be learned, and noise moves the model.

    Example:
        >>> LinearRecipe().first_rounds(100)
        (4, 4)
    """

    means: float = 0.04
    spreads: float = 0.04
    fewest: int = 10
    means_length: float = 0.5
    squares_length: float = 0.25
    usual_spread: float = 0.4
    usual_error: float = 0.5
    equalised: float = 0.75
    least_spread: float = 0.5
    clip: float = 0.56
    quiet: float = 0.35
    max_clip: float = 2.4
    step: float = 0.067
    gain: float = 0.15
    reach: float = 0.9
    loud: float = 0.4

    def first_rounds(self, rounds: int) -> tuple[int, int]:
        """How many rounds are about means, and how many about spreads.

        Args:
            rounds: T.
        """
        if rounds < self.fewest:
            return 0, 0
        return max(1, round(self.means * rounds)), max(1, round(self.spreads * rounds))

    def length_at(self, rho: float) -> float:
        """How long a row of steps may be, relative to the errors and for each number.

        Args:
            rho: The noise-to-signal ratio of the run.
        """
        return self.clip * min(float(power(max(rho, 1e-9) / KNEE, -self.quiet)), self.max_clip)

    def step_at(self, rho: float) -> float:
        """The first step of the noise-aware server.

        Args:
            rho: The noise-to-signal ratio of the run.
        """
        if rho <= KNEE:
            return self.step * float(power(max(rho, 1e-9) / KNEE, -self.gain))
        return self.step * float(power(min(rho, self.loud) / KNEE, self.reach)) * min(1.0, self.loud / rho)


@dataclass(frozen=True)
class Recipe:
    """All constants of ``auto``.

    Args:
        rounds: T.
        local_epochs: Q.
        server: The server optimiser ``auto``.
        classes: For classification and survival.
        numbers: For regression.
        linear: For linear models of either.

    Example:
        >>> from dataclasses import replace
        >>> replace(Recipe(), rounds=50).task(PublicFacts(100, 5, 10, task="regression")).local_lr
        0.5
    """

    rounds: int = 100
    local_epochs: int = 1
    server: ServerOptimizer = field(default=SERVER_OPTIMIZERS["auto"])
    classes: TaskRecipe = field(default=TaskRecipe(1.0, 4.0, 0.6, 0.5, 0.2, 0.1, 1.2))
    numbers: TaskRecipe = field(default=TaskRecipe(0.5, 1.0, 0.05, 0.05, 0.5, 0.5, 0.1, width=0.5))
    linear: LinearRecipe = field(default=LinearRecipe())

    def task(self, facts: PublicFacts) -> TaskRecipe:
        """The constants of the federation's task."""
        return self.numbers if facts.task == "regression" else self.classes


RECIPE: Final = Recipe()
