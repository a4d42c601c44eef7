# %% [markdown]
# # A federation, rehearsed
#
# Between organisations a server and one process per silo talk over [Flower](https://flower.ai) and TLS. `uldp rehearse`
# starts all of them on one machine, with certificates and keys made for the occasion, trains, and compares the model
# with that of a simulation. They are equal, bit for bit.

# %%
import json
import subprocess
import tempfile

command = ["uldp", "rehearse", "--dataset", "breast-cancer", "--method", "uldp-avg", "--aggregation", "masked"]
for setting in ("data.silos=3", "method.rounds=2", "run.threads=1"):
    command += ["--set", setting]
with tempfile.TemporaryDirectory() as folder:
    out = f"{folder}/rehearsal"
    finished = subprocess.run([*command, "--json", "--out", out], capture_output=True, text=True)
assert finished.returncode == 0, finished.stderr
report = json.loads(finished.stdout)["masked"]
{key: report[key] for key in ("identical", "rounds", "metrics")}

# %% [markdown]
# [Deployment](../deploy.md) says how the same experiment runs on machines of several organisations: keys, policies of
# the data owners, ports, and what happens when something fails.
