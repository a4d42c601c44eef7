# %% [markdown]
# # Adding a method
#
# A method states what is released, computes one row per user inside a silo, and turns the noised total into the next
# model. Clip, weights, integer sum, noise and accounting belong to the release: a method cannot get them wrong.
#
# Here is ULDP-AVG with a server that averages the last models. The server sees noised totals only, so whatever it does
# with them costs no privacy.

# %%
from dataclasses import dataclass
from typing import ClassVar

import uldp


@dataclass(frozen=True, kw_only=True)
class AveragedAvg(uldp.UldpAvg):
    """y_(t+1) as in ULDP-AVG; what is released is x_(t+1) = keep x_t + (1 - keep) y_(t+1)."""

    keep: float = 0.5
    summary: ClassVar[str] = "ULDP-AVG with an average of the released models"

    def server(self, state, total, facts):
        moved = super().server(uldp.State(state.memory.get("fast", state.x)), total, facts).x
        return uldp.State((1 - self.keep) * moved + self.keep * state.x, {"fast": moved})


# %% [markdown]
# It is used like any other. Fields of the dataclass are settings.

# %%
federation = uldp.Federation.from_dataset("breast-cancer", seed=0)
settings = {"weighting": "records", "global_lr": 80.0, "local_lr": 0.3}
kinds = {"ULDP-AVG-w": uldp.UldpAvg(**settings), "averaged": AveragedAvg(**settings, keep=0.7)}
for name, method in kinds.items():
    result = uldp.train(federation, method=method, epsilon=3.0, rounds=20, secrets="simulated", progress=False)
    print(f"{name:12} accuracy {result.metrics['accuracy']:.3f}  epsilon {result.epsilon:.2f}")

# %% [markdown]
# The statement names the class, because one thing remains its author's assertion: that a row depends on the records of
# its own user alone.

# %%
print(result.statement.headline())

# %% [markdown]
# [Add a method](../add-a-method.md) has all hooks, and an example with a release of its own.
