"""Audits from Python and from the command line: on synthetic people, or on real records as a run of its own."""

from __future__ import annotations

import math
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

import numpy as np

from uldp.audits.audit import RealRecords, audit_of, size_of
from uldp.audits.result import Audit, Size
from uldp.errors import BudgetExhausted, ConfigError
from uldp.experiment.build import PreparedExperiment, prepare_party
from uldp.experiment.loading import server_federation, without_records
from uldp.library.arguments import CallArguments, Settings
from uldp.library.progress import steps_bar
from uldp.library.training import checked_path
from uldp.limits import MAX_SEED, check_whole
from uldp.privacy.accountants import account
from uldp.privacy.ledger import Entry
from uldp.rng import Secrets
from uldp.runs import spending
from uldp.runs.directory import RunDirectory
from uldp.runs.people import Population, save_people
from uldp.runs.totals import SpentRun, group_runs, runs_below
from uldp.runtimes.recording import torch_threads

if TYPE_CHECKING:
    from uldp.library.arguments import Silos


def audit(
    silos: Silos,
    *,
    canaries: int | None = None,
    adversary: str | None = None,
    audit_seed: int = 0,
    directory: Path | str | None = None,
    budget: float | None = None,
    progress: bool | None = None,
    **what: Unpack[Settings],
) -> Audit:
    """Try to refute the epsilon that an experiment claims, with canary users in its real sessions.

    By default the other people are synthetic: nobody's record is used. With ``directory`` it is a run on the real
    records: charged to a ledger there, and refused where it passes the budget.

    Args:
        silos: As for :func:`train`.
        canaries: How many, over all runs; by default enough to tell half of the noise from all of it.
        adversary: One adversary of the privacy statement; None for all of them.
        audit_seed: Of coins, synthetic people and the noise of the audit.
        directory: A new run directory, for an audit on the real records.
        budget: With ``directory``: the epsilon that this run and those beside it, on the same people, may cost
            together; by default ``epsilon``.
        progress: Show a bar; None for terminals and notebooks only.
        what: As for :func:`train`.

    Returns:
        Claimed and refuted epsilon for every adversary, direct checks and a verdict.

    Raises:
        InputError: Arguments are wrong, there is no private method, or there are too few canaries for any verdict.
        BudgetExhausted: An audit on real records would pass the budget; nothing was released.

    Example:
        >>> made = audit("synthetic", epsilon=4.0, rounds=2, canaries=2000)
        >>> made.verdict, len(made.found)
        ('not refuted', 6)
    """
    request = CallArguments.of(silos, what, "audit")
    check_whole(audit_seed, 0, MAX_SEED, "audit_seed")
    if directory is None:
        prepared = public_shape(request)
        size = size_of(prepared, canaries)
        return run_audit(prepared, size, adversary, audit_seed, progress)
    prepared = request.prepare()
    size = size_of(prepared, canaries, real=True)
    with real_records(prepared, checked_path(directory), budget) as real:
        return run_audit(prepared, size, adversary, audit_seed, progress, real)


def public_shape(request: CallArguments) -> PreparedExperiment:
    """The experiment without anybody's records: silos, users, features and task are public."""
    given = request.federation
    federation = server_federation(request.experiment) if given is None else without_records(given)
    totals = np.ones(federation.users, dtype=np.int64)  # methods that read counts see none
    return prepare_party(request.experiment, federation, totals, request.module)


def run_audit(
    prepared: PreparedExperiment,
    size: Size,
    adversary: str | None,
    seed: int,
    progress: bool | None,
    real: RealRecords | None = None,
) -> Audit:
    """The audit, with a bar over the rounds of all its runs."""
    with (
        torch_threads(prepared.experiment.run.threads),
        steps_bar("audit", size.runs * prepared.plan.rounds, progress) as on_round,
    ):
        return audit_of(prepared, size, adversary=adversary, seed=seed, real=real, on_round=on_round)


@contextmanager
def real_records(prepared: PreparedExperiment, path: Path, budget: float | None) -> Iterator[RealRecords]:
    """Real records, and a new run directory in which every release is written down before it is used.

    Raises:
        ConfigError: The silos run on their own, or there is no budget.
        BudgetExhausted: With what runs beside it have spent on the same people, the audit would pass the budget.
    """
    experiment = prepared.experiment
    if experiment.aggregation.identities:
        reason = (
            "these silos have keys of their own: a live federation is not audited on its records; leave --records out"
        )
        raise ConfigError(reason, location="aggregation.identities")
    limit = experiment.privacy.epsilon if budget is None else budget
    if limit is None or not 0 < limit < math.inf:
        raise ConfigError("an audit on real records is a run: say what it may cost", location="budget", value=limit)
    entries, population = (
        _planned_entries(prepared),
        Population(str(path.resolve()), experiment, people=prepared.federation.people),
    )
    unit, by = prepared.plan.release.privacy_unit, prepared.background.asserted_by
    would = SpentRun.of(population, entries, unit, by, no_guarantee=bool(prepared.no_guarantee))
    _check_budget(would, path, limit)
    directory = RunDirectory.create(path, experiment)
    with _discard_unless_charged(directory), directory.lock():
        save_people(directory, prepared.federation.people)
        ledger = prepared.ledger()

        def charge(entry: Entry) -> None:
            directory.log.append_ledger(entry)
            spending.charge(SpentRun.of(population, ledger.entries, unit, by))

        secret = experiment.run.secrets == "os"
        secrets = Secrets.from_os() if secret else Secrets.simulated_from_seed(experiment.run.seed)
        yield RealRecords(prepared.federation, secrets, ledger, charge)


@contextmanager
def _discard_unless_charged(directory: RunDirectory) -> Iterator[None]:
    """A directory in which nothing was charged goes again if the audit fails."""
    try:
        yield
    except BaseException:
        if not directory.has("ledger.jsonl"):
            shutil.rmtree(directory.path, ignore_errors=True)
        raise


def _planned_entries(prepared: PreparedExperiment) -> tuple[Entry, ...]:
    event = prepared.plan.release.event(prepared.plan.facts.silos)
    return tuple(Entry(round_, event, f"planned {round_}") for round_ in range(1, prepared.plan.rounds + 1))


def _check_budget(would: SpentRun, path: Path, budget: float) -> None:
    """Refuse what would cost more, with runs on the same people: of this process, and in folders beside ``path``."""
    beside = runs_below(path.parent) if path.parent.is_dir() else []
    runs = {run.identity: run for run in (*spending.all_runs(), *map(SpentRun.read, beside))}
    others = [run for run in runs.values() if run.releases]
    (group,) = [one for one in group_runs([*others, would]) if any(run.first == would.first for run in one.runs)]
    alone = account(would.spent, would.experiment.privacy.delta).value
    together = group.epsilon()
    if together > budget * (1 + 1e-9):
        spent = f"; {len(group.runs) - 1} runs on these people, here or beside it, count" if len(group.runs) > 1 else ""
        raise BudgetExhausted(
            f"the audit costs epsilon {alone:.4g} and would raise the total to {together:.4g}, the budget is "
            f"{budget:.4g}{spent}; nothing was released. Audit synthetic people, or give a larger budget",
            location="budget",
            value=budget,
        )
