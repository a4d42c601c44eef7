"""One step of all parameters, n of them from ``p`` on, with the gradients from ``g`` on."""

from __future__ import annotations

from typing import Final

from uldp.learners.kernels import layout as at
from uldp.native.jit import kernel, stay_apart
from uldp.native.simd import LANES, fma, load, root, spread_like, store

SGD: Final = 0
ADAM: Final = 1
MOMENTUM: Final = 2
ADAMW: Final = 3

BETA1: Final = 0.9
BETA2: Final = 0.999
EPSILON: Final = 1e-8


@kernel
def sgd(ws, p, g, n, lr, decay):
    """p <- (1 - lr decay) p - lr g, as torch.optim.SGD."""
    stay_apart()
    keep, rate = spread_like(ws, 1.0 - lr * decay), spread_like(ws, -lr)
    for i in range(0, n, LANES):
        store(ws, p + i, fma(rate, load(ws, g + i), keep * load(ws, p + i)))


@kernel
def momentum_sgd(ws, p, g, velocity, n, lr, decay, momentum):
    """v <- momentum v + g + decay p;  p <- p - lr v, as torch.optim.SGD without dampening; v starts at zero."""
    stay_apart()
    decays, rate, keep = spread_like(ws, decay), spread_like(ws, -lr), spread_like(ws, momentum)
    for i in range(0, n, LANES):
        value = load(ws, p + i)
        moved = fma(keep, load(ws, velocity + i), fma(decays, value, load(ws, g + i)))
        store(ws, velocity + i, moved)
        store(ws, p + i, fma(rate, moved, value))


@kernel
def adam(ws, p, g, mean, square, n, lr, decay, shrink, power1, power2):
    """As torch.optim.Adam and AdamW with their default constants; power1 and power2 are the betas to the step's number.

    p <- (1 - shrink) p;  g <- g + decay p;  mean <- mean + (1 - beta1) (g - mean);
    square <- beta2 square + (1 - beta2) g^2;
    p <- p - lr / (1 - power1) mean / (sqrt(square) / sqrt(1 - power2) + epsilon).
    Adam has no shrink, AdamW no decay.
    """
    stay_apart()
    decays, keep, size = spread_like(ws, decay), spread_like(ws, 1.0 - shrink), spread_like(ws, -lr / (1.0 - power1))
    scale, epsilon = root(spread_like(ws, 1.0 - power2)), spread_like(ws, EPSILON)
    new1, old2, new2 = spread_like(ws, 1.0 - BETA1), spread_like(ws, BETA2), spread_like(ws, 1.0 - BETA2)
    for i in range(0, n, LANES):
        value = keep * load(ws, p + i)
        gradient = fma(decays, value, load(ws, g + i))
        average = load(ws, mean + i)
        average = fma(new1, gradient - average, average)
        squares = fma(new2 * gradient, gradient, old2 * load(ws, square + i))
        store(ws, mean + i, average)
        store(ws, square + i, squares)
        store(ws, p + i, fma(size, average / (root(squares) / scale + epsilon), value))


@kernel
def advance(ws, head, optimiser, settings, power1, power2, stepping):
    """One step of the optimiser; settings are lr, weight decay and momentum. ``stepping``: linear layers had theirs."""
    stay_apart()
    g, first, second, n = head[at.GRADIENTS], head[at.MEANS], head[at.SQUARES], head[at.PARAMETERS]
    lr, decay = settings[0], settings[1]
    if optimiser == SGD:
        sgd(ws, 0, g, head[at.EXPLICIT] if stepping else n, lr, decay)
    elif optimiser == MOMENTUM:
        momentum_sgd(ws, 0, g, first, n, lr, decay, settings[2])
    elif optimiser == ADAM:
        adam(ws, 0, g, first, second, n, lr, decay, 0.0, power1, power2)
    else:
        adam(ws, 0, g, first, second, n, lr, 0.0, lr * decay, power1, power2)
