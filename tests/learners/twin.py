"""The slow twin: one module copy and one torch optimiser per user, one batch after the other."""

from __future__ import annotations

import copy

import numpy as np
import torch
from torch import nn

from uldp.data.federation import SiloData, Task
from uldp.learners.base import LocalTraining
from uldp.learners.loop import DropoutAddress, address_dropout
from uldp.learners.randomness import TrainingRandomness
from uldp.rng import Streams

STREAMS = Streams.from_seed(7).child("silo", 0, "round", 3)


def make_silo(counts, shape, task, seed=0, name="a"):
    """A silo in which user u has counts[u] records, shuffled."""
    generator = np.random.default_rng(seed)
    users = generator.permutation(np.repeat(np.arange(len(counts)), counts)).astype(np.int64)
    features = generator.normal(size=(len(users), *shape)).astype(np.float32)
    if task.kind == "survival":
        # Few different times, so that there are ties.
        labels = (generator.integers(1, 9, size=len(users)) * generator.choice([-1, 1], size=len(users))).astype("f4")
    elif task.classes:
        labels = generator.integers(task.classes, size=len(users)).astype(np.int64)
    else:
        labels = generator.normal(size=len(users)).astype(np.float32)
    return SiloData(name, features, labels, users)


def cox_loss(scores: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """The mean over events of log(sum of exp over those still there) - score, term by term."""
    events = (labels > 0).nonzero()[:, 0].tolist()
    terms = [torch.logsumexp(scores[labels.abs() >= labels[i]], 0) - scores[i] for i in events]
    return torch.stack(terms).mean() if terms else scores.sum() * 0.0


def loss_of(task: Task, outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    if task.kind == "survival":
        return cox_loss(outputs[:, 0], labels)
    if task.kind == "regression":
        return nn.functional.mse_loss(outputs[:, 0], labels)
    if outputs.shape[1] == 1:
        return nn.functional.binary_cross_entropy_with_logits(outputs[:, 0], labels)
    return nn.functional.cross_entropy(outputs, labels)


def load(module: nn.Module, x: np.ndarray) -> nn.Module:
    module = copy.deepcopy(module).double().train()
    torch.nn.utils.vector_to_parameters(torch.from_numpy(x.copy()), module.parameters())
    return module


def flat(module: nn.Module) -> np.ndarray:
    return torch.nn.utils.parameters_to_vector(module.parameters()).detach().numpy().copy()


def tensors(module, task, data, user):
    rows = np.flatnonzero(data.users == user)
    features = torch.from_numpy(data.features[rows]).double()
    labels = torch.from_numpy(data.labels[rows])
    one = task.kind != "classification" or module(features[:1]).shape[1] == 1
    return features, labels.double() if one else labels


def train_user(module, task, data, user, x, local: LocalTraining, streams: Streams) -> np.ndarray:
    """x_u - x, by torch's own layers, autograd and optimisers."""
    here = DropoutAddress()
    model = address_dropout(load(module, x), here)
    features, labels = tensors(model, task, data, user)
    noise = TrainingRandomness(streams, np.array([user]))
    kind = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[local.optimizer]
    more = {"momentum": local.momentum} if local.optimizer == "sgd" else {}
    optimizer = kind(model.parameters(), lr=local.lr, weight_decay=local.weight_decay, **more)
    count, step = len(labels), 0
    for epoch in range(local.epochs):
        order = np.arange(count)
        if count > local.batch_size:
            order = noise.orders(np.array([0]), np.array([epoch]), np.array([count]))[0]
        for first in range(0, count, local.batch_size):
            batch = torch.from_numpy(order[first : first + local.batch_size])
            here.set(noise, step, 0)
            optimizer.zero_grad()
            loss_of(task, model(features[batch]), labels[batch]).backward()
            optimizer.step()
            step += 1
    return flat(model) - x


def gradient_of_user(module, task, data, user, x, streams: Streams) -> np.ndarray:
    here = DropoutAddress()
    model = address_dropout(load(module, x), here)
    features, labels = tensors(model, task, data, user)
    here.set(TrainingRandomness(streams, np.array([user])), 0, 0)
    loss_of(task, model(features), labels).backward()
    return torch.cat([p.grad.reshape(-1) for p in model.parameters()]).numpy()


def collect(chunks):
    """user -> row, each user once."""
    rows = {}
    for users, values in chunks:
        assert len(users) == len(values)
        for user, value in zip(users.tolist(), values, strict=True):
            assert user not in rows
            rows[user] = value
    return rows
