"""What the parties of ``lattice`` hold. Attackers use it: the only place where tests look into the state machines."""

from dataclasses import dataclass

from uldp.aggregation.lattice_lookup import uniform_indices
from uldp.aggregation.lattice_server import LatticeServer
from uldp.aggregation.lattice_silo import LatticeSilo


@dataclass(frozen=True)
class ServerKnowledge:
    """The server's state after the setup."""

    side: LatticeServer

    @property
    def setup(self):
        return self.side._setup

    @property
    def secret(self):
        """s, as evaluations."""
        return self.side._secret

    @property
    def blinded(self):
        """W[N_u] - mu_u of all users."""
        return self.side._blinded

    def shared(self, silo):
        """The key that it shares with a silo."""
        return self.side._shared(silo)

    @property
    def weights(self):
        """The encrypted weights that it sent."""
        return self.side._fixed.weights

    def encrypted(self, numbers, round_):
        """What it would send for these numbers."""
        return self.side._encrypted(numbers, round_)

    @property
    def encrypted_numbers(self):
        """What it encrypts in this round, where users are sampled: of each user a share of b W."""
        return self.side.transfer.numbers(self.side._entries_of_round, self.side._context.silos)

    @property
    def transfers(self):
        """The tables that dealers offered in this round."""
        return self.side._transfers


@dataclass(frozen=True)
class SiloKnowledge:
    """A silo's state after the setup."""

    side: LatticeSilo

    @property
    def blinds(self):
        """mu_u of all users."""
        return self.side._blinds("blinds")

    @property
    def ciphertexts(self):
        """(c0 + mu, c1) of all ciphertexts."""
        return self.side._fixed

    def count_masks(self, other, users):
        """The masks under which its own counts and another silo's cancel, with the sign that this silo adds."""
        side, entries = self.side, self.side.scheme.weighting.entries
        masks = uniform_indices(side._shared[other].stream(*side._purpose(other, "counts")), entries, users)
        return -masks if side._index > other else masks

    def rotations(self, users, entries):
        """rho_u of the users whom it deals, which follow from its own secrets."""
        stream = self.side._secrets.child("rotations", self.side._setup).stream()
        return uniform_indices(stream, entries, len(users))

    def open_indices(self, sealed, dealer):
        """alpha_u, which the server sealed for the keeper of this dealer's tables."""
        return self.side._server.open(sealed, "indices", self.side._setup, dealer, location="test")

    def added(self, round_, weights):
        """What it adds to the ciphertexts of this request for updates: the other share."""
        return self.side._transfer(round_).added(weights[self.side.scheme.weight_bytes :])

    def open_slots(self, sealed, round_, dealer):
        """Which entries the server asks for, which it sealed for the keeper of this dealer's tables."""
        return self.side._server.open(sealed, "slots", self.side._setup, round_, dealer, location="test")

    def dealt_rotations(self, round_):
        """By how much the tables are rotated that it deals."""
        transfer = self.side._transfer(round_)
        way = (transfer.setup, round_, "dealt")
        return transfer.rule.rotations(transfer.server, way, len(transfer.roles.dealt_by(transfer.index)))

    def drawn_slots(self, round_):
        """j of its users."""
        return self.side._transfer(round_)._drawn().tolist()
