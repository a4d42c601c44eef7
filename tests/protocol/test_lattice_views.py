"""The look-up and the transfers of ``lattice`` in miniature: every party's view, over all randomness.

The formulas are those of ``aggregation/lattice_lookup.py`` and ``lattice_sampling.py``, with M = 3 and q = 5 (or P = 2
and q = 3). A view that has the same distribution for all inputs tells nothing about them; each planted fault makes one
that has not. ``test_lattice_attacks.py`` checks that the messages follow the formulas.
"""

import itertools
from collections import Counter

import pytest

M, Q = 3, 5
W = (0, 4, 2)
"""A table of weights modulo q."""


def numbers(modulus, count=1):
    return itertools.product(range(modulus), repeat=count)


def views_of(of, inputs):
    """For every input the distribution of a view over all randomness."""
    return [Counter(of(*each)) for each in inputs]


def alike(distributions) -> bool:
    return all(other == distributions[0] for other in distributions[1:])


PAIRS = [(n, k) for n in range(M) for k in range(M) if n + k < M]
"""Counts of a dealer (silo 0) and of a keeper (silo 1)."""


def look_up(n, k, rho, mask, mu, pads):
    """(masked counts, alpha, table, reply) of one user."""
    masked = ((n + mask + rho) % M, (k - mask) % M)
    alpha = sum(masked) % M
    table = tuple((W[(i - rho) % M] - mu + pads[i]) % Q for i in range(M))
    return masked, alpha, table, table[alpha]


def secrets():
    for rho, mask in numbers(M, 2):
        for mu, *pads in numbers(Q, 1 + M):
            yield rho, mask, mu, tuple(pads)


def test_the_look_up_gives_the_blinded_weight():
    for n, k in PAIRS:
        for rho, mask, mu, pads in secrets():
            _, alpha, _, reply = look_up(n, k, rho, mask, mu, pads)
            assert (reply - pads[alpha] + mu) % Q == W[n + k]


def test_the_servers_and_the_keepers_views_tell_nothing_about_counts():
    def server(n, k):
        for rho, mask, mu, pads in secrets():
            masked, alpha, _, reply = look_up(n, k, rho, mask, mu, pads)
            yield masked, alpha, reply, pads

    def keeper(n, k):
        for rho, mask, mu, pads in secrets():
            _, alpha, table, _ = look_up(n, k, rho, mask, mu, pads)
            yield alpha, table, mu, mask

    assert alike(views_of(server, PAIRS))
    for own in range(M):  # it knows its own count
        assert alike(views_of(keeper, [(n, k) for n, k in PAIRS if k == own]))


LEAKS = {
    "the server reads the table": lambda m, a, t, r, pads, mu: (a, t, pads),
    "the dealer reads alpha": lambda m, a, t, r, pads, mu: a,
    "the keeper knows the pads": lambda m, a, t, r, pads, mu: (a, t, pads, mu),
}


@pytest.mark.parametrize("leak", LEAKS)
def test_what_must_not_be_read_would_tell_the_counts(leak):
    def view(n, k):
        for rho, mask, mu, pads in secrets():
            masked, alpha, table, reply = look_up(n, k, rho, mask, mu, pads)
            known = rho if leak == "the dealer reads alpha" else None
            yield known, LEAKS[leak](masked, alpha, table, reply, pads, mu)

    assert not alike(views_of(view, PAIRS))


@pytest.mark.parametrize("reused", ["rho", "mu", "pads", "mask", "nothing"])
def test_a_secret_that_serves_two_setups_would_tell_the_difference(reused):
    """What changed between two setups: nothing but one count of the dealer's."""

    def both(n, later):
        for rho, mask in numbers(M, 2):
            for other_rho, other_mask in numbers(M, 2):
                for mu, pad in numbers(Q, 2):
                    for other_mu, other_pad in numbers(Q, 2):
                        if reused == "rho" and rho != other_rho:
                            continue
                        if reused == "mask" and mask != other_mask:
                            continue
                        if reused == "mu" and mu != other_mu:
                            continue
                        if reused == "pads" and pad != other_pad:
                            continue
                        first = look_up(n, 0, rho, mask, mu, (pad,) * M)
                        second = look_up(later, 0, other_rho, other_mask, other_mu, (other_pad,) * M)
                        server = [(x[0], x[1], (x[3] - p) % Q) for x, p in ((first, pad), (second, other_pad))]
                        # Equal pads at all entries: enough to see the keeper's part of the argument.
                        keeper = tuple((b - a + other_mu - mu) % Q for a, b in zip(first[2], second[2], strict=True))
                        yield tuple(server), keeper if reused == "pads" else None

    distributions = views_of(both, [(0, 0), (0, 1), (1, 0), (1, 2)])
    if reused == "mask":
        # The server's sums hide it (rho is fresh); a silo that is no dealer of the user is shown by its own message.
        def undealt(k, later):
            for mask, rho, other_rho in numbers(M, 3):
                yield (k - mask) % M, (later - mask) % M, rho, other_rho

        distributions = views_of(undealt, [(0, 0), (0, 1)])
    assert alike(distributions) == (reused == "nothing")


# --- sub-sampling -----------------------------------------------------------------------------------------------------

P, SMALL = 2, 3


def sampled(i, j):
    return (i + j) % P < 1


def rotated(values, rotation, pads):
    return tuple((values[(place - rotation) % P] + pads[place]) % SMALL for place in range(P))


def open_transfer(b, w, mu, nu, rotation, pads):
    """(a, table, index, what the server encrypts) where the server draws the sample."""
    a = (w - mu) % SMALL
    table = rotated((-nu % SMALL, (mu - nu) % SMALL), rotation, pads)
    index = (b + rotation) % P
    return a, table, index, (table[index] - pads[index] + b * a) % SMALL


def open_randomness():
    for mu, nu, *pads in numbers(SMALL, 2 + P):
        for rotation in range(P):
            yield mu, nu, rotation, tuple(pads)


def test_open_sampling_is_exact_and_hides_weights_and_sample():
    inputs = [(b, w) for b in range(2) for w in range(SMALL)]
    for b, w in inputs:
        for mu, nu, rotation, pads in open_randomness():
            assert (open_transfer(b, w, mu, nu, rotation, pads)[3] + nu) % SMALL == b * w

    def server(b, w):
        for mu, nu, rotation, pads in open_randomness():
            a, table, index, c = open_transfer(b, w, mu, nu, rotation, pads)
            yield a, table[index], c, rotation, pads

    def keeper(b, w):
        for mu, nu, rotation, pads in open_randomness():
            _, table, index, _ = open_transfer(b, w, mu, nu, rotation, pads)
            yield table, index, mu, nu

    for b in range(2):
        assert alike(views_of(server, [each for each in inputs if each[0] == b]))
    assert alike(views_of(keeper, inputs))


KNOWN = (0,) * P
"""Pads, to those who take them off; and rotations are 0 to those who know them."""


@pytest.mark.parametrize("reused", [False, True])
def test_two_rounds_of_open_sampling_tell_the_server_nothing_unless_a_blind_serves_both(reused):
    """a is the same in both rounds, and so is mu."""

    def server(bits, w):
        for mu, *nus in numbers(SMALL, 3):
            rounds = [open_transfer(b, w, mu, nu, 0, KNOWN) for b, nu in zip(bits, nus, strict=True)]
            if not reused or nus[0] == nus[1]:
                yield tuple((a, table[index], c) for a, table, index, c in rounds)

    for bits in numbers(2, 2):
        # Whoever is in both rounds, or in neither, is shown twice the same.
        assert alike(views_of(server, [(bits, w) for w in range(SMALL)])) == (not reused or bits[0] == bits[1])


def private_transfer(i, j, w, randomness):
    """All that is sent where nobody knows the sample."""
    mu, nu, r, first, second, pads, more = randomness
    a = (w - mu) % SMALL
    table = rotated(tuple((sampled(x, j) * mu - nu) % SMALL for x in range(P)), first, pads)
    offers = rotated(tuple((sampled(i, x) * a - r) % SMALL for x in range(P)), second, more)
    at, chosen = (i + first) % P, (j + second) % P
    y = (offers[chosen] - more[chosen]) % SMALL
    return {
        "a": a, "table": table, "offers": offers, "at": at, "chosen": chosen, "y": y, "answer": offers[chosen],
        "entry": table[at], "c": (table[at] - pads[at] + r) % SMALL,
    }  # fmt: skip


def private_randomness():
    for mu, nu, r, *pads in numbers(SMALL, 3 + 2 * P):
        for first, second in numbers(P, 2):
            yield mu, nu, r, first, second, tuple(pads[:P]), tuple(pads[P:])


def private_views(of):
    def view(i, j, w):
        for randomness in private_randomness():
            yield of(private_transfer(i, j, w, randomness), *randomness)

    return view


INPUTS = [(i, j, w) for i in range(P) for j in range(P) for w in range(SMALL)]
SERVER = private_views(
    lambda sent, mu, nu, r, first, second, pads, more: (sent["a"], r, sent["entry"], first, second, pads, more)
)
DEALER = private_views(
    lambda sent, mu, nu, r, first, second, pads, more: (mu, nu, sent["y"], first, second, pads, more)
)
KEEPER = private_views(
    lambda sent, mu, nu, *rest: (mu, nu, *(sent[part] for part in ("table", "offers", "at", "chosen", "y")))
)


def test_private_sampling_is_exact_and_nobody_learns_the_sample():
    for i, j, w in INPUTS:
        for randomness in private_randomness():
            sent = private_transfer(i, j, w, randomness)
            assert (sent["c"] + randomness[1] + sent["y"]) % SMALL == sampled(i, j) * w
    for own in range(P):
        assert alike(views_of(SERVER, [each for each in INPUTS if each[0] == own]))
        assert alike(views_of(DEALER, [each for each in INPUTS if each[1] == own]))
    assert alike(views_of(KEEPER, INPUTS))


@pytest.mark.parametrize("reused", [None, "nu", "r"])
def test_two_rounds_of_private_sampling_tell_nobody_more_unless_a_blind_serves_both(reused):
    """The server's numbers r hide a from the dealer as the silos' nu hide mu from the server."""
    inputs = [(js, w) for js in numbers(P, 2) for w in range(SMALL)]

    def rounds(draws, slots, w):
        for mu, *blinds in numbers(SMALL, 5):
            nus, rs = blinds[:2], blinds[2:]
            if (reused == "nu" and nus[0] != nus[1]) or (reused == "r" and rs[0] != rs[1]):
                continue
            each = zip(draws, slots, nus, rs, strict=True)
            yield mu, nus, rs, [private_transfer(i, j, w, (mu, nu, r, 0, 0, KNOWN, KNOWN)) for i, j, nu, r in each]

    def server(slots, w):
        for _, _, rs, sent in rounds((0, 0), slots, w):
            yield tuple(rs), tuple((one["a"], one["entry"]) for one in sent)

    def dealer(draws, w):
        for mu, nus, _, sent in rounds(draws, (0, 0), w):
            yield mu, tuple(nus), tuple(one["y"] for one in sent)

    assert alike(views_of(server, inputs)) == (reused != "nu")
    assert alike(views_of(dealer, inputs)) == (reused != "r")


@pytest.mark.parametrize("leak", ["y", "chosen", "answer"])
def test_what_is_sealed_from_the_server_would_show_it_the_sample(leak):
    view = private_views(lambda sent, mu, nu, r, first, second, pads, more: (sent["a"], r, second, more, sent[leak]))
    assert not alike(views_of(view, [(0, j, w) for j in range(P) for w in range(SMALL)]))


def test_where_the_server_looks_would_show_the_dealer_the_sample():
    view = private_views(lambda sent, mu, nu, r, first, *rest: (first, sent["at"]))
    assert not alike(views_of(view, [(i, 0, 0) for i in range(P)]))
