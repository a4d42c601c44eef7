"""Three ways to get every user's gradient, behind one interface: batched rules, ``torch.func``, a loop.

A net holds the parameters of a chunk of users. ``step`` runs one batch of every active user and hands the gradients
to an :class:`~uldp.learners.updates.Update`.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from uldp.learners.compile import Compiled
from uldp.learners.losses import Loss, Targets
from uldp.learners.noise import Noise, Place
from uldp.learners.rules import Moment, Slot, plain_slot
from uldp.learners.seeding import seed_cpu
from uldp.learners.updates import Update, Weight


class Net(ABC):
    """The models of ``users`` users, all of them at x in the beginning."""

    def __init__(self, slots: tuple[Slot, ...], x: Tensor, users: int) -> None:
        self._slots = slots
        self._x = x
        self._weights = [Weight(slot.load(x, users)) for slot in slots]

    def focus(self, active: int) -> None:
        """Let only the first ``active`` users train from here on."""
        for weight in self._weights:
            weight.focus(active)

    def restart(self, x: Tensor, active: int) -> None:
        """Bring the first ``active`` users to x, with nothing accumulated, and let only them train."""
        self._x = x
        for slot, weight in zip(self._slots, self._weights, strict=True):
            weight.focus(active)
            weight.now.copy_(slot.view(x))
            for state in weight.states:
                state.zero_()

    def store_deltas(self, first: int, rows: Tensor) -> None:
        """Write x_u - x of the users from ``first`` on to ``rows``."""
        for slot, weight in zip(self._slots, self._weights, strict=True):
            slot.store(weight.full[first : first + len(rows)], rows)
        rows -= self._x

    def store_states(self, rows: Tensor) -> None:
        """Write what the update kept for the weights (accumulated gradients) to ``rows``."""
        for slot, weight in zip(self._slots, self._weights, strict=True):
            slot.store(weight.add_states(1)[0][: len(rows)], rows)

    def prepare(self, features: Tensor) -> Tensor:
        """Features (users, records, ...) as :meth:`step` wants them; done once for records that come again."""
        return features

    @abstractmethod
    def step(self, inputs: Tensor, targets: Targets, moment: Moment, update: Update) -> None: ...


class RulesNet(Net):
    """Batched rules, forward and backward by hand."""

    def __init__(self, compiled: Compiled, loss: Loss, x: Tensor, users: int) -> None:
        super().__init__(tuple(slot for rule in compiled.rules for slot in rule.slots), x, users)
        self._rules, self._loss, self._images = compiled.rules, loss, compiled.images
        self._last = next(i for i, rule in enumerate(self._rules) if rule.slots)
        weights = iter(self._weights)
        for rule in self._rules:
            rule.bind([next(weights) for _ in rule.slots])

    def prepare(self, features: Tensor) -> Tensor:
        if self._images:
            return self._rules[0].prepare(features.permute(0, 2, 3, 1, 4).contiguous())
        return self._rules[0].prepare(features.flatten(2))

    def step(self, inputs: Tensor, targets: Targets, moment: Moment, update: Update) -> None:
        update.begin(moment.step)
        values = inputs
        for rule in self._rules:
            values = rule.forward(values, moment)
        g = self._loss.gradient(values, targets)
        for rule in reversed(self._rules[self._last :]):
            g = rule.backward(g, update)


class _ModuleNet(Net):
    """Shared by the two general ways: the parameters by name, in the order of the flat vector."""

    def __init__(self, module: nn.Module, loss: Loss, x: Tensor, users: int) -> None:
        named = [(name, p) for name, p in module.named_parameters() if p.requires_grad]
        slots, start = [], 0
        for _, parameter in named:
            slots.append(plain_slot(start, tuple(parameter.shape)))
            start += parameter.numel()
        super().__init__(tuple(slots), x, users)
        # A copy: functional_call changes the module while it runs, and chunks may run side by side.
        self._module = copy.deepcopy(module).train()
        self._names = [name for name, _ in named]
        self._loss = loss

    def _user_loss(self, parameters: dict[str, Tensor], inputs: Tensor, labels: Tensor, mask: Tensor) -> Tensor:
        outputs = functional_call(self._module, parameters, (inputs,))
        return self._loss(outputs.unsqueeze(0), labels.unsqueeze(0), mask.unsqueeze(0)).squeeze(0)

    @abstractmethod
    def _gradients(self, inputs: Tensor, targets: Targets, moment: Moment) -> list[Tensor]:
        """For every parameter the gradients (users, ...) of the users' mean losses."""

    def step(self, inputs: Tensor, targets: Targets, moment: Moment, update: Update) -> None:
        update.begin(moment.step)
        for weight, gradient in zip(self._weights, self._gradients(inputs, targets, moment), strict=True):
            if targets.share is not None:
                gradient = gradient * targets.share.view(-1, *[1] * (gradient.ndim - 1))
            update.dense(weight, gradient)


class FuncNet(_ModuleNet):
    """``torch.func``: any module that can be vectorised and that makes no random choices."""

    def __init__(self, module: nn.Module, loss: Loss, x: Tensor, users: int) -> None:
        super().__init__(module, loss, x, users)
        self._all: Callable[..., dict[str, Tensor]] = vmap(grad(self._user_loss), randomness="error")

    def _gradients(self, inputs: Tensor, targets: Targets, moment: Moment) -> list[Tensor]:
        parameters = {name: weight.now for name, weight in zip(self._names, self._weights, strict=True)}
        gradients = self._all(parameters, inputs, targets.labels, targets.mask)
        return [gradients[name] for name in self._names]


class LoopNet(_ModuleNet):
    """One user after the other, with that user's own records only. Slow, for models that nothing else can run.

    Dropout layers follow the same addresses as the batched rule; other random layers draw from torch's generator,
    which is seeded by user and step.
    """

    def __init__(self, module: nn.Module, loss: Loss, x: Tensor, users: int) -> None:
        super().__init__(module, loss, x, users)
        self._here = Address()
        self._module = address_dropout(self._module, self._here)

    def _gradients(self, inputs: Tensor, targets: Targets, moment: Moment) -> list[Tensor]:
        rows = [self._one(user, inputs, targets, moment) for user in range(len(inputs))]
        return [torch.stack(gradients) for gradients in zip(*rows, strict=True)]

    def _one(self, user: int, inputs: Tensor, targets: Targets, moment: Moment) -> tuple[Tensor, ...]:
        with torch.random.fork_rng(devices=[]):
            seed_cpu(moment.noise.seed(user, moment.step) ^ moment.first)
            return self._alone(user, inputs, targets, moment)

    def _alone(self, user: int, inputs: Tensor, targets: Targets, moment: Moment) -> tuple[Tensor, ...]:
        """The gradients of one user, by autograd."""
        count = int(targets.mask[user].sum())
        weights = [weight.now[user].detach().requires_grad_() for weight in self._weights]
        if not count:
            return tuple(torch.zeros_like(weight) for weight in weights)
        self._here.set(moment.noise.of(user), moment.step, moment.first)
        with torch.enable_grad():
            loss = self._user_loss(
                dict(zip(self._names, weights, strict=True)),
                inputs[user, :count],
                targets.labels[user, :count],
                targets.mask[user, :count],
            )
            gradients = torch.autograd.grad(loss, weights, allow_unused=True)
        return tuple(
            torch.zeros_like(weight) if gradient is None else gradient
            for weight, gradient in zip(weights, gradients, strict=True)
        )


class OneNet(LoopNet):
    """One user only, for layers of which we know all random choices: nothing is left to seed, nothing to copy.

    With a single user, torch's own convolutions are up to twice as fast as the batched rules.
    """

    def _gradients(self, inputs: Tensor, targets: Targets, moment: Moment) -> list[Tensor]:
        return [gradient.unsqueeze(0) for gradient in self._alone(0, inputs, targets, moment)]


class Address:
    """Whose turn it is, filled in before every call of the module; ``calls`` counts the uses of a layer within it."""

    def __init__(self) -> None:
        self.noise: Noise | None = None
        self.step = 0
        self.first = 0
        self.calls: Counter[int] = Counter()

    def set(self, noise: Noise, step: int, first: int) -> None:
        """The next call is for this noise's first user."""
        self.noise, self.step, self.first = noise, step, first
        self.calls.clear()


class AddressedDropout(nn.Module):
    """Dropout whose choices come from a :class:`Noise` instead of torch's generator."""

    def __init__(self, rate: float, layer: int, channels_only: bool, here: Address) -> None:
        super().__init__()
        self._rate, self._layer, self._channels_only, self._here = rate, layer, channels_only, here

    def forward(self, x: Tensor) -> Tensor:
        here = self._here
        if not self._rate or here.noise is None:
            return x
        layer = self._layer + (here.calls[self._layer] << 16)
        here.calls[self._layer] += 1
        place = Place(layer, range(here.step, here.step + 1), here.first)
        shape = (1, len(x), x.shape[1] if self._channels_only else x[0].numel())
        dtype = np.float64 if x.dtype == torch.float64 else np.float32
        mask = torch.from_numpy(here.noise.dropout(self._rate, place, shape, dtype)[0, 0])
        mask = mask.to(x.device)
        return x * (mask[:, :, None, None] if self._channels_only else mask.view_as(x))


def address_dropout(module: nn.Module, here: Address) -> nn.Module:
    """The module with its dropout layers replaced, numbered in the order of ``modules()``."""
    found = [m for m in module.modules() if type(m) in (nn.Dropout, nn.Dropout2d)]
    numbers = {id(dropout): number for number, dropout in enumerate(found)}
    for parent in list(module.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, nn.Dropout | nn.Dropout2d) and id(child) in numbers:
                channels_only = type(child) is nn.Dropout2d
                setattr(parent, name, AddressedDropout(child.p, numbers[id(child)], channels_only, here))
    return module
