"""What ``auto`` does, as one table of constants; a search varies it, and nothing else holds such a number.

The one number that no schedule can change is rho, the ratio of noise to signal of a whole run
(:meth:`uldp.privacy.releases.GaussianSum.noise_to_signal`): with more rounds at the same epsilon, signal and noise of
the summed totals grow alike. So clip and steps follow from rho and from the task. All of it is public.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Final

from uldp.methods.server_optimizer import SERVER_OPTIMIZERS, ServerOptimizer
from uldp.privacy.releases import PublicFacts


@dataclass(frozen=True)
class TaskRecipe:
    """The constants of a task.

    Args:
        local_lr: The learning rate inside a silo, as far as it is stable.
        stable_lr: The largest stable learning rate times 1 + |x|^2: the loss's curvature along x is bounded by
            2 / stable_lr times |x|^2 (2 for squared error, 1/2 for cross-entropy).
        clip: The clip is this over rho, within ``min_clip`` and ``max_clip``, for ``local_lr``.
        min_clip: See ``clip``.
        max_clip: See ``clip``.
        step: By how much, in the root mean square, the first round moves a parameter where noise is no limit.
        step_rho: The rho from which on steps become smaller, in proportion.
    """

    local_lr: float
    stable_lr: float
    clip: float
    min_clip: float
    max_clip: float
    step: float
    step_rho: float

    def bounded_lr(self, facts: PublicFacts) -> float:
        """The local learning rate: beyond stability a user's training diverges, whatever the server does."""
        if math.isinf(facts.feature_norm):  # nothing is known
            return self.local_lr
        return min(self.local_lr, self.stable_lr / (1 + facts.feature_norm**2))

    def clip_at(self, rho: float, facts: PublicFacts) -> float:
        """C. A user's change is proportional to the local learning rate, and the clip has to go with it."""
        wanted = self.max_clip if rho == 0 else min(max(self.clip / rho, self.min_clip), self.max_clip)
        return wanted * self.bounded_lr(facts) / self.local_lr

    def step_at(self, rho: float) -> float:
        """The first step of the noise-aware server."""
        return self.step * (1.0 if rho <= self.step_rho else self.step_rho / rho)


@dataclass(frozen=True)
class Recipe:
    """All constants of ``auto``.

    Args:
        rounds: T.
        local_epochs: Q.
        server: The server optimiser ``auto``.
        classes: For classification and survival.
        numbers: For regression.

    Example:
        >>> from dataclasses import replace
        >>> replace(Recipe(), rounds=50).task(PublicFacts(100, 5, 10, task="regression")).local_lr
        0.5
    """

    rounds: int = 100
    local_epochs: int = 1
    server: ServerOptimizer = field(default=SERVER_OPTIMIZERS["auto"])
    classes: TaskRecipe = field(default=TaskRecipe(1.0, 4.0, 0.02, 0.1, 2.0, 0.1, 0.3))
    numbers: TaskRecipe = field(default=TaskRecipe(0.5, 1.0, 0.005, 0.025, 0.5, 0.05, 0.1))

    def task(self, facts: PublicFacts) -> TaskRecipe:
        """The constants of the federation's task."""
        return self.numbers if facts.task == "regression" else self.classes


RECIPE: Final = Recipe()
