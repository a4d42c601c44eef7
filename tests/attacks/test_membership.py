"""Membership attacks: trainings are those of runs, scores use nobody's own coin, rates and ceilings are right."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import norm

import uldp
from uldp.attacks.ceilings import ceiling
from uldp.attacks.lira import likelihood_ratios
from uldp.attacks.membership import plan_attack, run_attack
from uldp.attacks.rates import rates_of
from uldp.attacks.replay import Replay, ReplayedRound, scores_of_round
from uldp.attacks.targets import deal_targets, kinds_of
from uldp.experiment.build import prepare
from uldp.experiment.config import Experiment
from uldp.library.arguments import CallArguments
from uldp.library.attacking import attackable_people
from uldp.rng import Secrets, Streams
from uldp.runtimes.simulation import run as simulate

QUIET = {"privacy": {"noise_multiplier": 0}}


@pytest.fixture(scope="module")
def breast_cancer():
    return uldp.Federation.from_dataset("breast-cancer", users=40, silos=3)


@pytest.fixture(scope="module")
def targets(breast_cancer):
    return deal_targets(breast_cancer, kinds_of((1, 8)), "a test", Streams.from_seed(0))


def experiment(method, targets, rounds=2, settings=None, **sections):
    data = {"given": "breast-cancer", "users": targets.federation.users}
    section = {"name": method, "rounds": rounds, **(settings or {})}
    return Experiment.from_tree({"data": data, "method": section, "aggregation": {"name": "plain"}, **sections})


# --- people -----------------------------------------------------------------------------------------------------------


def test_people_have_as_many_records_as_said_in_as_many_silos(breast_cancer, targets):
    counts = targets.federation.counts()
    for index, kind in enumerate(targets.kinds):
        mine = counts[:, targets.kind == index]
        assert mine.shape[1] >= 2
        assert (mine.sum(axis=0) == kind.records).all()
        if not kind.spread:
            assert ((mine > 0).sum(axis=0) == 1).all()
    assert [len(silo) for silo in breast_cancer] >= [len(silo) for silo in targets.federation]
    assert str(targets.federation.users) in targets.words()


def test_too_few_records_are_said(breast_cancer):
    with pytest.raises(uldp.ConfigError, match="too few for two people with 400 records"):
        deal_targets(breast_cancer, kinds_of((1, 400)), "a test", Streams.from_seed(0))
    for wrong in ((), (1, 1), (0,)):
        with pytest.raises(uldp.ConfigError, match="records"):
            kinds_of(wrong)


def replay(prepared, seed):
    everybody = np.ones(prepared.federation.users, dtype=np.bool_)
    initial = prepared.learner.initial(prepared.streams.child("model"))
    return Replay(prepared, everybody, initial, Streams.from_seed(seed), Secrets.simulated_from_seed(seed))


# --- training ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["uldp-avg-w", "uldp-sgd", "fedavg", "uldp-naive", "record-dp", "uldp-group-2"])
def test_a_replay_trains_the_model_of_a_run(method, targets):
    """Without noise, and with batches of all records, the last bits apart."""
    settings = {"record_rate": 1.0, "local_steps": 3} if method in ("record-dp", "uldp-group-2") else {}
    given = experiment(method, targets, rounds=3, settings=settings, **({} if method == "fedavg" else QUIET))
    prepared = prepare(given, targets.federation)
    *_, last = replay(prepared, 1).rounds()
    np.testing.assert_allclose(last.x, simulate(prepared).model, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("method", ["uldp-avg-w", "record-dp", "uldp-naive", "fedavg"])
def test_the_noise_of_a_replay_is_the_stated_one(method, targets):
    privacy = {} if method == "fedavg" else {"privacy": {"noise_multiplier": 5.0}}
    settings = {"local_steps": 5} if method == "record-dp" else {}
    prepared = prepare(experiment(method, targets, rounds=1, settings=settings, **privacy), targets.federation)
    seen = [next(replay(prepared, seed).rounds()) for seed in range(40)]
    spread = np.std([one.total for one in seen], axis=0).mean()
    stated = np.sqrt(np.diagonal(seen[0].noise).mean() if seen[0].noise.ndim else seen[0].noise)
    assert spread == pytest.approx(stated, rel=0.3 if method == "record-dp" else 0.1, abs=1e-9)


def test_an_adversary_who_knows_all_others_computes_the_likelihood_ratio():
    """With one round, the score is log p(total | in) / p(total | out) of the Gaussian mechanism."""
    generator = np.random.default_rng(0)
    added, included = generator.normal(size=(5, 3)), np.array([1, 0, 1, 1, 0], dtype=bool)
    total, variance = generator.normal(size=3), 0.7
    scores = scores_of_round(ReplayedRound(total, added, np.array(variance), total), included)[1]
    for user in range(5):
        rest = np.where(np.arange(5) == user, 0, included) @ added
        ratio = norm.logpdf(total, rest + added[user], variance**0.5) - norm.logpdf(total, rest, variance**0.5)
        assert scores[user] == pytest.approx(ratio.sum())
    spread = np.diag([1.0, 4.0, 9.0])
    apart = scores_of_round(ReplayedRound(total, added, spread, total), included)
    scaled = scores_of_round(ReplayedRound(total / [1, 2, 3], added / [1, 2, 3], np.array(1.0), total), included)
    np.testing.assert_allclose(apart, scaled)


# --- scores and rates -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("models", [30, 100])
def test_a_likelihood_ratio_does_not_use_the_models_own_coin(models):
    generator = np.random.default_rng(0)
    included = generator.random((models, 4)) < 0.5
    statistic = generator.normal(2.0 * included)
    flipped = included.copy()
    flipped[3] = ~flipped[3]
    ratios = likelihood_ratios(statistic, included)
    np.testing.assert_allclose(ratios[3], likelihood_ratios(statistic, flipped)[3])
    assert np.mean((ratios > 0) == included) > 0.75
    assert np.isfinite(likelihood_ratios(np.zeros((models, 4)), included)).all()


def test_scores_without_a_signal_have_an_auc_of_one_half():
    generator, found = np.random.default_rng(0), []
    for _ in range(60):
        coins = generator.random((100, 3)) < 0.5
        ratios = likelihood_ratios(generator.normal(size=coins.shape), coins)
        inside, outside = ratios[coins], ratios[~coins]
        found.append((inside[:, None] > outside).mean())
    assert np.mean(found) == pytest.approx(0.5, abs=0.02)


def test_rates_are_those_of_gaussians_and_their_intervals_cover():
    generator, covered = np.random.default_rng(0), 0
    for _ in range(20):
        coins = generator.random((100, 20)) < 0.5
        rates = rates_of(generator.normal(1.0 * coins), coins, generator)
        covered += rates.auc.low < norm.cdf(1 / math.sqrt(2)) < rates.auc.high
        covered += rates.true_in.low < norm.sf(norm.isf(0.01) - 1) < rates.true_in.high
    assert covered >= 34


def test_rates_at_the_ends():
    generator = np.random.default_rng(0)
    coins = generator.random((50, 6)) < 0.5
    perfect = rates_of(1.0 * coins, coins, generator)
    assert perfect.auc.value == perfect.true_in.value == 1
    assert 0.95 < perfect.true_in.low < 1
    nothing = rates_of(np.zeros(coins.shape), coins, generator)
    assert nothing.auc.value == 0.5 and nothing.true_in.value == 0
    assert 0 < nothing.true_in.high < 0.05


# --- ceilings ---------------------------------------------------------------------------------------------------------


def test_the_ceiling_of_a_gaussian_is_exact(targets):
    prepared = prepare(experiment("uldp-avg", targets, rounds=4, privacy={"noise_multiplier": 2.0}), targets.federation)
    found, mu = ceiling(prepared, 8), 1.0
    assert found.auc == pytest.approx(norm.cdf(mu / math.sqrt(2)), abs=1e-3)
    assert found.true_in == pytest.approx(norm.sf(norm.isf(0.01) - mu), abs=1e-6)
    assert found == ceiling(prepared, 32)  # users are protected, however many records they have


def test_record_level_ceilings_grow_with_records_and_are_above_the_truth(targets):
    settings = {"local_steps": 1, "record_rate": 0.5}
    given = experiment("record-dp", targets, rounds=1, settings=settings, privacy={"noise_multiplier": 1.0})
    prepared = prepare(given, targets.federation)
    found = [ceiling(prepared, records) for records in (1, 8, 32)]
    assert found[0].auc < found[1].auc < found[2].auc <= 1
    assert found[0].epsilon == pytest.approx(prepared.planned_statement().epsilon)
    # One sampled Gaussian: the rate of true "in" of the threshold test, which is optimal.
    at = norm.isf(0.01)
    true = 0.5 * norm.sf(at) + 0.5 * norm.sf(at - 1)
    assert true <= found[0].true_in < 1.4 * true
    # AUC of the mixture against the Gaussian, exactly.
    exact = 0.5 * 0.5 + 0.5 * norm.cdf(1 / math.sqrt(2))
    assert exact <= found[0].auc < exact + 0.03


def test_without_a_guarantee_there_is_no_ceiling(targets):
    for method, privacy in (("fedavg", {}), ("uldp-avg", QUIET)):
        found = ceiling(prepare(experiment(method, targets, **privacy), targets.federation), 8)
        assert (found.auc, found.true_in) == (1.0, 1.0) and math.isinf(found.epsilon)


# --- the whole attack -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def made():
    what = {"epsilon": 4.0, "rounds": 5}
    return uldp.attack("breast-cancer", ["uldp-avg-w", "fedavg"], records=(1, 8), models=60, progress=False, **what)


def test_attacks_stay_below_the_ceiling_where_there_is_one_and_work_where_there_is_none(made):
    protected, open_ = made.methods
    assert not made.above_ceiling
    assert [kind.ceiling.auc for kind in protected.kinds] == pytest.approx([0.744] * 3, abs=2e-3)
    knows = [kind.rates["iterates, knows all others"].auc.value for kind in protected.kinds]
    assert max(knows) > 0.65  # of 0.744
    many = open_.kinds[1].rates
    assert many["iterates"].auc.low > 0.65
    assert many["iterates"].auc.value > many["LiRA, one record"].auc.value


def test_the_result_prints_draws_and_is_a_document(made, tmp_path):
    assert made.figure(tmp_path / "attack.png").stat().st_size > 10_000
    text, tree = str(made), made.to_json()
    assert "epsilon 4 for a user" in text and "no guarantee" in text
    assert [method["method"] for method in tree["methods"]] == ["uldp-avg-w", "fedavg"]
    assert tree["methods"][1]["epsilon"] is None
    first = tree["methods"][0]["people"][0]
    assert first["records"] == 1 and len(first["attacks"]) == 7
    assert all(one["auc"]["low"] <= one["auc"]["value"] <= one["auc"]["high"] for one in first["attacks"])


def test_an_attack_that_was_stopped_goes_on(targets, tmp_path, monkeypatch):
    experiments = {"uldp-avg": experiment("uldp-avg", targets, privacy={"noise_multiplier": 2.0})}
    plan = plan_attack(experiments, targets, models=24, seed=3)
    whole, calls = run_attack(plan), []

    def stop():
        calls.append(None)
        if len(calls) == 13:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_attack(plan, folder=tmp_path, on_model=stop)
    training = plan.trainings["uldp-avg"]
    trained = []
    plain = type(training).shadow
    monkeypatch.setattr(type(training), "shadow", lambda self, number: trained.append(number) or plain(self, number))
    again = run_attack(plan, folder=tmp_path)
    assert trained == list(range(10, 24))
    assert again.to_json() == whole.to_json()
    (file,) = tmp_path.iterdir()
    file.write_bytes(b"nonsense")
    with pytest.raises(uldp.RunError, match="damaged"):
        run_attack(plan, folder=tmp_path)


def test_own_records_are_not_read():
    """Two federations of the same shape and with other records are attacked alike."""

    def federation(seed):
        generator = np.random.default_rng(seed)
        silo = {
            name: (generator.normal(size=(60, 4)), generator.integers(2, size=60), generator.integers(20, size=60))
            for name in ("a", "b")
        }
        return uldp.Federation.from_arrays(silo, test=(np.zeros((4, 4)), np.array([0, 1, 0, 1])), classes=2, users=20)

    people = [attackable_people(CallArguments.of(federation(seed), {"epsilon": 4.0})) for seed in (0, 1)]
    assert people[0][1] == "made-up tables of the same public shape"
    assert [silo.digest() for silo in people[0][0]] == [silo.digest() for silo in people[1][0]]
    public, source = attackable_people(CallArguments.of("breast-cancer", {"epsilon": 4.0}))
    assert "breast-cancer" in source and public.name == "breast-cancer"


@pytest.mark.parametrize(
    ("methods", "what", "said"),
    [
        (["ldp-fedavg"], {}, "uldp attack inference"),
        (["uldp-avg"], {"models": 3}, "models"),
        (["uldp-avg"], {"workers": 0}, "workers"),
        (["uldp-avg"], {"records": (1, 5000)}, "too few"),
        (["uldp-avg"], {"attack_seed": -1}, "attack_seed"),
        (["uldp-avg"], {"method": "fedavg"}, "name the methods"),
        ([], {}, "at least one"),
    ],
)
def test_bad_input_is_refused(methods, what, said):
    with pytest.raises(uldp.ConfigError, match=said):
        uldp.attack("synthetic", methods, **{"models": 16, "records": (1, 8), "progress": False, **what})


def test_a_model_that_is_too_large_is_refused(targets, monkeypatch):
    monkeypatch.setattr("uldp.attacks.shadows.MAX_NUMBERS", 100)
    with pytest.raises(uldp.ConfigError, match="smaller model"):
        plan_attack({"fedavg": experiment("fedavg", targets)}, targets, 16, 0)


def test_one_record_is_one_kind():
    assert [str(kind) for kind in kinds_of((8, 1))] == ["1 record", "8 records, spread", "8 records, one silo"]
    assert replace(kinds_of((8,))[0], spread=False) == kinds_of((8,))[1]
