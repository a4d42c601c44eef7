"""Both sides of the protocol's benchmark compute the weighted sum, and a case says what it measured."""

from __future__ import annotations

import json
import sys
import time
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from typer.testing import CliRunner

from uldp.aggregation.ratios import weights_in_the_clear
from uldp.bench.protocol import (
    COMPARISONS,
    LATTICE_SHAPES,
    PACKED,
    ROUND,
    SETUP,
    SHAPES,
    TRANSFERS,
    Bench,
    ProtocolPhase,
    Run,
    Shape,
    run_cases,
)
from uldp.bench.published import PublishedProtocol, full_run, sampled_run
from uldp.cli.app import app
from uldp.crypto.randomisers import ResidueTable
from uldp.errors import ConfigError
from uldp.protocol import messages as m
from uldp.vectors import from_residues

TINY = replace(Shape(dimension=5, users=4).with_small_key(), noise_multiplier=0.0)
CONTRACT = {"name", "ours", "baseline", "ratio", "unit", "target", "met", "note", "slots"}


def call(*arguments):
    return CliRunner().invoke(app, ["bench", "protocol", *arguments])


def test_simple_code_gives_the_exact_weighted_sum():
    run = Run(TINY)
    naive = PublishedProtocol(TINY.key_bits, run.counts, TINY.max_records)
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
    asked = m.UpdateRequest(1, m.pack(np.zeros(TINY.dimension)), b"")
    total = from_residues(run.server.total({name: run.update(s, asked) for s, name in enumerate(run.plan.silos)}))
    weights = weights_in_the_clear(run.plan.aggregation.ratios(run.plan.release), run.counts)
    expected = sum(w @ rows for w, rows in zip(weights, run.integers, strict=True))
    assert np.abs(total - expected).max() <= 1.5  # the dither rounds up or down


def test_half_of_the_simple_codes_exponents_have_full_size():
    run = Run(Shape(16, 10).with_small_key())
    n = PublishedProtocol(run.shape.key_bits, run.counts, run.shape.max_records).public.n
    large = [int(delta) % n > n >> 1 for delta in run.integers.ravel()]
    assert 0.4 < np.mean(large) < 0.6


def test_an_extrapolated_run_has_the_phases_of_a_whole_one():
    run = Run(TINY)
    naive = PublishedProtocol(TINY.key_bits, run.counts, TINY.max_records)
    whole = full_run(naive, run.integers, run.naive_noise)
    sampled = sampled_run(naive, run.integers, run.naive_noise, samples=30)
    assert whole.keys() == sampled.keys()
    assert all(seconds > 0 for seconds in (whole | sampled).values())


def test_the_command_prints_cases():
    cases = json.loads(call("--quick", "--json").stdout)
    assert [case["name"] for case in cases] == ["d=16 U=10", "masks"]
    for case in cases:
        assert case.keys() >= CONTRACT
    first, masks = cases
    assert first["ratio"] == pytest.approx(first["baseline"] / first["ours"])
    assert masks["ratio"] == pytest.approx(masks["ours"] / masks["baseline"])
    assert [phase["name"] for phase in first["phases"]] == [*SETUP, *ROUND]
    rounds = [phase for phase in first["phases"] if phase["when"] == "round"]
    assert first["ours"] == pytest.approx(sum(phase["ours"] for phase in rounds))
    assert first["baseline"] == pytest.approx(sum(phase["baseline"] for phase in rounds))
    assert first["slots"] == 1 and rounds[0]["from_silo"] > 16 * first["key_bits"] // 4
    assert first["extrapolated"] == [] and "in full" in first["note"] and "insecure" in first["note"]


def test_the_tables_show_what_is_extrapolated():
    shown = call("--quick", "--case", "d=32 U=20").stdout
    assert "~ extrapolated" in shown and "randomiser table" in shown


def test_the_table_of_randomisers_is_measured_apart_and_made_before_the_round(monkeypatch):
    build, builds = ResidueTable.build, []

    def slowly(*arguments):
        builds.append(arguments)
        time.sleep(0.5)
        return build(*arguments)

    monkeypatch.setattr(ResidueTable, "build", slowly)
    Bench()  # forgets the table of other tests, which have the same key
    run, second = (Run(replace(TINY, rounds=1000)) for _ in range(2))
    first = run.setup()
    assert run.uses_table and first[ProtocolPhase.TABLE] > 0.45 and 0 < first["histogram"] < 0.45
    assert second.setup()[ProtocolPhase.TABLE] < 0.45  # it is there
    run.round(1)
    assert len(builds) == 1
    without = Run(replace(TINY, rounds=1))
    assert without.setup()[ProtocolPhase.TABLE] == 0 and not without.uses_table


def test_every_case_counts_the_table_for_each_silo():
    bench = Bench(quick=True)
    first, second = (
        _setup_phases(bench.round_case(Shape(5, users, rounds=1000)))[ProtocolPhase.TABLE] for users in (2, 3)
    )
    assert bench.table > 0 and first == second == 3 * bench.table
    assert _setup_phases(bench.round_case(Shape(5, 2, rounds=1)))[ProtocolPhase.TABLE] == 0


def _setup_phases(case):
    return {phase["name"]: phase["ours"] for phase in case["phases"] if phase["when"] == "setup"}


def test_two_workers_are_measured_against_one():
    case = Bench(quick=True).two_cores(Shape(16, 4))
    assert case["name"] == "two cores, d=16 U=4" and case["ratio"] == pytest.approx(case["baseline"] / case["ours"])


def test_packed_ciphertexts_are_measured_against_single_ones():
    bench, shape = Bench(quick=True), Shape(dimension=40, users=3, max_records=30, pseudo_count=1)
    decryption, size, whole = (bench.compare_packing(shape, kind) for kind in COMPARISONS)
    assert [case["name"] for case in (decryption, size, whole)] == [
        f"packed {what}, N_max=30 d=40 U=3" for what in ("decryption", "bytes", "round")
    ]
    for case in (decryption, size, whole):
        assert case.keys() >= CONTRACT and case["target"] is case["met"] is None  # a small key proves nothing
        assert case["ratio"] == pytest.approx(case["baseline"] / case["ours"])
        assert case["slots"] > case["baseline_slots"] == 1
    ciphertexts = -(-40 // size["slots"])
    assert size["baseline"] - size["ours"] == pytest.approx((40 - ciphertexts) * 128, abs=8)
    assert decryption["ours"] == pytest.approx(1000 * whole["ours_parts"]["server"] / 40)
    assert whole["ours"] == pytest.approx(sum(whole["ours_parts"].values()))
    assert len(bench.packings) == 1


def test_packed_and_single_ciphertexts_give_the_same_weighted_sum():
    totals = []
    for slots in (None, 1):
        run = Run(replace(TINY, pseudo_count=1, slots=slots))
        run.setup()
        asked = m.UpdateRequest(1, m.pack(np.zeros(TINY.dimension)), b"")
        totals.append(from_residues(run.server.total({name: run.update(s, asked) for s, name in enumerate(run.silos)})))
        assert (run.slots > 1) == (slots is None)
    assert np.abs(totals[0] - totals[1]).max() <= 3  # dithers


def test_a_transfer_is_measured_without_its_encryptions():
    run = Run(replace(Shape(5, 4, choices=3), rounds=1).with_small_key())
    run.setup()
    times = run.transfer(1)
    assert (
        times.keys() == {ProtocolPhase.AT_SERVER, ProtocolPhase.AT_SILO, ProtocolPhase.CHECKS, ProtocolPhase.ENCRYPTION}
        and min(times.values()) > 0
    )
    case = Bench(quick=True).transfer(Shape(5, 4, rounds=1, choices=3))
    assert case.keys() >= CONTRACT and case["name"] == "oblivious transfer, P=3 U=4" and case["unit"] == "ms per user"
    assert case["ratio"] == pytest.approx(case["baseline"] / case["ours"])
    assert case["ours"] == pytest.approx(sum(case["ours_parts"].values()))


def test_the_command_prints_cases_without_phases():
    shown = call("--quick", "--case", "oblivious transfer, P=10 U=100").stdout
    assert "ms per user" in shown and "encryption by CRT" in shown


def test_main_cases_hold_one_parameter_in_a_ciphertext_and_packed_ones_many():
    assert all(Run(shape).slots == 1 for shape in (SHAPES[0], SHAPES[-2], replace(PACKED, slots=1)))
    assert Run(PACKED).slots > 10


def test_without_phe_the_remedy_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "phe", None)
    result = call("--quick")
    assert result.exit_code == 2
    assert "pip install 'uldp[bench]'" in result.output


def test_bad_options_are_refused():
    with pytest.raises(ConfigError, match="d=16 U=10; d=16 U=20"):
        run_cases(["d=3"])
    with pytest.raises(ConfigError, match="a whole number from 1 to"):
        run_cases(workers=0)


def test_names_are_unique_and_all_targets_stand():
    assert len({shape.name for shape in SHAPES}) == len(SHAPES)
    assert len(Bench().cases()) == len(SHAPES) + len(COMPARISONS) + len(TRANSFERS) + len(LATTICE_SHAPES) + 2
    assert {shape.name: shape.target.text for shape in SHAPES if shape.target} == {
        "d=16 U=20": "a round within 2 s",
        "d=107 U=40": "45x",
        "d=4000 U=100": "150x",
    }
    assert [comparison.target and comparison.target.text for comparison in COMPARISONS.values()] == [
        "8x cheaper",
        "10x fewer",
        None,
    ]
    assert [shape.target and shape.target.text for shape in TRANSFERS] == ["under 1 ms", None]
    assert {shape.name: shape.target.text for shape in LATTICE_SHAPES if shape.target} == {
        "lattice d=16 U=10": "no slower",
        "lattice d=107 U=100": "a silo within 20 ms",
        "lattice d=107 U=1000": "a silo within 60 ms",
        "lattice d=4000 U=100": "1000x",
        "lattice d=5012 U=1000": "a silo within 150 ms",
        "lattice d=1000000 U=1000": "a silo within 10 s",
    }


def test_lattice_is_measured_beside_the_others():
    (case,) = json.loads(call("--quick", "--json", "--case", "lattice d=16 U=10").stdout)
    assert case.keys() >= CONTRACT and case["ratio"] == pytest.approx(case["baseline"] / case["ours"])
    assert case["ours"] == pytest.approx(case["silo"] + case["server"])
    assert 0 < case["silo_products"] < case["silo"]
    assert [exchange["request"] for exchange in case["exchanges"]][-2:] == ["LookUp", "RingWeights"]
    assert case["update_bytes"] == 12 * (16 + 4096)
    # The server's key, the encrypted weights of all ten users in one ciphertext, and five look-up tables.
    assert case["setup_to_silo"] > 2 * 12 * 4096 + 5 * 12 * 2001 and "extrapolated from d=16 U=10" in case["note"]
    shown = call("--quick", "--case", "lattice d=16 U=10").stdout
    assert "lattice: a round, the setup, bytes and memory" in shown and "49,344" in shown
