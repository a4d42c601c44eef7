# %% [markdown]
# # First steps
#
# Four hospitals train one model. The same person may have records in several of them, and nobody shall be able to tell
# from the model whether a given person took part.
#
# We begin with a data set that comes with the package: 569 records of breast tumours, dealt to people and silos.

# %%
import uldp

federation = uldp.Federation.from_dataset("breast-cancer", seed=0)
print(federation.users, "people;", {silo.name: len(silo) for silo in federation.silos})

# %% [markdown]
# **Look ahead.** `uldp.plan` checks everything and calibrates the noise. Nothing is trained, no budget is spent.

# %%
uldp.plan(federation, epsilon=3.0, rounds=20)

# %% [markdown]
# **Train.** Epsilon is the budget; the noise follows from it.

# %%
result = uldp.train(federation, epsilon=3.0, rounds=20, secrets="simulated", progress=False)
result

# %% [markdown]
# `secrets="simulated"` takes the noise from the seed, so that this page is the same every time it is built. The
# statement says so, and a model with such noise has no guarantee. Leave it out for data of your own: noise then comes
# from the operating system.
#
# **Look at it.** The history is a data frame, the model an `nn.Module`.

# %%
result.history.tail(3)

# %%
result.module()
