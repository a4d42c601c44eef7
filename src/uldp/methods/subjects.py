"""What CentralSubDP and LocalSubDP share.

Marathe and Kanani: "Subject Granular Differential Privacy in Federated Learning". A *subject* of that paper is a user
here, a *federation user* of that paper is a silo.

Both are sound here, which takes changes to the paper: subjects are sampled, not items; at most K of a subject's items
are averaged and clipped once; noise and divisor are public; a subject may be in several silos, and that is accounted.
The algorithms as printed are in :mod:`uldp.research.published_subjects`; no finite epsilon holds for them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from uldp.caveats import Caveat
from uldp.methods.base import Method
from uldp.privacy.releases import PublicFacts, SiloSampling


@dataclass(frozen=True, kw_only=True)
class SubjectLevel(Method):
    """The number of silos of a subject, and silos that are picked in a round."""

    max_silos: int = 0
    """A subject has records in at most this many silos; 0 for no limit."""
    fraction: float = 1.0
    """The share of the silos that takes part in a round."""

    paper: ClassVar[str] = "Subject Granular DP (Marathe, Kanani)"

    @property
    def silo_sampling(self) -> SiloSampling:
        return SiloSampling(self.fraction)

    def caveats(self, facts: PublicFacts) -> tuple[Caveat, ...]:
        return (*silo_sampling_caveats("silos", self.silo_sampling, facts), *super().caveats(facts))


def silo_sampling_caveats(parties: str, sampling: SiloSampling, facts: PublicFacts) -> tuple[Caveat, ...]:
    """What must be said where the server picks some of the silos (or clients) for a round."""
    if sampling.all_silos:
        return ()
    return (
        Caveat(
            "silos-picked",
            f"The server picks {sampling.per_round(facts.silos)} of {facts.silos} {parties} a round and knows which; "
            "the numbers are for somebody who is picked in every round.",
        ),
    )
