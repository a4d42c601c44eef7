"""Both sides of the protocol's benchmark compute the weighted sum, and a case says what it measured."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from typer.testing import CliRunner

from uldp.aggregation.paillier import _residue_table
from uldp.bench.protocol import ROUND, SETUP, SHAPES, Bench, Run, Shape, run_cases
from uldp.bench.published import Published, full_run, sampled_run
from uldp.cli.app import app
from uldp.errors import ConfigError
from uldp.methods.weights import record_weights
from uldp.protocol import messages as m
from uldp.vectors import from_words

TINY = replace(Shape(dimension=5, users=4).with_small_key(), noise_multiplier=0.0)


def call(*arguments):
    return CliRunner().invoke(app, ["bench", "protocol", *arguments])


def test_simple_code_gives_the_exact_weighted_sum():
    run = Run(TINY)
    naive = Published(TINY.key_bits, run.counts, TINY.max_records)
    noise = np.random.default_rng(0).integers(-1000, 1000, (TINY.silos, TINY.dimension))
    total = naive.total([naive.silo(s, run.integers[s], noise[s]) for s in range(TINY.silos)])
    counts, rows = run.counts.tolist(), run.integers.tolist()
    sums = run.counts.sum(axis=0).tolist()
    for j in range(TINY.dimension):
        exact = sum(
            Fraction(rows[s][u][j] * counts[s][u], sums[u]) for s in range(TINY.silos) for u in range(TINY.users)
        )
        assert Fraction(total[j], naive.multiple) == exact + int(noise[:, j].sum())


def test_ours_gives_the_weighted_sum():
    run = Run(TINY)
    run.setup()
    asked = m.AskUpdate(1, m.pack(np.zeros(TINY.dimension)), b"")
    total = from_words(run.server.total({name: run.release(s, asked) for s, name in enumerate(run.plan.silos)}))
    weights = [record_weights(counts, run.counts.sum(axis=0)) for counts in run.counts]
    expected = sum(w @ rows for w, rows in zip(weights, run.integers, strict=True))
    assert np.abs(total - expected).max() <= 1.5  # the dither rounds up or down


def test_half_of_the_simple_codes_exponents_have_full_size():
    run = Run(Shape(16, 10).with_small_key())
    n = Published(run.shape.key_bits, run.counts, run.shape.max_records).public.n
    large = [int(delta) % n > n >> 1 for delta in run.integers.ravel()]
    assert 0.4 < np.mean(large) < 0.6


def test_an_extrapolated_run_has_the_phases_of_a_whole_one():
    run = Run(TINY)
    naive = Published(TINY.key_bits, run.counts, TINY.max_records)
    whole = full_run(naive, run.integers, run.naive_noise)
    sampled = sampled_run(naive, run.integers, run.naive_noise, samples=30)
    assert whole.keys() == sampled.keys()
    assert all(seconds > 0 for seconds in (whole | sampled).values())


def test_the_command_prints_cases():
    cases = json.loads(call("--quick", "--json").stdout)
    assert [case["name"] for case in cases] == ["d=16 U=10", "masks"]
    for case in cases:
        assert {"name", "ours", "baseline", "ratio", "unit", "target", "met", "note"} <= case.keys()
    first, masks = cases
    assert first["ratio"] == pytest.approx(first["baseline"] / first["ours"])
    assert masks["ratio"] == pytest.approx(masks["ours"] / masks["baseline"])
    assert [phase["name"] for phase in first["phases"]] == [*SETUP, *ROUND]
    rounds = [phase for phase in first["phases"] if phase["when"] == "round"]
    assert first["ours"] == pytest.approx(sum(phase["ours"] for phase in rounds))
    assert first["baseline"] == pytest.approx(sum(phase["baseline"] for phase in rounds))
    assert rounds[0]["from_silo"] > 16 * first["key_bits"] // 4
    assert first["extrapolated"] == [] and "in full" in first["note"] and "insecure" in first["note"]


def test_the_tables_show_what_is_extrapolated():
    shown = call("--quick", "--case", "d=32 U=20").stdout
    assert "~ extrapolated" in shown and "randomiser table" in shown


def test_the_table_of_randomisers_is_made_before_the_round():
    bench = Bench(quick=True)
    with_table = next(shape for shape in map(bench.fitted, SHAPES) if Run(shape).uses_table)
    run = Run(with_table)
    run.setup()
    _residue_table.cache_clear()  # other tests have the same key
    assert bench.table(run) > 0
    misses = _residue_table.cache_info().misses
    run.round(1)
    assert _residue_table.cache_info().misses == misses
    assert bench.table(Run(replace(with_table, rounds=1))) == 0


def test_two_workers_are_measured_against_one():
    case = Bench(quick=True).two_cores(Shape(16, 4))
    assert case["name"] == "two cores, d=16 U=4" and case["ratio"] == pytest.approx(case["baseline"] / case["ours"])


def test_without_phe_the_remedy_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "phe", None)
    result = call("--quick")
    assert result.exit_code == 2
    assert "pip install 'uldp[bench]'" in result.output


def test_bad_options_are_refused():
    with pytest.raises(ConfigError, match="d=16 U=10; d=16 U=20"):
        run_cases(["d=3"])
    with pytest.raises(ConfigError, match="at least 1"):
        run_cases(workers=0)


def test_names_are_unique_and_all_targets_stand():
    assert len({shape.name for shape in SHAPES}) == len(SHAPES)
    assert {shape.name: shape.target.text for shape in SHAPES if shape.target} == {
        "d=16 U=20": "a round within 2 s",
        "d=107 U=40": "45x",
        "d=4000 U=100": "150x",
    }
