"""One planted error with many seeds, in the process that has the error in its package.

``python -m tests.planted.seeds NAME SEED...`` prints a line of JSON for each seed: what speaks against the package.
"""

from __future__ import annotations

import importlib
import json
import os
import random
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import pytest
from tests.planted.errors import ERRORS, Planted

from uldp.audits.audit import audit_of, size_of
from uldp.errors import UldpError
from uldp.library.arguments import CallArguments
from uldp.library.auditing import public_shape
from uldp.rng import Secrets

EPSILON = 4.0
CANARIES = 1024
ENCRYPTED = 20
"""Canaries under an aggregation that multiplies ciphertexts: they cost the more, and coordinates without any show the
noise as well."""
SEEDS_APART = 1_000_003


def audited(error: Planted, seeds: Sequence[int]) -> Iterator[tuple[int, list[str]]]:
    """For each seed, the names of all that speaks against the claim: direct checks and adversaries."""
    options = {"method.rounds": 4, **error.options}
    budget = {} if "method.epsilon_weight" in options else {"epsilon": EPSILON}  # of one weight, or of the run
    prepared = public_shape(CallArguments.of("synthetic", {"method": error.method, "options": options, **budget}))
    if prepared.plan.aggregation.hides_counts:
        size = replace(size_of(prepared, None), per_run=ENCRYPTED)
    else:
        size = size_of(prepared, CANARIES)
    for seed in seeds:
        try:
            made = audit_of(prepared, size, seed=seed)
        except UldpError as refused:  # an error that stops runs is loud, but no audit has caught it
            print(f"{error.name}, seed {seed}: {refused}", file=sys.stderr)
            yield seed, []
            continue
        against = [check.name for check in made.checks if check.failed]
        yield seed, against + [found.exposure.who for found in made.found if found.refuted]


class FailedTests:
    """Collects the names of the tests that fail, as a plugin of pytest."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed and report.when == "call":
            self.names.append(report.nodeid.rpartition("/")[2].partition("[")[0])


def tested(error: Planted, seeds: Sequence[int]) -> Iterator[tuple[int, list[str]]]:
    """For each seed, the tests that fail. Each runs in a child: tests remember what they computed."""
    importlib.import_module("hypothesis")  # once, not in every child: half of what a short test takes
    for seed in seeds:
        reader, writer = os.pipe()
        if (child := os.fork()) == 0:
            os.close(reader)
            shift_seeds(seed)
            sys.stdout = sys.stderr = open(os.devnull, "w")  # noqa: SIM115
            failed = FailedTests()
            pytest.main(["-q", "-x", "-m", "not slow", "-p", "no:cacheprovider", error.test], plugins=[failed])
            os.write(writer, json.dumps(failed.names[:1]).encode())
            os._exit(0)
        os.close(writer)
        with os.fdopen(reader) as found:
            names = found.read()
        os.waitpid(child, 0)
        yield seed, json.loads(names) if names else []


def shift_seeds(seed: int) -> None:
    """Whatever a test draws from a fixed seed comes from another one; with seed 0 all is as it was."""
    if seed == 0:
        return
    generator, simulated, from_key, twister = (
        np.random.default_rng,
        Secrets.simulated_from_seed,
        Secrets.from_key,
        random.Random,
    )

    def shifted_generator(given: object = None) -> np.random.Generator:
        known = isinstance(given, int | list | tuple)
        return generator([seed, *np.ravel(given)] if known else given)

    class ShiftedTwister(twister):
        def __init__(self, given: object = None) -> None:
            super().__init__(None if given is None else f"{seed} {given}")

    np.random.default_rng = shifted_generator
    random.Random = ShiftedTwister
    Secrets.simulated_from_seed = staticmethod(lambda given: simulated(given + SEEDS_APART * seed))
    Secrets.from_key = staticmethod(
        lambda key: from_key(bytes(a ^ b for a, b in zip(key, seed.to_bytes(len(key), "little"), strict=True)))
    )


def main() -> None:
    (error,) = [one for one in ERRORS if one.name == sys.argv[1]]
    seeds = [int(seed) for seed in sys.argv[2:]]
    for seed, against in tested(error, seeds) if error.test else audited(error, seeds):
        print(json.dumps({"seed": seed, "against": against}), flush=True)


if __name__ == "__main__":
    main()
