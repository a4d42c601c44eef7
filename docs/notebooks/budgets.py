# %% [markdown]
# # Budgets over several runs
#
# Epsilon adds up. Whoever trains twice on the same people has released two models, and what somebody learns from both
# is bounded by the two together.

# %%
import uldp

federation = uldp.Federation.from_dataset("breast-cancer", seed=0)
first = uldp.train(federation, epsilon=1.0, rounds=10, secrets="simulated", progress=False)
second = uldp.train(federation, epsilon=1.0, rounds=10, seed=1, secrets="simulated", progress=False)
print(f"{first.epsilon:.2f} and {second.epsilon:.2f}; both together {second.total:.2f}")

# %% [markdown]
# Two times 1.0 is less than 2.0: the two releases are composed, not their epsilons added.
#
# `result.total` is the running total of this process. `uldp.total` adds up any results, and run directories on disk.
# People are recognised by what the tables hold, not by the names of files; where it cannot be told for sure that two
# runs are about different people, they are added up.

# %%
uldp.total(first, second)

# %% [markdown]
# **A run that stops early costs less.** A callback that returns True ends training; so does Ctrl-C, after the round
# under way. What was released until then is what counts.

# %%
stopped = uldp.train(
    federation,
    epsilon=1.0,
    rounds=10,
    secrets="simulated",
    progress=False,
    callbacks=lambda report: report.round == 4,
)
print(f"{stopped.rounds} rounds, epsilon {stopped.epsilon:.2f}")

# %% [markdown]
# It can go on later, and ends where it would have ended without the pause.

# %%
resumed = stopped.resume()
print(f"{resumed.rounds} rounds, epsilon {resumed.epsilon:.2f}")
