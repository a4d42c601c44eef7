"""ChaCha20 for many keys at once: compiled.

Sixteen blocks of any keys are computed together, one in each lane. The state of RFC 8439, with a counter from 0 and a
nonce of zeros, which is that of :class:`uldp.rng.SecretStream`: a key has one keystream. Additions, rotations and
exclusive ors of whole words: no branch and no address depends on a key.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from uldp.native.jit import entry
from uldp.native.simd import Builder, Value, address, check

LANES: Final = 16
BLOCK_WORDS: Final = 8
"""Words of 64 bits in a block."""
KEY_WORDS: Final = 8
_STATE: Final = 16
_ROUNDS: Final = (
    ((0, 4, 8, 12), (1, 5, 9, 13), (2, 6, 10, 14), (3, 7, 11, 15)),  # columns
    ((0, 5, 10, 15), (1, 6, 11, 12), (2, 7, 8, 13), (3, 4, 9, 14)),  # diagonals
)
_VECTOR: Final = ir.VectorType(ir.IntType(32), LANES)


def initial_state() -> npt.NDArray[np.uint32]:
    """The constants in all lanes, and zeros for the key, the counter and the nonce."""
    state = np.zeros((_STATE, LANES), dtype=np.uint32)
    state[:4] = np.frombuffer(b"expand 32-byte k", dtype="<u4")[:, None]
    return state.reshape(-1)


def _rotate(b: Builder, word: Value, by: int) -> Value:
    left, right = (ir.Constant(_VECTOR, [count] * LANES) for count in (by, 32 - by))
    return b.or_(b.shl(word, left), b.lshr(word, right))


def _quarter_round(b: Builder, x: list[Value], i: int, j: int, k: int, m: int) -> None:
    for first, second, third, by in ((i, j, m, 16), (k, m, j, 12), (i, j, m, 8), (k, m, j, 7)):
        x[first] = b.add(x[first], x[second])
        x[third] = _rotate(b, b.xor(x[third], x[first]), by)


@intrinsic
def _permute(context, state, out):
    """The block function in every lane: ``state`` and ``out`` hold word 0 of all lanes, then word 1, ..."""

    def lower(context: Any, b: Builder, sig: Any, args: Any) -> Value:
        def vector(array: int, word: int) -> Value:
            index = context.get_constant(types.intp, word * LANES)
            return b.bitcast(address(context, b, sig.args[array], args[array], index), _VECTOR.as_pointer())

        start = [b.load(vector(0, word), align=4) for word in range(_STATE)]
        x = list(start)
        for _ in range(10):
            for quarters in _ROUNDS:
                for quarter in quarters:
                    _quarter_round(b, x, *quarter)
        for word in range(_STATE):
            b.store(b.add(x[word], start[word]), vector(1, word), align=4)
        return context.get_dummy_value()

    return types.void(state, out), lower


@entry
def add_keystreams(keys, negative, residues, state, out):
    """Add every key's keystream to ``residues`` modulo 2^64, or take it away where ``negative`` says so.

    ``keys`` holds eight words for each, ``state`` is what :func:`initial_state` gives, ``out`` has its size; all flat.
    """
    pairs = negative.size
    items = pairs * ((residues.size + BLOCK_WORDS - 1) // BLOCK_WORDS)
    for start in range(0, items, LANES):
        lanes = min(LANES, items - start)
        for lane in range(lanes):
            block, pair = divmod(start + lane, pairs)
            for word in range(KEY_WORDS):
                state[(4 + word) * LANES + lane] = keys[pair * KEY_WORDS + word]
            state[12 * LANES + lane] = block
        check(state, 0, _STATE * LANES)
        check(out, 0, _STATE * LANES)
        _permute(state, out)
        for lane in range(lanes):
            block, pair = divmod(start + lane, pairs)
            first = block * BLOCK_WORDS
            for k in range(min(BLOCK_WORDS, residues.size - first)):
                low, high = out[2 * k * LANES + lane], out[(2 * k + 1) * LANES + lane]
                mask = types.uint64(low) | (types.uint64(high) << types.uint64(32))
                if negative[pair]:
                    residues[first + k] -= mask
                else:
                    residues[first + k] += mask
