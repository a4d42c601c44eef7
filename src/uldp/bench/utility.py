"""``uldp bench utility``: how good a model is without tuning, against base rates, pooled models and other settings.

A cell is one set, contender, epsilon and seed. Each is written to a folder as soon as it is known, so that a run that
was stopped goes on where it was; a cell whose settings changed is computed again.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from functools import lru_cache, partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Final

from uldp._version import __version__
from uldp.bench import utility_models as models
from uldp.bench.machine import Say, check_names, silent
from uldp.bench.utility_sets import RANDOM, SETS, UtilitySet
from uldp.data.federation import Federation
from uldp.errors import ConfigError, DataError
from uldp.experiment.config import Experiment
from uldp.limits import MAX_THREADS, check_whole
from uldp.rng import Streams

EPSILONS: Final = (1.0, 3.0, 8.0)
MAX_SEEDS: Final = 5
TUNED_SEEDS: Final = 1
LARGE: Final = 10_000
"""Sets of so many people have three seeds, and nothing is tuned on them."""
RANDOM_FEDERATIONS: Final = 500
"""With all seeds."""
QUICK: Final = ("iris", "balanced-50", "dollars-100", RANDOM.name)
"""The sets of a quick run: a minute, one seed, epsilon 3."""


@dataclass(frozen=True)
class Cell:
    """What is trained once."""

    dataset: str
    contender: str
    epsilon: float
    seed: int

    @property
    def file(self) -> str:
        contender = self.contender.replace(" ", "-").replace(",", "")
        return f"{self.dataset}.{contender}.{self.epsilon:g}.{self.seed}.json"


@dataclass(frozen=True)
class CellResult:
    """A cell's result. ``rho`` is the noise-to-signal ratio sqrt(d) / (mu n), 0 without noise."""

    cell: Cell
    skill: float
    rho: float
    parameters: int
    settings: str

    def to_json(self) -> dict[str, Any]:
        tree = asdict(self)
        return tree | {"skill": self.skill if math.isfinite(self.skill) else None}

    @classmethod
    def from_json(cls, tree: Mapping[str, Any]) -> CellResult:
        found = -math.inf if tree["skill"] is None else float(tree["skill"])
        return cls(Cell(**tree["cell"]), found, tree["rho"], tree["parameters"], tree["settings"])


def known_sets() -> dict[str, UtilitySet]:
    """The sets by name."""
    return {one.name: one for one in (*SETS, RANDOM)}


@lru_cache(maxsize=2)
def _federation(name: str, seed: int) -> Federation:
    return known_sets()[name].make(Streams.from_seed(seed))


def _available(name: str, say: Say) -> bool:
    try:
        _federation(name, 0)
    except DataError as error:
        if not known_sets()[name].files:
            raise
        say(f"{name} is left out: {error}")
        return False
    return True


def cells(names: Iterable[str], seeds: int = MAX_SEEDS, quick: bool = False) -> Iterator[Cell]:
    """All cells of these sets, those of one federation after each other."""
    for name in names:
        if name == RANDOM.name:
            count = 5 if quick else RANDOM_FEDERATIONS * seeds // MAX_SEEDS
            yield from (Cell(name, models.AUTO.name, EPSILONS[seed % 3], seed) for seed in range(count))
            continue
        people = _federation(name, 0).users
        for seed in range(1 if quick else seeds if people < LARGE else min(seeds, 3)):
            yield from (Cell(name, pooled, math.inf, seed) for pooled in models.POOLED)
            for epsilon in EPSILONS[1:2] if quick else EPSILONS:
                yield from (Cell(name, one.name, epsilon, seed) for one in models.CONTENDERS)
                if seed < TUNED_SEEDS and people < LARGE and not quick:
                    yield from (Cell(name, one.name, epsilon, seed) for one in models.TUNED)


def run_cell(folder: Path, cell: Cell) -> CellResult:
    """The outcome of a cell: from the folder if it is there, else computed and written to it."""
    path = folder / cell.file
    federation = _federation(cell.dataset, cell.seed)
    if cell.contender in models.POOLED:
        settings, compute = "", partial(_pooled, cell, federation)
    else:
        settings, compute = _private(cell, federation)
    digest = hashlib.blake2b(f"{__version__} {settings}".encode(), digest_size=8).hexdigest()
    if path.exists():
        found = CellResult.from_json(json.loads(path.read_text()))
        if found.settings == digest:
            return found
    loss, rho, parameters = compute()
    outcome = CellResult(cell, models.skill(federation, loss), rho, parameters, digest)
    temporary = path.with_suffix(f".{os.getpid()}")
    temporary.write_text(json.dumps(outcome.to_json()))
    temporary.replace(path)
    return outcome


def _pooled(cell: Cell, federation: Federation) -> tuple[float, float, int]:
    return models.pooled_loss(cell.contender, federation, cell.seed), 0.0, 0


def _private(cell: Cell, federation: Federation) -> tuple[str, Any]:
    """The settings that a cell is recognised by, and a function that trains with them."""
    from uldp.experiment.build import prepare
    from uldp.runtimes.simulation import run

    contender = next(one for one in (*models.CONTENDERS, *models.TUNED) if one.name == cell.contender)
    tree = contender.tree(federation, cell.epsilon, cell.seed)
    prepared = prepare(Experiment.from_tree(tree), federation)
    agreed, people = prepared.plan, federation.users

    def train() -> tuple[float, float, int]:
        mu = math.sqrt(agreed.rounds) / agreed.method.noise_multiplier
        rho = math.sqrt(agreed.facts.dimension) / (mu * people)
        return run(prepared).metrics.get("loss", math.nan), rho, agreed.facts.dimension

    chosen = repr(agreed.method) if contender.method == models.AUTO.method else ""  # it chooses by itself
    return f"{json.dumps(tree)} {chosen}", train


def start_skill(cell: Cell) -> float:
    """The skill of the model that a private cell's training begins with."""
    from uldp.experiment.build import prepare

    federation = _federation(cell.dataset, cell.seed)
    contender = next(one for one in (*models.CONTENDERS, *models.TUNED) if one.name == cell.contender)
    tree = contender.tree(federation, cell.epsilon, cell.seed)
    prepared = prepare(Experiment.from_tree(tree), federation)
    x = prepared.learner.initial(prepared.streams.child("model"))
    return models.skill(federation, prepared.learner.evaluate(x, federation.test).get("loss", math.nan))


def run_all(
    folder: Path,
    names: Sequence[str] | None = None,
    *,
    seeds: int = MAX_SEEDS,
    quick: bool = False,
    workers: int = 1,
    say: Say = silent,
) -> list[CellResult]:
    """All outcomes of the named sets (all by default), with what is in the folder already."""
    check_whole(seeds, 1, MAX_SEEDS, "--seeds")
    check_whole(workers, 1, MAX_THREADS, "--workers")
    check_names(names, known_sets())
    chosen = names or (QUICK if quick else list(known_sets()))
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"cannot be made: {error}", location="--out", value=str(folder)) from error
    todo = list(cells((name for name in chosen if _available(name, say)), seeds, quick))
    if workers == 1:
        return [*_said(map(partial(run_cell, folder), todo), len(todo), say)]
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        return [*_said(pool.map(partial(run_cell, folder), todo, chunksize=4), len(todo), say)]


def _said(outcomes: Iterable[CellResult], count: int, say: Say) -> Iterator[CellResult]:
    last = ""
    for number, outcome in enumerate(outcomes):
        if outcome.cell.dataset != last:
            last = outcome.cell.dataset
            say(f"{last} ({number} of {count} trainings done)")
        yield outcome
