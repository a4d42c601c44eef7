"""One step of all parameters, n of them from ``p`` on, with the gradients from ``g`` on."""

from __future__ import annotations

from typing import Final

from uldp.learners.kernels.jit import kernel, stay_apart
from uldp.learners.kernels.simd import LANES, fma, load, root, spread_like, store

SGD: Final = 0
ADAM: Final = 1

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
def adam(ws, p, g, mean, square, n, lr, decay, power1, power2):
    """As torch.optim.Adam with its default constants; power1 and power2 are the betas to the number of the step.

    g <- g + decay p;  mean <- mean + (1 - beta1) (g - mean);  square <- beta2 square + (1 - beta2) g^2;
    p <- p - lr / (1 - power1) mean / (sqrt(square) / sqrt(1 - power2) + epsilon).
    """
    stay_apart()
    decays, size = spread_like(ws, decay), spread_like(ws, -lr / (1.0 - power1))
    scale, epsilon = root(spread_like(ws, 1.0 - power2)), spread_like(ws, EPSILON)
    new1, old2, new2 = spread_like(ws, 1.0 - BETA1), spread_like(ws, BETA2), spread_like(ws, 1.0 - BETA2)
    for i in range(0, n, LANES):
        value = load(ws, p + i)
        gradient = fma(decays, value, load(ws, g + i))
        average = load(ws, mean + i)
        average = fma(new1, gradient - average, average)
        squares = fma(new2 * gradient, gradient, old2 * load(ws, square + i))
        store(ws, mean + i, average)
        store(ws, square + i, squares)
        store(ws, p + i, fma(size, average / (root(squares) / scale + epsilon), value))
