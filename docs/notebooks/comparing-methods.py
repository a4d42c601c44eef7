# %% [markdown]
# # Comparing methods
#
# Which method keeps the same promise at the smallest cost in accuracy? `uldp.compare` trains several with the same
# budget, on the same people, with the same seeds.

# %%
import uldp

federation = uldp.Federation.from_dataset("breast-cancer", seed=0)
comparison = uldp.compare(
    federation,
    ["fedavg", "uldp-naive", "uldp-avg", "uldp-avg-w"],
    epsilon=3.0,
    rounds=15,
    repeats=2,
    secrets="simulated",
    progress=False,
)
comparison

# %% [markdown]
# `fedavg` adds no noise and protects nobody: it is what could be reached. `uldp-naive` clips each silo's whole change
# and needs noise for a user who is present in every silo.

# %%
comparison.plot()

# %% [markdown]
# `comparison.frame` is a data frame, for tables and pictures of your own.

# %%
comparison.frame[["accuracy", "accuracy_std", "epsilon"]].round(3)

# %% [markdown]
# **A loop over settings** needs no data at all where only the cost in privacy matters.

# %%
for rate in (1.0, 0.5, 0.1):
    cost = uldp.epsilon("uldp-avg", noise_multiplier=5.0, rounds=50, settings={"sample_rate": rate})
    print(f"users sampled at {rate:3}: epsilon {cost:.2f}")

# %%
print(uldp.noise_multiplier("uldp-avg", epsilon=3.0, rounds=50))

# %% [markdown]
# **Choosing after looking is a use of the data.** Each run on real people is a release, and the choice between them is
# not covered by the statement of the one that was chosen. The last line below the table says what all runs cost
# together.
