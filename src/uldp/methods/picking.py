"""A server that picks a share of the silos for every round."""

from __future__ import annotations

from dataclasses import dataclass

from uldp.methods.base import Facts, Method, require


@dataclass(frozen=True, kw_only=True)
class PicksSilos(Method):
    """f_r: every round takes a share of the silos, so many of them, every set alike. The server knows which."""

    fraction: float = 1.0
    """The share of the silos that takes part in a round."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(0 < self.fraction <= 1, "fraction", self.fraction, "above 0 and at most 1")

    @property
    def samples_silos(self) -> bool:
        return self.fraction < 1

    def silos_per_round(self, facts: Facts) -> int:
        """f_r |S|, rounded; halves go to the even number."""
        return round(self.fraction * facts.silos)

    def check(self, facts: Facts) -> None:
        super().check(facts)
        require(
            self.silos_per_round(facts) >= 1,
            "fraction",
            self.fraction,
            f"at least {1 / facts.silos:.3g}, so that one of {facts.silos} silos takes part",
        )
