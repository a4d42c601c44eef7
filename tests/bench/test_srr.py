"""Both loops of the benchmark have the law of the mechanism, and a case says what it measured."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from typer.testing import CliRunner

from uldp.bench import srr as bench
from uldp.bench.srr import BYTES, LOOP, ROWS, WEIGHTS, SrrSize, case_names, run_cases, run_loop, run_rows
from uldp.cli.app import app
from uldp.errors import ConfigError
from uldp.mechanisms.staircase import StaircaseResponse

TINY = SrrSize(weights=2000, loop=100, rows=20, repeats=1)


@pytest.mark.parametrize("loop", [run_loop, run_rows])
def test_the_loops_draw_from_the_same_law(loop):
    mechanism = StaircaseResponse(epsilon=3.0, radius=0.0015, groups=4, delta=3.0)
    for weight in (-0.0015, 0.0003, 7.0):
        outputs = np.array(loop(mechanism, [weight] * 5000))
        mean, variance = mechanism.mean(np.array([weight]))[0], mechanism.variance(np.array([weight]))[0]
        assert abs(outputs.mean() - mean) < 6 * np.sqrt(variance / 5000)
        assert outputs.var() == pytest.approx(variance, rel=0.15)
        assert np.all(np.isfinite(mechanism.log_likelihood(outputs, np.array([weight]))))


def test_cases_carry_what_the_command_prints():
    cases = run_cases(size=TINY)
    assert (
        [case["name"] for case in cases]
        == case_names()
        == [LOOP, ROWS, BYTES, "two-point", "grr", "piecewise", "hybrid"]
    )
    for case in cases:
        assert {"name", "ours", "baseline", "ratio", "unit", "target", "met", "note"} <= case.keys()
        slower = case["baseline"] / case["ours"]
        assert case["ratio"] == pytest.approx(slower if case["name"] in (LOOP, ROWS) else 1 / slower)
        assert case["ns_per_weight"] == pytest.approx(1e9 * case["ours"] / 2000)
    assert "timed on 100 weights and scaled" in cases[0]["note"] and cases[0]["extrapolated"] == ["baseline"]
    assert cases[2]["target"] == "at most 30x" and cases[3]["met"] is None


def test_the_command_prints_json_or_a_table(monkeypatch):
    monkeypatch.setattr(bench, "SrrSize", lambda: replace(TINY))
    call = ["bench", "srr", "--case", BYTES, "--case", LOOP]
    printed = json.loads(CliRunner().invoke(app, [*call, "--json"]).stdout)
    assert [case["name"] for case in printed] == [LOOP, BYTES]
    shown = CliRunner().invoke(app, call).stdout
    assert "at most 30x" in shown and "2,000 weights" in shown


def test_the_full_size_is_that_of_the_paper():
    assert SrrSize().weights == WEIGHTS == 5_611_878


def test_unknown_cases_are_refused():
    with pytest.raises(ConfigError, match="srr, random bytes; two-point"):
        run_cases(["laplace"])
