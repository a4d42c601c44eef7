"""Audits: what is right is not refuted, what is wrong is, and whatever is asked for in vain is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import uldp
from uldp.aggregation.base import ModularSumAccumulator
from uldp.aggregation.masked import MaskedSilo
from uldp.audits.audit import audit_of, size_of
from uldp.cli.app import app
from uldp.library.arguments import CallArguments
from uldp.library.auditing import public_shape

runner = CliRunner()
CANARIES = 1024
EXAMPLES = Path(__file__).parents[2] / "examples"


def audited(method="uldp-avg", canaries=CANARIES, seed=0, adversary=None, **what):
    """A small audit; ``what`` as for uldp.audit."""
    what = {"epsilon": 4.0, "rounds": 4, **what}
    prepared = public_shape(CallArguments.of("synthetic", {"method": method, **what}))
    return audit_of(prepared, size_of(prepared, canaries), adversary=adversary, seed=seed)


def wrong(made):
    """The names of all that speaks against a claim."""
    return [found.exposure.who for found in made.found if found.refuted] + [
        check.name for check in made.checks if check.failed
    ]


FEW = {"data.users": 20}
SMALL = {"method.local_steps": 5, "method.record_rate": 0.2}
CASES = [
    ("uldp-avg", {}),
    ("uldp-avg-w", {"aggregation": "plain"}),
    ("uldp-sgd", {"options": {"method.sample_rate": 0.3, "method.max_participations": 2}}),
    ("uldp-naive", {}),
    ("uldp-group-2", {"options": SMALL, "rounds": 2}),
    ("record-dp", {"options": SMALL, "rounds": 2, "aggregation": "plain"}),
    ("local-sub-dp", {"options": SMALL, "rounds": 2, "aggregation": "plain"}),
    ("central-sub-dp", {}),
    ("auto", {"options": {"aggregation.min_silos": 2}, "canaries": None}),  # lattice: a hundred
]


@pytest.mark.parametrize(("method", "what"), CASES, ids=[name for name, _ in CASES])
def test_what_is_right_is_not_refuted(method, what):
    made = audited(method, **what)
    assert wrong(made) == []
    assert not made.refuted and made.to_json()["verdict"] == "not refuted"
    public = made.found[0]
    assert 0 < public.epsilon < 1.1 * public.exposure.epsilon


def test_a_bound_by_canaries_reaches_most_of_the_claimed_epsilon():
    """uldp-avg at epsilon 4 with 20 rounds: more than 60 %, by trade-off alone."""
    made = audited(canaries=4000, rounds=20)
    found = made.found[0]
    bounds = {bound.name: bound.epsilon for bound in found.bounds}
    assert found.exposure.epsilon == pytest.approx(4, abs=1e-3)
    assert bounds["trade-off, Clopper-Pearson"] > 0.6 * 4
    assert bounds["shift over noise"] > 0.95 * 4
    assert 0.2 * 4 < bounds["one run"] < 4
    assert not made.refuted


@pytest.mark.parametrize("mechanism", ["two-point", "srr", "piecewise"])
def test_local_mechanisms_are_audited_by_the_weight(mechanism):
    what = {"method": "ldp-fedavg", "aggregation": "plain", "rounds": 4}
    what["options"] = {"method.mechanism": mechanism, "method.epsilon_weight": 2.0}
    prepared = public_shape(CallArguments.of("synthetic", what))
    made = audit_of(prepared, size_of(prepared, CANARIES))
    assert not made.refuted
    assert 0.6 * 2 < made.found[0].epsilon < 2.1
    assert made.found[1].verdict == "not audited"


# --- errors that must be caught ---------------------------------------------------------------------------------------


def half_the_noise(patch):
    from uldp.privacy.releases import sums

    patch.setattr(
        "uldp.aggregation.base.add_noise", lambda total, scale, stream: sums.add_noise(total, scale / 2, stream)
    )


def a_silo_without_noise(patch):
    from uldp.privacy.releases import sums

    made = []

    def add(total, scale, stream):
        made.append(None)
        return total if len(made) % 5 == 0 else sums.add_noise(total, scale, stream)

    patch.setattr("uldp.aggregation.base.add_noise", add)


def noise_drawn_once(patch):
    from uldp.privacy.releases import sums
    from uldp.rng import Secrets

    def add(total, scale, stream):
        return sums.add_noise(total, scale, Secrets.simulated_from_seed(len(total)).stream())

    patch.setattr("uldp.aggregation.base.add_noise", add)


def no_clipping(patch):
    patch.setattr("uldp.privacy.releases.gaussian_sum.clip_rows", lambda rows, clip: np.asarray(rows) / 4e5)


def weights_that_sum_to_more(patch):
    from uldp.privacy.releases.weights import uniform_weights

    larger = lambda users, silos: 1.2 * uniform_weights(users, silos)  # noqa: E731
    patch.setattr("uldp.privacy.releases.gaussian_sum.uniform_weights", larger)


def a_mask_used_twice(patch):
    masked = MaskedSilo.protect

    def protect(self, residues, request):
        return masked(self, residues, replace(request, round=1, digest="same"))

    patch.setattr(MaskedSilo, "protect", protect)


PLANTED = [
    half_the_noise,
    a_silo_without_noise,
    noise_drawn_once,
    no_clipping,
    weights_that_sum_to_more,
    a_mask_used_twice,
]


@pytest.mark.parametrize("error", PLANTED, ids=lambda error: error.__name__)
def test_errors_are_caught(error, monkeypatch):
    error(monkeypatch)
    assert wrong(audited())


def a_sample_of_fixed_size(patch):
    def draw(self, round_):
        words = self._secrets.child("sample", "round", round_).stream().words(self._release.facts.users)
        taken = np.zeros(len(words), dtype=np.bool_)
        taken[np.argsort(words)[: int(self._release.user_sampling.rate * len(words))]] = True
        return taken

    patch.setattr("uldp.sessions.sampling.RoundSampler._draw", draw)


def a_limit_that_is_ignored(patch):
    patch.setattr("uldp.sessions.sampling.RoundSampler.users", lambda self, round_: self._draw(round_))


@pytest.mark.parametrize(
    ("error", "limit", "rounds", "name"),
    [
        (a_sample_of_fixed_size, 0, 6, "variance of the whole sample's size"),
        (a_limit_that_is_ignored, 2, 6, "participations of a user"),
    ],
)
def test_wrong_samples_are_caught(error, limit, rounds, name, monkeypatch):
    error(monkeypatch)
    options = {"method.sample_rate": 0.5, "method.max_participations": limit}
    made = audited(rounds=rounds, adversary="the server", options=options)
    assert name in wrong(made)


# --- methods of one's own ---------------------------------------------------------------------------------------------

METHODS = '''
from dataclasses import dataclass, replace
import numpy as np
import own_release
from uldp import Release, UldpAvg

STARTS = {}

@dataclass(frozen=True, kw_only=True)
class Fine(UldpAvg):
    def silo(self, x, data, learner, streams):
        for users, rows in learner.user_deltas(x, data, self.local_training, streams):
            yield users, 0.5 * rows

@dataclass(frozen=True, kw_only=True)
class Centred(UldpAvg):
    """Takes the mean of a block off every update: rows depend on who else is there."""
    def silo(self, x, data, learner, streams):
        for users, rows in learner.user_deltas(x, data, self.local_training, streams):
            yield users, rows - np.nanmean(rows, axis=0)

@dataclass(frozen=True, kw_only=True)
class OnlyTheFirst(UldpAvg):
    """Whoever comes first in a silo counts: without that person somebody else does."""
    def silo(self, x, data, learner, streams):
        for users, rows in learner.user_deltas(x, data, self.local_training, streams):
            first = users == data.users.min()
            yield users[first], rows[first]

@dataclass(frozen=True, kw_only=True)
class CentredLater(Centred):
    """The same as Centred from the second round on."""
    def silo(self, x, data, learner, streams):
        first = np.array_equal(x, STARTS.setdefault(len(x), x))  # models with canaries are longer
        yield from (Fine if first else Centred).silo(self, x, data, learner, streams)

class Unsaid(own_release.NoisySiloSum):
    noise_variance = Release.noise_variance

class Half(own_release.NoisySiloSum):
    def event(self, silos_heard):
        return own_release.NoisySiloSum.event(replace(self, noise_multiplier=2 * self.noise_multiplier), silos_heard)

class DrawnInRows(own_release.NoisyGradients):
    def release(self, facts):
        return Unsaid(facts=facts, clip=self.clip, noise_multiplier=self.noise_multiplier)

class HalfInRows(own_release.NoisyGradients):
    def release(self, facts):
        return Half(facts=facts, clip=self.clip, noise_multiplier=self.noise_multiplier)
'''


def test_a_method_of_ones_own_is_audited(tmp_path, monkeypatch):
    (tmp_path / "own_audit_methods.py").write_text(METHODS)
    for folder in (tmp_path, EXAMPLES):
        monkeypatch.syspath_prepend(folder)
    assert wrong(audited("own_audit_methods:Fine")) == []
    found = wrong(audited("own_audit_methods:Centred"))
    assert "dependence of an update on other users" in found
    assert "dependence of an update on other users" in wrong(audited("own_audit_methods:OnlyTheFirst"))
    assert "dependence of an update on other users" in wrong(audited("own_audit_methods:CentredLater"))


def test_noise_that_a_release_of_ones_own_draws_in_its_rows_is_audited(tmp_path, monkeypatch):
    (tmp_path / "own_audit_methods.py").write_text(METHODS)
    for folder in (tmp_path, EXAMPLES):
        monkeypatch.syspath_prepend(folder)
    assert wrong(audited("own_release:NoisyGradients")) == []
    assert "anyone who sees the released models" in wrong(audited("own_audit_methods:HalfInRows"))
    with pytest.raises(uldp.ConfigError, match="does not say how much"):
        audited("own_audit_methods:DrawnInRows")


# --- bad input --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--method", "fedavg"], "claims no privacy"),
        (["--method", "uldp-avg", "--set", "privacy.noise_multiplier=0"], "nothing to refute"),
        (["--method", "uldp-avg", "--epsilon", "4", "--canaries", "50"], "too few for any verdict: below 256"),
        (["--method", "uldp-avg", "--epsilon", "4", "--canaries", "0"], "--canaries"),
        (["--method", "record-dp", "--epsilon", "4", "--canaries", "50"], "too few for any verdict: below 256"),
        (["--method", "ldp-fl", "--set", "method.epsilon_weight=0.5", "--canaries", "9"], "too few for any verdict"),
        (["--epsilon", "4", "--set", "aggregation.name=lattice", "--canaries", "99"], "below 100"),
        (["--method", "uldp-avg", "--epsilon", "4", "--adversary", "the sever"], "no such adversary"),
        (["--method", "uldp-avg", "--epsilon", "4", "--out", "a.toml"], "no kind of picture"),
        (["--method", "uldp-avg", "--epsilon", "4", "--audit-seed", "-1"], "--audit-seed"),
    ],
)
def test_bad_input_is_refused_in_one_sentence(arguments, said):
    result = runner.invoke(app, ["audit", "--dataset", "synthetic", "--rounds", "2", *arguments])
    assert result.exit_code == 2
    assert said in result.output and "Traceback" not in result.output


def test_under_lattice_silos_that_collude_are_audited_too():
    """They know their own shares of the noise."""
    made = uldp.audit("synthetic", method="uldp-avg-w", aggregation="lattice", rounds=2, epsilon=4.0, options=FEW)
    assert wrong(made) == []
    assert {found.verdict for found in made.found} == {"not refuted"}
    shares = {found.exposure.who: found.epsilon / found.exposure.epsilon for found in made.found}
    assert "two colluding silos" in shares and min(shares.values()) > 0.7
    assert "noise of every silo's share" in [check.name for check in made.checks]


SMALL_KEY = {**FEW, "data.silos": 3, "aggregation.key_bits": 512, "aggregation.max_records": 60}


def test_under_paillier_every_adversary_is_audited():
    """Silos know their own shares of the noise, and dithers round a total by a unit or so."""
    what = {"aggregation": "paillier", "rounds": 1, "epsilon": 4.0, "options": SMALL_KEY}
    made = uldp.audit("synthetic", method="uldp-avg-w", **what)
    assert wrong(made) == []
    assert {found.verdict for found in made.found} == {"not refuted"}
    assert {"one silo", "the server and one silo"} <= {found.exposure.who for found in made.found}
    checks = [check.name for check in made.checks]
    assert "noise of every silo's share" in checks and "updates of other users, with canaries and without" in checks


def test_an_adversary_whose_view_cannot_be_had_is_said(monkeypatch):
    """An aggregation of one's own may never have a silo's noised sum as such."""
    release = ModularSumAccumulator.release
    closed = lambda self, secrets: replace(release(self, secrets), noised_sum=b"")  # noqa: E731
    monkeypatch.setattr(ModularSumAccumulator, "release", closed)
    made = audited(rounds=1)
    assert wrong(made) == []
    assert {found.exposure.who: found.verdict for found in made.found}["one silo"] == "not audited"
    with pytest.raises(uldp.ConfigError, match="cannot be taken off"):
        audited(rounds=1, adversary="one silo")


# --- the command, and real records ------------------------------------------------------------------------------------


def test_the_command_prints_draws_and_says_by_its_exit_code(tmp_path, monkeypatch):
    picture = tmp_path / "curve.png"
    arguments = ["audit", "--dataset", "synthetic", "--method", "uldp-avg", "--epsilon", "4", "--rounds", "2"]
    arguments += ["--canaries", str(CANARIES)]
    result = runner.invoke(app, [*arguments, "--out", str(picture)])
    assert result.exit_code == 0, result.output
    assert "cannot prove" in result.output and picture.stat().st_size > 1000
    half_the_noise(monkeypatch)
    result = runner.invoke(app, [*arguments, "--json"])
    assert result.exit_code == 1
    made = json.loads(result.stdout)
    assert made["verdict"] == "REFUTED"
    assert {row["who"] for row in made["adversaries"]} > {"the server", "one silo"}
    assert all(bound["assumes"] for row in made["adversaries"] for bound in row["bounds"])


def test_a_verdict_does_not_depend_on_whether_there_is_a_picture(tmp_path, monkeypatch):
    """Where no trade-off curve was measured there is none, and what was found is told all the same."""
    monkeypatch.chdir(tmp_path)
    arguments = ["audit", "--dataset", "synthetic", "--method", "uldp-naive", "--epsilon", "4", "--rounds", "2"]
    result = runner.invoke(app, [*arguments, "--out", "curve.png", "--json"])
    assert result.exit_code == 0 and json.loads(result.stdout)["verdict"] == "not refuted"
    assert "there is no picture" in result.stderr and not (tmp_path / "curve.png").exists()


def real_audit(folder, name="audit", **what):
    what = {"epsilon": 4.0, "rounds": 2, "seed": 3, **what}
    return uldp.audit("synthetic", method="uldp-avg", canaries=CANARIES, directory=folder / name, **what)


@pytest.mark.usefixtures("runs_in_process")
def test_an_audit_on_real_records_is_a_run_and_within_the_budget(tmp_path):
    made = real_audit(tmp_path)
    assert made.real and not made.refuted
    ledger = (tmp_path / "audit" / "ledger.jsonl").read_text().splitlines()
    assert [json.loads(line)["round"] for line in ledger] == [1, 2]
    counted = runner.invoke(app, ["total", str(tmp_path)])
    assert "audit" in counted.output
    with pytest.raises(uldp.BudgetExhausted, match="nothing was released"):
        real_audit(tmp_path, "again")
    assert not (tmp_path / "again").exists()
    arguments = ["audit", "--dataset", "synthetic", "--method", "uldp-avg", "--canaries", str(CANARIES)]
    arguments += ["--epsilon", "4", "--rounds", "2", "--set", "run.seed=3", "--records", str(tmp_path / "again")]
    refused = runner.invoke(app, arguments)
    assert refused.exit_code == 2 and "nothing was released" in refused.output
    with pytest.raises(uldp.ConfigError, match="budget"):
        uldp.audit("synthetic", method="uldp-avg", noise_multiplier=5.0, rounds=2, directory=tmp_path / "other")


def test_a_live_federation_is_not_audited_on_its_records(tmp_path):
    from uldp.experiment.config import Experiment

    keys = {f"silo-{index}": f"{index:064x}" for index in (1, 2)}
    experiment = Experiment.from_tree(
        {
            "data": {"dataset": "synthetic", "users": 20, "silos": 2},
            "method": {"name": "uldp-avg", "rounds": 2},
            "privacy": {"epsilon": 4.0},
            "aggregation": {"name": "masked", "identities": keys},
        }
    )
    with pytest.raises(uldp.ConfigError, match="live federation"):
        uldp.audit(experiment, directory=tmp_path / "run")
