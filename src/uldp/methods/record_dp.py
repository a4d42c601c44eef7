"""Record-level DP: DP-SGD in every silo, without any bound on a person's records.

What many systems offer. The epsilon is that of one record, and says little about a person: whoever has m records faces
the group epsilon of m, which grows much faster than m. The statement prints both.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from uldp.caveats import Caveat, Severity
from uldp.methods.dp_sgd import DpSgd
from uldp.privacy.releases import PublicFacts


@dataclass(frozen=True, kw_only=True)
class RecordDp(DpSgd):
    """DP-SGD for records, not for people."""

    summary: ClassVar[str] = "DP-SGD in every silo: protects one record, not a person who has several"

    def caveats(self, facts: PublicFacts) -> tuple[Caveat, ...]:
        return (
            Caveat(
                "record-level",
                "A person is not protected, only single records: nothing bounds how many records a person has, and "
                "with more of them epsilon grows fast.",
                Severity.LIMITS,
            ),
        )
