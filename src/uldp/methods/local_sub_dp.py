"""LocalSubDP: DP-SGD for subjects inside every silo (Marathe and Kanani, Algorithm 2).

Silo s, T steps, each with a fresh sample that takes every subject with probability q::

    g_u = gradient of the mean loss over at most K of the sampled subject u's items
    x <- x - eta_l / B (sum_u g_u min(1, C / |g_u|) + N(0, sigma^2 C^2))

Server: x_(t+1) = x_t + eta_g mean_s (x_s - x_t), over the silos picked for the round. The guarantee is that of
:class:`uldp.privacy.releases.NoisedModel`: a subject with records in s silos faces s T steps a round. s is
``max_silos``, or the number of silos.

``sampling = "items"`` is the paper's sampling with public bounds, to see what it costs: every item is taken with
probability q and clipped by itself.

Weights that sum to 1 over silos would help only without sampling: silos toss their coins on their own, and for split
weights the total variation distance grows. CentralSubDP has them, with one coin for all silos.

Symbols: q ``record_rate``, B ``batch_size``, C ``clip``, T ``local_steps``, K ``items``, sigma ``noise_multiplier``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Final

from uldp.caveats import Caveat, Severity
from uldp.errors import require
from uldp.methods.dp_sgd import DpSgd
from uldp.methods.subjects import SubjectLevel
from uldp.privacy.releases import NoisedModel, PublicFacts

SAMPLINGS: Final = ("subjects", "items")


@dataclass(frozen=True, kw_only=True)
class LocalSubDp(SubjectLevel, DpSgd):
    """DP-SGD that samples and clips subjects."""

    sampling: str = "subjects"
    items: int = 4
    max_items: int = 0
    """With ``sampling = "items"``: a silo keeps at most this many of a subject's items."""
    largest_group: int = 0
    """With ``sampling = "items"``: at most this many items of a subject count in a step; 0 for all that are sampled."""

    summary: ClassVar[str] = "DP-SGD in every silo on sampled subjects; a subject in s silos pays s times"

    def __post_init__(self) -> None:
        require(self.sampling in SAMPLINGS, "method.sampling", self.sampling, f"one of {', '.join(SAMPLINGS)}")
        super().__post_init__()

    def release(self, facts: PublicFacts) -> NoisedModel:
        return replace(
            super().release(facts),
            sampling=self.sampling,
            items=self.items,
            max_items=self.max_items,
            largest_group=self.largest_group,
            max_silos=self.max_silos,
            silo_sampling=self.silo_sampling,
        )

    def caveats(self, facts: PublicFacts) -> tuple[Caveat, ...]:
        if self.sampling == "subjects":
            return super().caveats(facts)
        counted = f", of which {self.largest_group} count in a step" if self.largest_group else ""
        items = Caveat(
            "items-bounded",
            f"Items are sampled and clipped one by one; a silo keeps at most {self.max_items} of a subject{counted}. "
            "Epsilon rests on that.",
            Severity.LIMITS,
        )
        return (items, *super().caveats(facts))

    def corrections(self) -> tuple[str, ...]:
        spanned = (
            "The paper says that a subject's epsilon in one silo holds for a subject in several. Silos add up: every "
            "silo's steps are counted (errata D3)."
        )
        if self.sampling == "items":
            return (spanned, "Groups are accounted at their public bound, and the noise is public (errata D1, D2, D6).")
        return (
            spanned,
            "Subjects are sampled and clipped as a whole, and the noise is public (errata D1, D2, D6).",
        )
