"""The shuffler of SRR-FL (Section 4.5): identity off, values apart, random delays, mixed order. It does no I/O.

Every client's update is split into (position, value) pairs. When the slowest client has sent its own, at T_max, every
pair gets a delay of its own, uniform in [0, T), and is forwarded at T_max plus its delay. So pairs arrive in an order
that reveals neither client nor neighbours. Times are those of a simulated clock: a runtime says when an update came.

For the server only the order within a position could say anything. It gets, for each position, the values in order of
their arrival; as that order is uniform and fresh for each position, slots identify nobody. A pair's delay is a 64-bit
word; where two of the same position coincide, the lower slot is first, which happens with probability N^2 2^-65.

It gives: the server does not learn whose a value is, nor which values come from the same client, in a round or over
rounds, if the shuffler is honest. It does not give: fewer releases. A client still sends all of its weights.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from uldp.errors import MessageRefused, require
from uldp.protocol import messages as m
from uldp.rng import Secrets, SecretStream
from uldp.vectors import Residues

_BLOCK: Final = 1 << 21  # pairs whose delays are drawn at a time


@dataclass(frozen=True)
class Pair:
    """One forwarded value: when, where it belongs, and what it is. Nobody's name."""

    time: float
    position: int
    value: int


class Shuffler:
    """Takes the updates of one round after the other and gives back anonymous ones."""

    def __init__(
        self, digest: str, silos: Sequence[str], dimension: int, secrets: Secrets, spread: float = 1.0
    ) -> None:
        require(spread > 0, "shuffler.spread", spread, "a positive time")
        self._digest = digest
        self._silos = tuple(silos)
        self._dimension = dimension
        self._secrets = secrets.child("shuffler")
        self._spread = spread

    def shuffle(self, round_: int, updates: Mapping[str, bytes], limit: int) -> dict[str, bytes]:
        """The server's messages of a round. Their names are slots in the order of the silos, and identify nobody."""
        vectors = np.stack([self._vector(round_, name, updates[name], limit) for name in self._silos])
        anonymous = self._order(vectors, self._stream(round_, vectors))
        return {
            slot: m.encode(self._digest, slot, m.Update(round_, m.pack(vector), 0))
            for slot, vector in zip(self._silos, anonymous, strict=True)
        }

    def pairs(self, round_: int, vectors: npt.NDArray[np.uint64], sent: Sequence[float]) -> list[Pair]:
        """The single pairs in the order in which they are forwarded, for clients that sent at these times."""
        latest = max(sent)
        delays = self._delays(self._stream(round_, vectors), self._dimension, len(vectors)) / 2.0**64 * self._spread
        found = [
            Pair(latest + float(delays[slot, position]), position, int(vectors[slot, position]))
            for slot in range(len(vectors))
            for position in range(self._dimension)
        ]
        return sorted(found, key=lambda pair: pair.time)

    def _vector(self, round_: int, name: str, message: bytes, limit: int) -> Residues:
        body = m.decode(message, experiment=self._digest, silo=name, limit=limit)
        if not isinstance(body, m.Update) or body.round != round_:
            raise MessageRefused(f"sent no update of round {round_}", location=f"silo {name}")
        return m.unpack_residues(body.vector, self._dimension, f"silo {name}")

    def _order(self, vectors: npt.NDArray[np.uint64], stream: SecretStream) -> npt.NDArray[np.uint64]:
        """For every position the clients' values in the order of their delays."""
        ordered = np.empty_like(vectors)
        block = max(1, _BLOCK // len(vectors))
        for start in range(0, self._dimension, block):
            part = slice(start, min(start + block, self._dimension))
            order = np.argsort(self._delays(stream, part.stop - part.start, len(vectors)), axis=0, kind="stable")
            ordered[:, part] = np.take_along_axis(vectors[:, part], order, axis=0)
        return ordered

    def _stream(self, round_: int, vectors: npt.NDArray[np.uint64]) -> SecretStream:
        """Bound to the updates: other values in the same order would show which belong together."""
        content = hashlib.sha256(np.ascontiguousarray(vectors).tobytes()).hexdigest()
        return self._secrets.child(self._digest, "round", round_, content).stream()

    @staticmethod
    def _delays(stream: SecretStream, positions: int, clients: int) -> npt.NDArray[np.uint64]:
        """The delays of the pairs at the next ``positions`` positions, as parts of 2^64: (clients, positions)."""
        return stream.words(positions * clients).reshape(positions, clients).T
