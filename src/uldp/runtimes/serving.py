"""What a carrier answers with."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Failed:
    """Why a silo has not answered."""

    reason: str
