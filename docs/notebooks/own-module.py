# %% [markdown]
# # Your own module
#
# Any `nn.Module` whose output has one value per class (or a single one for numbers) can be trained. An
# `nn.Sequential` of common layers is trained by compiled kernels, and so is a class whose `forward` hands features from
# one such layer to the next. Others go through PyTorch, which takes some hundred times as long, and a warning says so.
#
# The outputs are scores, without a sigmoid or softmax at the end: the loss applies it.

# %%
import torch
from torch import nn

import uldp

torch.manual_seed(0)
federation = uldp.Federation.from_dataset("breast-cancer", seed=0)
features = federation.feature_shape[0]
net = nn.Sequential(nn.Linear(features, 8), nn.Tanh(), nn.Linear(8, 2))

# %% [markdown]
# The module is trained from the parameters that it came with. They must not come from the data: a network that was
# trained on these people before carries what it learned, and no noise is added to that.

# %%
result = uldp.train(federation, model=net, epsilon=5.0, rounds=20, secrets="simulated", progress=False)
result

# %% [markdown]
# `result.module()` is a copy with the trained parameters, in evaluation mode. From here on it is PyTorch only.

# %%
trained = result.module()
with torch.no_grad():
    scores = trained(torch.from_numpy(federation.test.features[:3]))
scores.softmax(dim=1)

# %% [markdown]
# **Fewer parameters need less noise.** Noise is added to every parameter, so the signal of n people is set against
# noise that grows with the square root of their number. With few people a linear model is often the better one.

# %%
linear = uldp.train(federation, model="logistic", epsilon=5.0, rounds=20, secrets="simulated", progress=False)
{name: round(r.metrics["accuracy"], 3) for name, r in {"own module": result, "logistic": linear}.items()}
