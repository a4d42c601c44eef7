"""Attacks on ``lattice`` with what each party really holds: they win where it is documented, and nowhere else.

What silos' updates tell a server that has the key (divisions, guesses, padding, low bits) is in
``test_lattice_circuit_privacy.py``; views over all randomness are in ``test_lattice_views.py``.
"""

import math

import numpy as np
import pytest
from scipy import stats
from tests.core.test_sessions import build
from tests.guarantees.adversary import OwnCoordinates, federation_of
from tests.protocol.lattice_knowledge import ServerKnowledge, SiloKnowledge
from tests.protocol.test_lattice import inject_noise
from tests.support import Folder, decode, make_sessions

from uldp.aggregation import lattice_ring
from uldp.aggregation.lattice import LatticeWeighting
from uldp.aggregation.lattice_lookup import ERROR_BOUND, WEIGHT_BITS
from uldp.aggregation.lattice_messages import LookUp, MaskedCounts, RingWeights, TableEntries
from uldp.bench.parties import Parties, plan_of
from uldp.crypto import ring
from uldp.errors import MessageRefused, RunError
from uldp.privacy.gaussian import gaussian_delta
from uldp.protocol import messages as m
from uldp.rng import Secrets
from uldp.sessions.server import Stage

COUNTS = [[3, 0, 1, 700, 0], [2, 0, 0, 5, 1], [0, 0, 4, 900, 0]]
"""Of users with 5, 0, 5, very many and 1 records; a silo counts at most 666."""
TOTALS = np.minimum(COUNTS, 666).sum(axis=0)
W = np.concatenate([[0], (1 << WEIGHT_BITS) // np.arange(1, 2000) - ERROR_BOUND])


def sessions(counts=COUNTS, dimension=4, key=b"k" * 32, pulling=1, **settings):
    method = build("uldp-avg-w", **{"rounds": 2, "noise_multiplier": 1.0, **settings})
    learner = OwnCoordinates(dimension, pulling)
    secrets = Secrets.from_key(key)
    return make_sessions(method, federation_of(counts), learner=learner, aggregation="lattice", secrets=secrets)


def until(server, silos, stage=Stage.ROUND):
    """Everything that was sent before ``stage``: {type of the message: {silo: body}}."""
    sent = {}
    while server.requests() and server.stage is not stage:
        for name, request in server.requests().items():
            reply = silos[name].reply(request)
            for data in (request, reply):
                body = decode(data, experiment="d" * 64, silo=name, limit=10**9)
                sent.setdefault(type(body), {})[name] = body
            server.receive(name, reply)
        server.collect()
        if server.stage is Stage.COLLECTED:
            server.charge()
            server.advance()
    return sent


def centred(numbers):
    return np.array(ring.centred(numbers).to_integers())


def test_the_look_up_follows_its_formulas():
    server, silos = sessions()
    until(server, silos)
    blinds = [SiloKnowledge(silo.side).blinds for silo in silos.values()]
    assert all((blind == blinds[0]).all() for blind in blinds)
    assert centred(ring.add(ServerKnowledge(server.side).blinded, blinds[0])).tolist() == W[TOTALS].tolist()


def test_totals_up_to_the_largest_table_are_looked_up():
    """N_max = 20,000 of two silos: 10,000 records of a person count in each."""
    counts = [[10_000, 12_000, 0, 1], [10_000, 9_999, 0, 0]]
    secrets, settings = Secrets.from_key(b"k" * 32), {"weighting": "records", "clip": 1.0, "noise_multiplier": 5.0}
    plan = plan_of(LatticeWeighting(max_records=20_000), 4, 2, 4, secrets, rounds=2, **settings)
    parties = Parties(plan, np.array(counts), secrets)
    for kind in plan.setup:
        parties.exchange(kind)
    blinds = SiloKnowledge(parties.silos["silo-1"]).blinds
    weights = centred(ring.add(ServerKnowledge(parties.server).blinded, blinds))
    assert weights.tolist() == [((1 << WEIGHT_BITS) // n - ERROR_BOUND) if n else 0 for n in (20_000, 19_999, 0, 1)]


def test_counts_in_units_are_rounded_up_and_capped_in_units():
    """Units of 10 and 60 records of two silos: up to three units of a person count in each."""
    counts = np.array([[25, 0, 4, 30, 31, 0], [5, 1, 400, 30, 11, 0]])
    secrets, settings = Secrets.from_key(b"k" * 32), {"weighting": "records", "clip": 1.0, "noise_multiplier": 5.0}
    aggregation = LatticeWeighting(max_records=60, count_unit=10)
    plan = plan_of(aggregation, 6, 2, 4, secrets, rounds=2, **settings)
    parties = Parties(plan, counts, secrets)
    for kind in plan.setup:
        parties.exchange(kind)
    blinds = SiloKnowledge(parties.silos["silo-1"]).blinds
    totals = np.array([3 + 1, 0 + 1, 1 + 3, 3 + 3, 3 + 2, 0])
    assert centred(ring.add(ServerKnowledge(parties.server).blinded, blinds)).tolist() == W[totals].tolist()
    weighting = aggregation.weighting(plan.release)
    assert (weighting.entries, weighting.most) == (7, 30)
    weights = weighting.in_the_clear(counts)
    assert weights.sum(axis=0) == pytest.approx([1, 1, 1, 1, 1, 0]) and (weights.sum(axis=0) <= 1).all()
    assert weights[0] == pytest.approx([3 / 4, 0, 1 / 4, 1 / 2, 3 / 5, 0])
    (note,) = aggregation.notes(plan.release, counts)
    assert "at most 30 records" in note and "2 of the 5 people with records have more" in note


# --- coalitions (test 9) ----------------------------------------------------------------------------------------------


def totals_of(weights):
    """N_u of numbers that are weights."""
    lookup = {int(weight): total for total, weight in enumerate(W)}
    return [lookup.get(int(weight), -1) for weight in weights]


@pytest.mark.parametrize("silo", ["silo-0", "silo-1", "silo-2"])
def test_the_server_and_any_silo_learn_all_totals_as_documented(silo):
    server, silos = sessions()
    until(server, silos)
    together = ring.add(ServerKnowledge(server.side).blinded, SiloKnowledge(silos[silo].side).blinds)
    assert totals_of(centred(together)) == TOTALS.tolist()


def unmasked_counts(colluding):
    """What the server and these silos can make of silo 0's masked counts: all the masks that they know are taken off.

    Rotations of users whom silo 0 deals follow from alpha_u and N_u, which they know too.
    """
    server, silos = sessions([*COUNTS, [1, 2, 0, 4, 5]])
    sent = until(server, silos)
    entries = silos["silo-0"].side.scheme.weighting.entries
    masked = {name: np.frombuffer(body.counts, "<u4").astype(int) for name, body in sent[MaskedCounts].items()}
    together = ring.add(ServerKnowledge(server.side).blinded, SiloKnowledge(silos[colluding[0]].side).blinds)
    totals = np.array(totals_of(centred(together)))
    rho = (sum(masked.values()) - totals) % entries
    rho[np.arange(len(rho)) % 4 != 0] = 0  # silo 0 deals every fourth user
    known = sum(SiloKnowledge(silos[name].side).count_masks(0, len(rho)) for name in colluding)
    return (masked["silo-0"] - rho + known) % entries


def test_the_server_and_all_other_silos_learn_the_last_ones_counts_and_fewer_do_not():
    """With another honest silo the masks of that pair remain."""
    capped = np.minimum(COUNTS[0], 500)
    assert unmasked_counts(["silo-1", "silo-2", "silo-3"]).tolist() == capped.tolist()
    for colluding in (["silo-1", "silo-2"], ["silo-1"], ["silo-3"]):
        assert (unmasked_counts(colluding) != capped).all()


def rotations(silo, silos):
    """rho_u, which a dealer derives from its own secrets."""
    side = silos[silo].side
    users = side.scheme.roles.dealt_by(list(silos).index(silo))
    return users, SiloKnowledge(side).rotations(users, 1999)


@pytest.mark.parametrize(("dealer", "other"), [(0, 1), (1, 2), (2, 0), (0, 2), (1, 0), (2, 1)])
def test_a_dealer_and_its_keeper_learn_the_totals_of_their_users_and_no_other_pair_does(dealer, other):
    server, silos = sessions()
    sent = until(server, silos)
    users, rho = rotations(f"silo-{dealer}", silos)
    # What silo ``other`` reads of alpha, as keeper of somebody's tables.
    keeper = SiloKnowledge(silos[f"silo-{other}"].side)
    kept = keeper.side.scheme.roles.dealer(other)
    asked = keeper.open_indices(sent[LookUp][f"silo-{other}"].indices, kept)
    alpha = np.frombuffer(asked, "<u4").astype(int)
    if kept == dealer:
        assert ((alpha - rho) % 1999).tolist() == TOTALS[users].tolist()
    else:
        with pytest.raises(MessageRefused):  # what the right keeper got does not open with this silo's keys
            sealed = sent[LookUp][f"silo-{(dealer + 1) % 3}"].indices
            keeper.open_indices(sealed, dealer)


def test_the_server_alone_and_single_silos_hold_nothing_that_depends_on_counts():
    """Masked counts, asked entries and blinded weights are uniform, whatever the counts are: chi-square over runs."""
    seen = {counts: [] for counts in ((1, 0), (300, 300))}
    for counts, found in seen.items():
        for trial in range(60):
            server, silos = sessions([[counts[0]] * 4, [counts[1]] * 4], key=bytes([trial]) * 32)
            sent = until(server, silos)
            masked = [np.frombuffer(sent[MaskedCounts][name].counts, "<u4") for name in silos]
            found += [value / 2001 for row in masked for value in row]
            found += [int(value) / ring.PRIMES[0] for value in ServerKnowledge(server.side).blinded[:, 0, 0]]
    for found in seen.values():
        assert stats.kstest(found, "uniform").pvalue > 1e-4


# --- the same and other bodies (test 5) -------------------------------------------------------------------------------


def test_the_same_request_gets_the_same_bytes_and_another_one_for_the_round_is_refused():
    server, silos = sessions()
    until(server, silos)
    request, silo = server.requests()["silo-0"], silos["silo-0"]
    body = decode(request, experiment="d" * 64, silo="silo-0", limit=10**9)
    first = silo.reply(request)
    assert silo.reply(request) == first
    other = m.UpdateRequest(1, m.pack(server.model + 1), body.sample, body.weights, body.present)
    before = silo.save()
    with pytest.raises(MessageRefused):
        silo.reply(m.encode("d" * 64, "silo-0", other))
    assert silo.save() == before


def bodies(key=b"k" * 32, counts=COUNTS):
    """The silos' updates of a first round without masks, as their machines hold them."""
    server, silos = sessions(counts, key=key)
    until(server, silos)
    found = {}
    for name, silo in silos.items():
        protect, side = silo.side.protected, silo.side

        def keep(body, request, name=name, protect=protect):
            found[name] = lattice_ring.Body(body.c0, body.c1)
            return protect(body, request)

        side.protected = keep
        silo.reply(server.requests()[name])
    return found


def test_other_records_meet_another_setup_other_noise_and_another_zero():
    """Same secrets, one record more: nothing of one body is left in the difference to the other (tests 5 and 10)."""
    first, again = bodies(), bodies()
    counts = [list(row) for row in COUNTS]
    counts[0][0] += 1
    other = bodies(counts=counts)
    for name, body in first.items():
        assert (body.c0 == again[name].c0).all() and (body.c1 == again[name].c1).all()
        gaps = np.array(ring.centred(ring.subtract(other[name].c1[0], body.c1[0])).to_integers(), dtype=float)
        assert np.median(np.abs(gaps)) > ring.MODULUS / 16


def test_no_error_and_no_c1_serves_two_encryptions():
    """Of two ciphertexts with the same ones the difference would be that of what is encrypted."""
    server, silos = sessions()
    until(server, silos)
    known = ServerKnowledge(server.side)
    first, again = (known.encrypted(known.blinded, 0) for _ in range(2))
    others = known.encrypted(ring.add(known.blinded, ring.number(1)), 0), known.encrypted(known.blinded, 1)
    assert first == again == known.weights
    assert len({sent[:32] for sent in (first, *others)}) == 3  # the nonce that c1 is a hash of; errors have its key
    assert len({sent[32:] for sent in (first, *others)}) == 3


def test_two_setups_share_no_secret():
    counts = [list(row) for row in COUNTS]
    counts[0][0] += 1
    runs = [sessions(each) for each in (COUNTS, counts)]
    sent = [until(*run) for run in runs]
    ids = [ServerKnowledge(server.side).setup for server, _ in runs]
    assert ids[0] != ids[1]
    blinds = [SiloKnowledge(silos["silo-0"].side).blinds for _, silos in runs]
    assert (blinds[0] != blinds[1]).all()
    rho = [rotations("silo-1", silos)[1] for _, silos in runs]
    assert (rho[0] != rho[1]).any()
    for kind, field in ((MaskedCounts, "counts"), (MaskedCounts, "tables"), (TableEntries, "entries")):
        one, two = (getattr(each[kind]["silo-2"], field) for each in sent)
        assert one != two
    assert sent[0][RingWeights]["silo-0"].weights[:32] != sent[1][RingWeights]["silo-0"].weights[:32]


def test_a_saved_session_does_not_continue_with_other_counts():
    server, silos = sessions()
    until(server, silos)
    saved = silos["silo-0"].save()
    counts = [list(row) for row in COUNTS]
    counts[0][0] += 1
    _, others = sessions(counts)
    with pytest.raises(RunError, match="records are not those it began with"):
        others["silo-0"].restore(saved)


# --- what the total tells (tests 6, 7, 8) -----------------------------------------------------------------------------


def totals_with_noise(counts, trials, sigma):
    """What the server decrypts, in clips, of ``trials`` first rounds whose only randomness is fresh noise and zeros."""
    server, silos = sessions(counts, pulling=4, noise_multiplier=sigma)
    until(server, silos)
    requests = server.requests()
    accumulated, finished = {}, {}
    for name, silo in silos.items():
        finished[name] = silo.side.finished

        def keep(total, bound, name=name):
            accumulated[name] = total
            return finished[name](total, bound)

        silo.side.finished = keep
        silo.reply(requests[name])
    found = []
    secret = ServerKnowledge(server.side).secret
    for trial in range(trials):
        total = lattice_ring.Body.zero(silos["silo-0"].side.scheme)
        for index, name in enumerate(silos):
            fresh = Secrets.from_key(bytes([trial % 256, trial // 256, index]) + b"x" * 29)
            total.add(finished[name](accumulated[name], lambda purpose, _, fresh=fresh: fresh.child(purpose)))
        opened = ring.to_coefficients(ring.multiply(total.c1, secret))
        phase = ring.add(total.c0, lattice_ring.cut(opened, 4))
        found.append(ring.centred(phase).to_floats(-WEIGHT_BITS - 24))
    return np.array(found)


def test_with_all_it_holds_the_server_tells_a_users_presence_no_better_than_its_delta():
    """Four users pull a coordinate of their own by a clip, or are not there; the server knows all but noise and zeros.

    Coordinates have noise of their own: each of them is a trial of one user's presence.
    """
    sigma, trials = 1.0, 800
    counts = np.array([[5, 5, 5, 5, 1], [5, 5, 5, 5, 0]])
    without = counts.copy()
    without[:, :4] = 0

    def totals(sigma, trials):
        return [totals_with_noise(each, trials // 4, sigma).ravel() for each in (counts, without)]

    here, away = totals(sigma, trials)
    assert here.mean() - away.mean() == pytest.approx(1.0, abs=5 * sigma * math.sqrt(2 / trials))
    threshold = 0.5
    advantage = (here > threshold).mean() - (away > threshold).mean()
    bound = gaussian_delta(0.0, 1 / sigma)  # of the best test there is
    assert advantage <= bound + 4 / math.sqrt(2 * trials)
    assert advantage >= bound - 4 / math.sqrt(2 * trials)  # and this is one
    assert here.std() == pytest.approx(sigma, rel=5 / math.sqrt(2 * trials))
    here, away = totals(sigma / 2, 280)  # with half of the noise the same test breaks what is claimed
    assert (here > threshold).mean() - (away > threshold).mean() > bound + 4 / math.sqrt(2 * 280)


def test_errors_are_lost_in_the_noise_towards_those_who_see_the_models():
    """A silo that knows all but the errors learns about e from (sum_u e_u X_u + z): less than 2^-40 nats a round."""
    server, silos = sessions(noise_multiplier=0.0174)  # 0.01 in each silo: of the others' noise nothing is needed
    until(server, silos)
    known, silo = ServerKnowledge(server.side), SiloKnowledge(silos["silo-0"].side)
    ciphertexts = silo.ciphertexts
    phases = ring.add(ciphertexts[:, 0], ring.multiply(ciphertexts[:, 1], known.secret))
    weights = silo.side.scheme.joined(ring.add(known.blinded, silo.blinds))
    (errors,) = ring.centred(ring.to_coefficients(ring.subtract(phases, weights))).to_floats()
    assert 2 < errors.std() < 5  # these are the errors
    # Of users who pull one coordinate with all of their records; they share a ciphertext, each four places further.
    turned = np.concatenate([-errors, errors])
    rows = np.array([total * 2.0**24 * turned[-4 * u - 4096 :][:4096] for u, total in enumerate(TOTALS)])
    shift, deviation = np.abs(rows.sum(axis=0)), 0.01 * 2.0 ** (WEIGHT_BITS + 24)
    # The noise has steps of 2^k: a smaller shift h tells h 2^k / (2 s^2), a larger one h^2 / (2 s^2).
    told = (shift * np.maximum(shift, 2.0**lattice_ring.DITHER_BITS)).sum() / (2 * deviation**2)
    assert told < 2.0**-40


@pytest.mark.parametrize("sampling", ["open", "private"])
def test_whom_the_sample_leaves_out_moves_the_total_by_no_more_than_the_residual(monkeypatch, sampling):
    settings = {"sample_rate": 0.5, "sampling": sampling, "rounds": 6}
    with monkeypatch.context() as patched:
        inject_noise(patched, scale=0.0)
        server, silos = sessions([[9, 9, 9, 9], [9, 9, 0, 9]], pulling=4, **settings)
        moved, models = [], [server.model]
        while server.requests():
            until(server, silos)
            if server.stage is not Stage.ROUND:
                break
            drive_one(server, silos)
            models.append(server.model)
        moved = np.diff(models, axis=0)
    clip = server.plan.release.clip
    steps = np.abs(moved) * 4 / clip  # the mean over four users
    residual = server.plan.facts.residual
    inside, outside = steps[steps > 0.5], steps[steps <= 0.5]
    assert len(inside) and len(outside)
    assert np.abs(inside - 1).max() < 1e-6
    assert outside.max() <= residual + 2.0**-24


def drive_one(server, silos):
    """One round."""
    for name, request in server.requests().items():
        server.receive(name, silos[name].reply(request))
    server.collect()
    server.charge()
    server.advance()


def test_whose_turn_it_is_not_leaves_nothing_in_the_total(monkeypatch):
    """Where people take turns, the others are not accumulated: not even the errors of their ciphertexts remain."""
    with monkeypatch.context() as patched:
        inject_noise(patched, scale=0.0)
        server, silos = sessions([[9] * 8, [9] * 8], dimension=8, pulling=8, participation_groups=3, rounds=3)
        for round_ in (1, 2, 3):
            until(server, silos)
            before = server.model
            drive_one(server, silos)
            turn = server.plan.release.participation.members(8, round_)
            assert 0 < turn.sum() < 8
            assert ((server.model != before) == turn).all()


def test_nobody_weighs_more_than_one_whatever_the_errors_are():
    totals = np.arange(1, 2001, dtype=object)
    table = lattice_table(2000)
    assert table[0] == 0 and (table[1:] > 0).all()
    assert (totals * (table[1:].astype(object) + ERROR_BOUND) <= 1 << WEIGHT_BITS).all()


def lattice_table(records):
    from uldp.aggregation.lattice_lookup import Weighting

    return Weighting(records, 1).table()


def run_of(restarts, **settings):
    """All messages of a run in their order, the model and the ledger; with ``restarts`` nobody outlives an exchange.

    Then server and silos are made anew, from what they saved, before and after every exchange.
    """
    messages, folders = [], {f"silo-{index}": Folder() for index in range(3)}
    server, silos = sessions(dimension=5, rounds=3, **settings)

    def restarted():
        made, others = sessions(dimension=5, rounds=3, **settings)
        made.restore(server.save())
        for entry in server.ledger.entries:
            made.ledger.charge(entry)
        for name, silo in silos.items():
            others[name].restore(silo.save(folders[name]), folders[name])
        return made, others

    while requests := server.requests():
        messages.append(requests)
        replies = {name: silos[name].reply(request) for name, request in requests.items()}
        messages.append(replies)
        for name, reply in replies.items():
            server.receive(name, reply)
        server.collect()
        for _ in range(2 if server.stage is Stage.COLLECTED else 1):  # also between a charge and the model's change
            if restarts:
                server, silos = restarted()
                # Who is asked again after a restart answers with the same bytes.
                assert {name: silos[name].reply(request) for name, request in requests.items()} == replies
            server.charge()
        server.advance()
    return messages, server.model.tobytes(), server.ledger.entries


@pytest.mark.parametrize("settings", [{}, {"sample_rate": 0.5}, {"sample_rate": 0.5, "sampling": "private"}])
def test_a_federation_that_is_restored_after_every_exchange_sends_the_same_bytes(settings):
    """Its secrets follow from what it saved: the same setup, noise, zeros, slots and masks, and nothing is new."""
    assert run_of(True, **settings) == run_of(False, **settings)
