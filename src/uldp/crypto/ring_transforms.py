"""The compiled kernels of the ring: their tables, and how they are called."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from uldp.errors import ConfigError
from uldp.native.sources import Sources

Polynomials = npt.NDArray[np.uint64]

N: Final = 4096
"""The number of coefficients of a polynomial."""
PRIMES: Final = (2**48 - 16383, 2**48 - 73727)
"""The two largest primes below 2^48 that are 1 modulo 2N."""
LIMBS: Final = len(PRIMES)
MAX_VALUE: Final = 2**50
"""Integers that are multiplied with ciphertexts are smaller than this in magnitude."""

_SOURCES: Final = Sources("ring", [Path(__file__).with_name("ring_kernels.py")])
_LANES: Final = 8


@functools.cache
def compiled(name: str) -> Any:
    """A kernel of ``ring_kernels`` by its name, with its compiled code on disk."""
    from numba.core import config

    if config.DISABLE_JIT:
        reason = "the ring arithmetic of lattice is compiled, and NUMBA_DISABLE_JIT is set; unset it, or take 'masked'"
        raise ConfigError(reason, location="aggregation.name", value="lattice")
    from uldp.crypto import ring_kernels
    from uldp.native.cache import keep_on_disk

    return keep_on_disk(getattr(ring_kernels, name), _SOURCES)


def read_only(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """A flat view of what kernels only read, as int64 if it is uint64: one type, for which they are compiled once."""
    view = np.ascontiguousarray(array).reshape(-1).view()
    view = view.view(np.int64) if view.dtype == np.uint64 else view
    view.flags.writeable = False
    return view


def transformed(polynomials: Polynomials, *, inverse: bool) -> Polynomials:
    """Polynomials (..., 2, N) as evaluations, or back."""
    if polynomials.shape[-2:] != (LIMBS, N):
        raise ValueError(f"polynomials are (..., {LIMBS}, {N}), not {polynomials.shape}")
    kernel, source = compiled("coefficients" if inverse else "evaluations"), read_only(polynomials)
    result = np.empty(source.size, dtype=np.int64)
    workspace = np.empty(N + _LANES * _LANES)
    for limb, table in enumerate(tables(inverse=inverse)):
        kernel(source, limb, workspace, table, result)
    return result.view(np.uint64).reshape(polynomials.shape)


# --- tables -----------------------------------------------------------------------------------------------------------


@functools.cache
def tables(*, inverse: bool = False) -> npt.NDArray[np.float64]:
    """What kernels read, a row for each limb: the factors of all stages, or their inverses; 1 / N; p."""
    found = np.stack([_table(p, inverse) for p in PRIMES])
    found.flags.writeable = False
    return found


def _table(p: int, inverse: bool) -> npt.NDArray[np.float64]:
    exponents = _stages()
    powers = _powers(p, inverse)
    nodes = [_node(0, [0] * _LANES, exponents, powers, p)]
    for level, count in ((3, 1), (6, 8), (9, 64)):  # the second to the fourth pass, each with its nodes per lane
        lanes = [[count * lane + node for lane in range(_LANES)] for node in range(count)]
        nodes += [_node(level, row, exponents, powers, p) for row in lanes]
    end = [*_with_quotient([pow(N, -1, p)] * _LANES, p), [float(p)]]
    return np.concatenate([*(row for node in nodes for row in node), *end])


def _stages() -> list[list[int]]:
    """For each stage and node the exponent e of its factor w = root^e; the node divides x^2m - w^2 into x^m -+ w.

    The first node is x^N + 1 = x^N - root^N; the factors of a node are +w and -w = root^(e + N).
    """
    stages, nodes = [], [N]
    while nodes[0] > 1:
        stages.append([exponent // 2 for exponent in nodes])
        nodes = [child for half in stages[-1] for child in (half, half + N)]
    return stages


def _powers(p: int, inverse: bool) -> list[int]:
    """The powers of a root of order 2N modulo p, or of its inverse."""
    root = next(root for g in range(2, 100) if pow(root := pow(g, (p - 1) // (2 * N), p), N, p) == p - 1)
    root = pow(root, -1, p) if inverse else root
    powers = [1]
    for _ in range(2 * N - 1):
        powers.append(powers[-1] * root % p)
    return powers


def _node(level: int, lanes: list[int], exponents: list[list[int]], powers: list[int], p: int) -> list[list[float]]:
    """Three stages from ``level`` on: 1 + 2 + 4 vectors of factors, then those of their quotients by p."""
    rows = []
    for stage in range(3):
        for child in range(2**stage):
            at = [2**stage * node + child for node in lanes]
            rows.append(_with_quotient([powers[exponents[level + stage][node]] for node in at], p))
    return [row[0] for row in rows] + [row[1] for row in rows]


def _with_quotient(factors: list[int], p: int) -> tuple[list[float], list[float]]:
    """Factors between -p/2 and p/2, and the floats next to their quotients by p (Python rounds those once)."""
    centred = [factor - p if factor > p // 2 else factor for factor in factors]
    return [float(factor) for factor in centred], [factor / p for factor in centred]
