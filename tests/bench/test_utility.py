"""``uldp bench utility``: cells are computed once, tables and claims follow from them."""

import json
import math

import numpy as np
import pytest
from typer.testing import CliRunner

from uldp.bench import utility, utility_claims, utility_models
from uldp.bench.utility import Cell, CellResult, run_cell
from uldp.bench.utility_claims import claims, divergence, rows
from uldp.bench.utility_sets import FAMILIES, SETS
from uldp.cli.app import app
from uldp.rng import Streams


def outcome(contender, skill, dataset="iris", epsilon=1.0, rho=0.01, seed=0):
    return CellResult(Cell(dataset, contender, epsilon, seed), skill, rho, 15, "")


def outcomes(auto, previous=0.5, linear=0.9, **more):
    return [
        outcome("pooled linear", linear, epsilon=math.inf),
        outcome("previous", previous, **more),
        outcome("auto", auto, **more),
    ]


def test_ranges_are_not_the_data_s_minimum_and_maximum():
    for one in SETS:
        if one.files:
            continue
        federation = one.make(Streams.from_seed(0))
        features = np.concatenate([silo.features for silo in federation])
        assert abs(features).max() <= 1
        edges = (features.min(0) > -1) | (features.max(0) < 1)
        assert edges.mean() > 0.2, one.name  # pixels and yes or no fill their ranges
        assert len(federation.silos) > 1 and federation.users < len(features)


def test_there_are_ten_sets_and_some_are_kept_out_of_the_search():
    assert len(SETS) >= 10 and sum(not one.searched for one in SETS) >= 10
    people = [family.people for family in FAMILIES.values()]
    assert min(people) <= 50 and max(people) >= 50_000


def test_a_cell_is_computed_once_and_again_if_its_settings_changed(tmp_path, monkeypatch):
    cell = Cell("balanced-50", "auto", 3.0, 0)
    first = run_cell(tmp_path, cell)
    assert math.isfinite(first.skill) and 0 < first.rho < 0.2
    path = tmp_path / cell.file
    stored = json.loads(path.read_text())
    path.write_text(json.dumps(stored | {"skill": 0.123}))
    assert run_cell(tmp_path, cell).skill == 0.123
    path.write_text(json.dumps(stored | {"skill": 0.123, "settings": "others"}))
    assert run_cell(tmp_path, cell) == first


def test_a_claim_names_the_set_that_breaks_it():
    held = {claim.text: claim for claim in claims(rows(outcomes(0.88)))}
    broken = {claim.text: claim for claim in claims(rows(outcomes(0.8)))}
    text = "epsilon 1, rho <= 0.05: behind the pooled linear model by at most 0.05"
    assert held[text].holds and not broken[text].holds
    assert "0.100: iris at epsilon 1" in broken[text].detail
    unmeasured = "epsilon 3, rho <= 0.05: behind the pooled linear model by at most 0.03"
    assert held[unmeasured].holds is None


def test_a_claim_about_quiet_sets_does_not_count_noisy_ones():
    noisy = claims(rows(outcomes(-0.5, rho=0.8)))
    below = next(claim for claim in noisy if claim.text.startswith("rho <= 0.5: below the base rate"))
    assert below.holds is None


def test_regret_is_to_the_best_of_all_private_settings():
    row = rows([*outcomes(0.3), outcome("tuned 40 1", 0.7)])[0]
    assert row.skills["best tuned"] == 0.7 and row.regret == pytest.approx(0.4)


def test_a_loss_ten_times_the_base_rate_s_is_a_divergence_unless_training_began_above_it(monkeypatch):
    monkeypatch.setattr(utility_claims, "start_skill", lambda cell: -100.0 if cell.seed == 3 else 0.0)
    fine = [outcome("auto", -3.0, "random"), outcome("auto", 0.2, "random", seed=1)]
    assert divergence(fine).holds
    assert not divergence([*fine, outcome("auto", -20.0, "random", seed=2)]).holds
    assert not divergence([outcome("auto", -math.inf, "random")]).holds
    found = divergence([*fine, outcome("auto", -20.0, "random", seed=3)])
    assert found.holds and "0 of 3 diverged, 1 end above 10 times that of the base rate" in found.detail


def test_a_small_run_prints_table_claims_and_picture(tmp_path, monkeypatch):
    monkeypatch.setattr(utility_models, "CONTENDERS", (utility_models.PREVIOUS, utility_models.AUTO))
    arguments = ["bench", "utility", "--quick", "--case", "balanced-50", "--out", str(tmp_path / "out")]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    assert "balanced-50" in result.output and "holds" in result.output
    assert (tmp_path / "out" / "utility.png").stat().st_size > 1000
    again = CliRunner().invoke(app, [*arguments, "--json"])
    assert [row["dataset"] for row in json.loads(again.stdout)["rows"]] == ["balanced-50"]


def test_an_unknown_set_is_refused(tmp_path):
    result = CliRunner().invoke(app, ["bench", "utility", "--case", "nothing", "--out", str(tmp_path)])
    assert result.exit_code == 2 and "unknown case 'nothing'" in result.output


def test_no_random_federation_of_a_sample_diverges(tmp_path):
    found = [run_cell(tmp_path, Cell("random", "auto", utility.EPSILONS[seed % 3], seed)) for seed in (1, 4, 6)]
    assert divergence(found).holds
