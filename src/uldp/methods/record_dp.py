"""Record-level DP: DP-SGD in every silo, without any bound on a person's records.

What many systems offer. The epsilon is that of one record, and says little about a person: whoever has m records faces
the group epsilon of m, which grows much faster than m. The statement prints both.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from uldp.methods.base import Facts
from uldp.methods.dp_sgd import DpSgd
from uldp.privacy.events import Event


@dataclass(frozen=True, kw_only=True)
class RecordDp(DpSgd):
    """DP-SGD for records, not for people."""

    summary: ClassVar[str] = "DP-SGD in every silo: protects one record, not a person who has several"
    unit: ClassVar[str | None] = "record"

    def per_person(self, facts: Facts) -> Mapping[int, Event]:
        return {size: self.group_event(size) for size in (2, 8, 32)}

    def caveats(self, facts: Facts) -> tuple[str, ...]:
        return (
            "This is no promise to a person. Nothing bounds how many records a person has, and with more of them "
            "epsilon grows fast.",
            *super().caveats(facts),
        )
