"""The cases of ``uldp bench train`` beside the plain loop: both sides do the same work, and what is missing is said."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from uldp.bench import dp_sgd_epoch, scaling, start, train, user_round
from uldp.bench.versus import Variant, Versus, variants_note
from uldp.cli.app import app
from uldp.errors import ConfigError, RunError

ROOT = Path(__file__).parents[2]
EPOCH = dp_sgd_epoch.Epoch(records=40, batch=40, clip=0.5, noise_multiplier=0.0, dropout=0.0)
ROUND = user_round.UserRound(users=6, records_per_user=5, epochs=3, noise_multiplier=0.0, clip=0.005)


def relative(a, b):
    return np.linalg.norm(a - b) / np.linalg.norm(b)


# --- DP-SGD ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", dp_sgd_epoch.MODES)
def test_opacus_and_we_take_the_same_step(mode):
    """Without noise and dropout, with all records in the batch and a clip that binds."""
    pytest.importorskip("opacus")
    problem = dp_sgd_epoch.make_problem(EPOCH)
    ours, theirs = dp_sgd_epoch.run_ours(problem), dp_sgd_epoch.Opacus(problem, mode).run(1)
    assert relative(ours, theirs) < 1e-4
    unclipped = dp_sgd_epoch.run_ours(dp_sgd_epoch.make_problem(replace(EPOCH, clip=1e3)))
    assert relative(unclipped, theirs) > 0.1


def test_both_sides_of_dp_sgd_sample_and_add_noise_alike():
    pytest.importorskip("opacus")
    epoch = replace(EPOCH, records=100, batch=20, noise_multiplier=50.0)
    problem = dp_sgd_epoch.make_problem(epoch)
    # Noise of 5 steps outweighs gradients: each coordinate has deviation lr / B sigma C sqrt(5), known to 0.5 %.
    wanted = 0.05 / 20 * 50.0 * 0.5 * np.sqrt(5)
    for change in (dp_sgd_epoch.run_ours(problem), dp_sgd_epoch.Opacus(problem, "hooks").run(epoch.steps)):
        assert change.std() == pytest.approx(wanted, rel=0.04)


def test_the_epoch_is_that_of_the_cnn():
    epoch = dp_sgd_epoch.Epoch()
    assert (epoch.records, epoch.steps, epoch.method.batch_size) == (12_000, 47, 255)
    assert epoch.method.noise_multiplier > 0 and epoch.method.clip == 1
    assert dp_sgd_epoch.make_problem(EPOCH).learner.dimension == 21_840


def test_without_opacus_ours_is_measured_and_the_note_says_how_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "opacus", None)
    case = dp_sgd_epoch.run_case(epoch=EPOCH)
    assert case["ours"] > 0 and case["baseline"] is None and case["ratio"] is None
    assert not case["failed_variants"]
    assert case["note"].endswith("Opacus is not installed; install it with: pip install 'uldp[bench]'")


# --- a user-level round ------------------------------------------------------------------------------------------


@pytest.mark.skipif(not user_round.PYTHON.exists(), reason="make bench-pfl")
@pytest.mark.parametrize("workers", [1, 2])
def test_pfl_and_we_take_the_same_step(workers):
    """Without noise, with a clip that binds, and users whose records are one batch: their order does not matter."""
    problem = user_round.make_problem(ROUND)
    ours = user_round.run_ours(problem) - problem.x
    _, model = user_round.run_pfl(problem, ROUND.users, workers=workers)
    assert relative(ours, model - problem.x) < 1e-3
    unclipped = user_round.make_problem(replace(ROUND, clip=1e3))
    assert relative(user_round.run_ours(unclipped) - problem.x, model - problem.x) > 0.1


def test_the_round_is_that_of_the_mlp():
    work = user_round.UserRound()
    assert work.users * work.records_per_user == 22_000 and work.epochs == 30 and work.noise_multiplier > 0
    assert user_round.make_problem(ROUND).learner.dimension == 5012


def test_without_pfl_ours_is_measured_and_the_note_says_how_to_install_it(monkeypatch, tmp_path):
    monkeypatch.setattr(user_round, "PYTHON", tmp_path / "python")
    case = user_round.run_case(work=ROUND)
    assert case["ours"] > 0 and case["baseline"] is None
    assert case["note"].endswith("pfl is not installed; install it with: make bench-pfl")


def test_a_pfl_that_fails_gives_one_sentence(monkeypatch, tmp_path):
    broken = tmp_path / "python"
    broken.write_text("#!/bin/sh\necho 'Traceback' >&2\necho 'ModuleNotFoundError: pfl' >&2\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setattr(user_round, "PYTHON", broken)
    with pytest.raises(
        RunError, match=r"a process failed \(ModuleNotFoundError: pfl\); remove .venv-pfl and install .* make bench-pfl"
    ):
        user_round.run_pfl(user_round.make_problem(ROUND), 2)


def test_the_environment_of_pfl_has_our_versions_but_for_what_pfl_forbids():
    def pins(name):
        lines = (ROOT / name).read_text().splitlines()
        return dict(line.split("==") for line in lines if line and not line.startswith("#"))

    ours, theirs = pins("constraints.txt"), pins("constraints-pfl.txt")
    differ = {name for name in theirs if name in ours and theirs[name] != ours[name]}
    assert differ == {"absl-py", "dp-accounting"}
    assert {"torch", "numpy"} <= theirs.keys() & ours.keys() and theirs["pfl"].startswith("0.6.")


# --- variants ------------------------------------------------------------------------------------------------------


def test_the_fastest_variant_is_the_baseline_and_one_that_fails_is_named():
    calls = []

    def variant(name, seconds):
        def run(part):
            calls.append((name, part))
            return part * seconds

        return Variant(name, run)

    def broken(part):
        raise NotImplementedError("no such layer\nand more")

    variants = [variant("slow", 8.0), variant("medium", 3.0), variant("fast", 2.0), Variant("broken", broken)]
    versus = Versus("x", lambda: None, 1e6, 1, variants)
    case = versus.run(lambda text: None)
    assert case["baseline"] == 2.0 and case["baseline_variant"] == "fast"
    trials, whole = [("slow", 0.25), ("medium", 0.25), ("fast", 0.25)], [("medium", 1.0), ("fast", 1.0)]
    assert calls == trials + 2 * whole
    failed = "broken does not run (NotImplementedError: no such layer)"
    note = f"the fastest variant is fast (medium 3 s, slow about 8 s, {failed})"
    assert variants_note(case) == note


def test_a_library_of_which_no_variant_runs_is_no_baseline():
    def broken(part):
        raise RuntimeError("no")

    case = Versus("x", lambda: None, 1e6, 1, [Variant("only", broken)]).run(lambda text: None)
    assert case["baseline"] is None
    assert variants_note(case) == "no variant runs (only does not run (RuntimeError: no))"


# --- start and scaling ---------------------------------------------------------------------------------------------


def test_cold_and_warm_use_one_folder_that_was_empty(monkeypatch):
    seen = []

    def fake(folder, *what):
        seen.append((folder, len(list(Path(folder).iterdir()))))
        (Path(folder) / "kernels").touch()
        if what:
            return {"import_uldp": 0.1, "other_imports": 2.0, "train": 10.0 - len(seen)}
        return {"total": 10.0 - len(seen), "torch": 1.0, "numba": 0.5, "uldp": 0.2, "kernels": 5.0}

    monkeypatch.setattr(start, "start", fake)
    case = start.run_case()
    assert [entries for _, entries in seen] == [0, 1, 1, 1, 1, 1, 1] and len({folder for folder, _ in seen}) == 1
    assert case["cold"]["total"] == 9.0 and case["warm"]["total"] == 6.0 and case["library"]["train"] == 3.0


def test_a_process_that_cannot_start_gives_one_sentence(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(RunError, match="start: a process failed"):
        start.start(str(tmp_path))


def test_scaling_changes_one_setting_at_a_time_and_counts_steps():
    base = scaling.ScalingPoint(users=3, records=2, width=4)
    case = scaling.run_case(base=base, series=(("users", (2, 3)), ("records", (2, 65)), ("width", (4,))), repeats=1)
    points = case["points"]
    assert [(p["setting"], p["value"]) for p in points[:5]] == [
        ("users", 2), ("users", 3), ("records", 2), ("records", 65), ("width", 4),
    ]  # fmt: skip
    assert {p["setting"] for p in points[5:]} == {"threads"} and points[5]["value"] == 1
    steps = [round(1e6 * p["seconds"] / p["us_per_user_step"]) for p in points]
    assert steps[:5] == [10, 15, 15, 30, 15]
    assert case["threads_ratio"] == pytest.approx(points[5]["seconds"] / points[-1]["seconds"])


# --- the command ---------------------------------------------------------------------------------------------------


def test_all_cases_are_known_by_name():
    names = "creditcard-like; heart-like; mnist-like; dp-sgd-epoch; user-round; start; scaling"
    with pytest.raises(ConfigError, match=f"Known cases: {names}$"):
        train.run_cases(["imagenet"])


def test_the_command_prints_a_table_for_each_kind_of_case(monkeypatch):
    seconds = {"total": 3.0, "torch": 1.5, "numba": 0.5, "uldp": 0.25, "kernels": 0.125}
    seconds |= {"import_uldp": 0.0625, "other_imports": 2.5, "train": 1.25}
    monkeypatch.setattr(start, "start", lambda folder, *what: seconds)
    monkeypatch.setitem(sys.modules, "opacus", None)
    cases = {
        "dp-sgd-epoch": lambda say: dp_sgd_epoch.run_case(say, EPOCH),
        "start": start.run_case,
        "scaling": lambda say: scaling.run_case(say, scaling.ScalingPoint(2, 2, 4), (("users", (2,)),), 1),
    }
    monkeypatch.setattr(train, "CASES", cases)
    printed = json.loads(CliRunner().invoke(app, ["bench", "train", "--json"]).stdout)
    assert [case["name"] for case in printed] == list(cases)
    shown = CliRunner().invoke(app, ["bench", "train"]).stdout
    for text in ("of peak flops", "import torch", "125 ms", "a user's step", "Opacus is not installed"):
        assert text in shown
    alone = CliRunner().invoke(app, ["bench", "train", "--case", "start"]).stdout
    assert "import numba" in alone and "of peak flops" not in alone
