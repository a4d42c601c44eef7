"""Which records belong to whom, and by what each is known."""

from __future__ import annotations

import numpy as np

from uldp.data.federation import IntArray


def group_users(users: IntArray) -> tuple[IntArray, IntArray, IntArray, IntArray]:
    """(who has records, where each one's rows start, how many they are, all rows user by user)."""
    rows = np.argsort(users, kind="stable").astype(np.int64)
    who, starts, counts = np.unique(users[rows], return_index=True, return_counts=True)
    return who.astype(np.int64), starts.astype(np.int64), counts.astype(np.int64), rows


def record_names(users: IntArray) -> IntArray:
    """A number for each record that its user and its place among that user's records give.

    Neither changes when other users leave, so that what is random about a record (dropout) does not change either.
    """
    who, starts, counts, rows = group_users(users)
    names = np.empty(len(users), dtype=np.int64)
    names[rows] = (np.repeat(who, counts) << 32) + np.arange(len(users)) - np.repeat(starts, counts)
    return names
