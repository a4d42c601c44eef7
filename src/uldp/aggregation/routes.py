"""The routes that there are, for the diagrams in the docs. An experiment's own route is in its plan."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from uldp.aggregation.key_agreement import AGREE_KEYS
from uldp.aggregation.lattice_messages import ANSWERS, LOOK_UP_WEIGHTS, RING_WEIGHTS, TRANSFER
from uldp.aggregation.paillier_messages import BLIND_COUNTS, CHOICES, FIXED_WEIGHTS
from uldp.protocol.turns import METRICS, SHOW_COUNTS, UPDATE, Route

ROUTES: Final[Mapping[str, Route]] = {
    "plain": Route(),
    "plain, weights by records": Route(SHOW_COUNTS),
    "masked": Route(AGREE_KEYS),
    "masked, weights by records": Route(AGREE_KEYS + SHOW_COUNTS),
    "paillier": Route(AGREE_KEYS + BLIND_COUNTS + FIXED_WEIGHTS),
    "paillier, users sampled": Route(AGREE_KEYS + BLIND_COUNTS),
    "paillier, users sampled in private": Route(AGREE_KEYS + BLIND_COUNTS, (*CHOICES, UPDATE)),
    "lattice": Route(AGREE_KEYS + LOOK_UP_WEIGHTS + RING_WEIGHTS, repeats=True),
    "lattice, users sampled": Route(AGREE_KEYS + LOOK_UP_WEIGHTS, (*TRANSFER, UPDATE), repeats=True),
    "lattice, users sampled in private": Route(
        AGREE_KEYS + LOOK_UP_WEIGHTS, (*TRANSFER, *ANSWERS, UPDATE), repeats=True
    ),
    "masked, measured by silos": Route(AGREE_KEYS, end=(METRICS,)),
}
"""Each of the others may end as the last one does."""
