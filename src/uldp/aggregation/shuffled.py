"""``shuffled``: a shuffler between clients and server takes every update apart and mixes the values.

For methods whose clients perturb by themselves. What the server gets is, for every position of the model, the values
of all clients in an order that says nothing; who sent which, and which values belong together, it does not learn (see
:mod:`uldp.sessions.shuffler`). The total is that of ``plain``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from uldp.aggregation.plain import Plain
from uldp.caveats import Caveat, Severity
from uldp.errors import ConfigError
from uldp.privacy.releases import Release


@dataclass(frozen=True)
class Shuffled(Plain):
    """The shuffler sees every client's perturbed values; the server sees them mixed."""

    name: ClassVar[str] = "shuffled"
    summary: ClassVar[str] = "a shuffler mixes the clients' perturbed values before the server sees them"
    shuffles: ClassVar[bool] = True
    repeatable: ClassVar[bool] = False

    def check(self, release: Release, rounds: int) -> None:
        super().check(release, rounds)
        if not release.local:
            raise ConfigError(
                "a shuffler sees what every silo sends, so it goes with methods whose clients perturb by themselves "
                "(ldp-fedavg, srr-fl, ldp-fl); take name = 'masked'",
                location="aggregation.name",
                value=self.name,
            )

    def caveats(self, release: Release) -> tuple[Caveat, ...]:
        return (
            Caveat(
                "shuffler-trusted",
                "The shuffler sees every client's perturbed values and who sent them, and must mix honestly: towards "
                "it, and if it colludes with the server, the local numbers hold. Shuffling hides whose a value is; it "
                "does not stop the weights of one client from adding up.",
                Severity.LIMITS,
            ),
        )
