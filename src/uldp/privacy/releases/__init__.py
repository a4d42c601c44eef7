"""What a round releases: sensitivity, encoding, noise and event come from one frozen value, so they cannot disagree."""

from uldp.privacy.releases.base import Adversary, PublicFacts, Release, RoundFacts, SiloPart, Unprotected, views
from uldp.privacy.releases.builtin import BUILTIN_RELEASES, rebuild_release
from uldp.privacy.releases.clipped_silo import ClippedSilo
from uldp.privacy.releases.gaussian_sum import GaussianSum
from uldp.privacy.releases.local_perturbation import LocalPerturbation
from uldp.privacy.releases.noised_model import NoisedModel
from uldp.privacy.releases.sampling import Participation, SiloSampling, UserSampling
from uldp.privacy.releases.sums import Contribution

__all__ = [
    "BUILTIN_RELEASES",
    "Adversary",
    "ClippedSilo",
    "Contribution",
    "GaussianSum",
    "LocalPerturbation",
    "NoisedModel",
    "Participation",
    "PublicFacts",
    "Release",
    "RoundFacts",
    "SiloPart",
    "SiloSampling",
    "Unprotected",
    "UserSampling",
    "rebuild_release",
    "views",
]
