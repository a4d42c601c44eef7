"""How large things may be: beyond what anybody trains, and small enough that a typing error is refused at once.

A setting beyond its limit would not be wrong, but make a machine allocate or count for hours before anything is said.
An experiment file may come from another party, so this is checked before anything is made of it. The table for people
is in docs/experiment-file.md, and a test compares them.
"""

from __future__ import annotations

from typing import Final

from uldp.errors import ConfigError, format_value

MAX_USERS: Final = 10_000_000
MAX_SILOS: Final = 10_000
MAX_PAIRS: Final = 50_000_000
"""Users times silos: one count each, and every party holds some of them."""
MAX_PAIRED_SILOS: Final = 1_000
"""Where every two silos share a key (masked, paillier): that many times that many."""
MAX_FEATURES: Final = 50_000
"""Columns of a schema, categories of a column, classes of a label."""
MAX_COLUMNS: Final = 10_000
"""Of a table that ``uldp new`` looks through. Columns that a schema does not name are not counted."""
MAX_LAYERS: Final = 100
"""Hidden layers of a model by name."""
MAX_PARAMETERS: Final = 100_000_000
MAX_UPDATES: Final = 10_000_000_000
"""Parameters times silos: the numbers that the server gets in a round."""

MAX_ROUNDS: Final = 100_000
MAX_LOCAL_EPOCHS: Final = 10_000
MAX_LOCAL_STEPS: Final = 1_000_000
MAX_BATCH: Final = 2**31
MAX_ITEMS: Final = 1_000_000
"""Records of one person: group_size, items, max_items, largest_group."""

MAX_SEED: Final = 2**63
MAX_THREADS: Final = 1024
MAX_MEMORY_MB: Final = 2**24

MAX_REPEATS: Final = 1_000
"""Of ``uldp compare``."""
MAX_EXCHANGES: Final = 1_000
"""Of ``uldp bench transport``."""
MAX_CURVE: Final = 1_000
"""Epsilons of ``uldp attack``."""


def check_whole(value: object, least: int, most: int | None, location: str, what: str = "") -> int:
    """``value`` if it is a whole number from ``least`` to ``most``, or up where that is None; ``what`` it counts.

    >>> check_whole(10**9, 1, MAX_ROUNDS, "method.rounds")
    Traceback (most recent call last):
    uldp.errors.ConfigError: method.rounds: a whole number from 1 to 100,000, not 1000000000
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < least or (most is not None and value > most):
        numbers = f"a whole number from {least} {'up' if most is None else f'to {most:,}'}"
        wanted = f"{what}, {numbers}" if what else numbers
        raise ConfigError(f"{wanted}, not {format_value(value)}", location=location, value=value)
    return value
