"""People who are held out: they take no part in training, and silos may measure the model on them.

Each person is decided by a keyed hash of the own index, so that a person is held out in all silos or in none, and
nobody's coming or going moves anybody else. The key follows from the seed: whoever knows an index can repeat the
choice, and no claim rests on its secrecy.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from uldp.data.federation import Federation, IntArray, SiloData
from uldp.data.roster import keyed_hash
from uldp.rng import Streams


def held_out_places(users: IntArray, fraction: float, streams: Streams) -> npt.NDArray[np.bool_]:
    """Which of the rows with these user indices belong to people who are held out: about ``fraction`` of the people."""
    key, limit = streams.child("data", "holdout").key, int(fraction * 2**64)
    found, rows = np.unique(users, return_inverse=True)
    chosen = np.array([keyed_hash(key, str(int(user))) < limit for user in found], dtype=np.bool_)
    return chosen[rows]


def split_holdout(data: SiloData, fraction: float, streams: Streams) -> tuple[SiloData, SiloData | None]:
    """A silo's records for training, and those of people who are held out; None where nobody is."""
    if not fraction:
        return data, None
    chosen = held_out_places(data.users, fraction, streams)
    return data.take(~chosen), data.take(chosen)


def with_holdout(federation: Federation, fraction: float, streams: Streams) -> Federation:
    """The federation with ``fraction`` of its people held out."""
    parts = [split_holdout(silo, fraction, streams) for silo in federation.silos]
    holdout = tuple(held for _, held in parts if held is not None)
    return replace(federation, silos=tuple(trained for trained, _ in parts), holdout=holdout)
