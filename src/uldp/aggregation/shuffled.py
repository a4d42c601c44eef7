"""``shuffled``: a shuffler between clients and server takes every update apart and mixes the values.

For methods whose clients perturb by themselves. What the server gets is, for every position of the model, the values
of all clients in an order that says nothing; who sent which, and which values belong together, it does not learn (see
:mod:`uldp.sessions.shuffler`). The total is that of ``plain``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from uldp.aggregation.plain import Plain
from uldp.errors import ConfigError
from uldp.methods.base import Facts, Method


@dataclass(frozen=True)
class Shuffled(Plain):
    """The shuffler sees every client's perturbed values; the server sees them mixed."""

    name: ClassVar[str] = "shuffled"
    summary: ClassVar[str] = "a shuffler mixes the clients' perturbed values before the server sees them"
    shuffles: ClassVar[bool] = True
    repeatable: ClassVar[bool] = False

    def check(self, method: Method, facts: Facts) -> None:
        super().check(method, facts)
        if not method.local_noise:
            raise ConfigError(
                "a shuffler sees what every silo sends, so it goes with methods whose clients perturb by themselves "
                "(ldp-fedavg, srr-fl, ldp-fl); take name = 'masked'",
                place="aggregation.name",
                value=self.name,
            )

    def caveats(self, method: Method, facts: Facts) -> tuple[str, ...]:
        return (
            "The shuffler sees every client's perturbed values and who sent them, and must mix honestly: towards it, "
            "and if it pools with the server, the local numbers hold. Shuffling hides whose a value is; it does not "
            "stop the weights of one client from adding up.",
        )
