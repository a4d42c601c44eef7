# %% [markdown]
# # Your own tables
#
# Two hospitals, a data frame each, and patients whom both know. The tables are made up here; yours come from
# `pd.read_csv` or a data base.

# %%
import numpy as np
import pandas as pd

import uldp

random = np.random.default_rng(1)


def visits(hospital, count, people):
    """Rows of visits; a person may be known to several hospitals."""
    table = pd.DataFrame({"patient_id": random.choice(people, count)})
    table["age"] = random.integers(20, 95, count)
    table["blood_pressure"] = random.normal(130, 18, count).round()
    table["smoker"] = random.choice(["no", "yes"], count, p=[0.7, 0.3])
    risk = 0.06 * (table.age - 58) + 0.05 * (table.blood_pressure - 130) + 1.3 * (table.smoker == "yes") - 0.4
    table["outcome"] = (random.random(count) < 1 / (1 + np.exp(-risk))).astype(int)
    return table


people = [f"P{number:04d}" for number in range(600)]
north, harbour = visits("north", 1400, people[:400]), visits("harbour", 900, people[250:])
test = visits("test", 500, ["someone else"])
north.head()

# %% [markdown]
# **A schema of public constants.** How a cell becomes a number must not depend on the data, or the preprocessing would
# tell something about the people. So ranges and categories are agreed on beforehand: what is possible, not what occurs.

# %%
schema = (
    uldp.Schema.classes("outcome", [0, 1])
    .numeric("age", 0, 110)
    .numeric("blood_pressure", 60, 240)
    .category("smoker", ["no", "yes"])
)
schema

# %% [markdown]
# `Schema.draft` proposes one. It reads your data to do so, and says which of its values it read: agree on rounder,
# wider ones before you train.

# %%
uldp.Schema.draft({"north": north, "harbour": harbour}, user="patient_id", label="outcome")

# %% [markdown]
# **Train.** `users` is the list of all people who might take part (a register, say), or a number that ids are hashed
# into. Who of them is in the data remains hidden.

# %%
result = uldp.train(
    {"north": north, "harbour": harbour},
    user="patient_id",
    label="outcome",
    schema=schema,
    users=people,
    test=test,
    epsilon=3.0,
    seed=1,
    secrets="simulated",  # so that this page is the same every time; leave it out for real data
    progress=False,
)
result

# %% [markdown]
# **Predict** on a data frame with the same columns; preprocessing is part of the model.

# %%
new = test.drop(columns=["patient_id", "outcome"]).head(4)
new.assign(prediction=result.predict(new), probability=result.predict_proba(new)[:, 1].round(3))
