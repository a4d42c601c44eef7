# %% [markdown]
# # Reading a statement
#
# Every result carries a privacy statement: who is protected, against whom, by which epsilon, and what is not covered.

# %%
import math

import uldp

federation = uldp.Federation.from_dataset("breast-cancer", seed=0)
result = uldp.train(federation, method="uldp-avg", epsilon=2.0, rounds=10, secrets="simulated", progress=False)
result.statement

# %% [markdown]
# **The first sentence** is the guarantee. Here it says that there is none, because this page takes its noise from a
# seed; the rest tells what would hold with secret noise.
#
# **Epsilon** bounds what anybody learns about one person: whatever someone concludes from the released models would
# have been concluded with nearly the same probability had this person not taken part. *Nearly* is a factor of at most
# e^epsilon, except with probability delta.

# %%
statement = result.statement
print(f"epsilon {statement.epsilon:.3f} at delta {statement.delta:g}")
print(f"a factor of at most {math.exp(statement.epsilon):.1f}")

# %% [markdown]
# **Who faces which epsilon.** Not everybody sees the same. A silo knows its own share of the noise, so less of it
# protects against this silo; two colluding silos know two shares.

# %%
for exposure in statement.exposures:
    print(f"{exposure.epsilon:6.3f}  {exposure.who}")

# %% [markdown]
# **Caveats** have a code, a severity and a sentence. Those that weaken the guarantee stand directly below the headline.

# %%
for caveat in statement.caveats:
    print(f"{caveat.severity.name.lower():8} {caveat.code:14} {caveat.text}")

# %% [markdown]
# **What a record-level guarantee is worth for a person.** Ordinary DP-SGD protects single records. The statement of
# `record-dp` says what a person with many records faces.

# %%
record = uldp.plan(federation, method="record-dp", epsilon=2.0, rounds=5).statement
for records, epsilon in record.per_person:
    print(f"{records:3} records: epsilon {epsilon:.1f}")
