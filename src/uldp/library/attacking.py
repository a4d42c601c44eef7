"""Membership attacks from Python and from the command line: on public data sets, or on made-up people."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, Unpack

from uldp.attacks.membership import MODELS, MembershipPlan, plan_attack, run_attack
from uldp.attacks.membership_result import Attack
from uldp.attacks.targets import RECORDS, Targets, deal_targets, kinds_of
from uldp.data.builtin import datasets
from uldp.data.federation import Federation
from uldp.data.synthetic_tables import TableShape, draw_federation
from uldp.errors import ConfigError, error_context
from uldp.experiment.loading import load_federation
from uldp.library.arguments import CallArguments, Settings
from uldp.library.comparing import label_methods
from uldp.library.progress import steps_bar
from uldp.library.synthetic_runs import PublicShape
from uldp.library.training import checked_path
from uldp.limits import MAX_SEED, check_whole
from uldp.rng import Streams

if TYPE_CHECKING:
    from uldp.library.arguments import Silos
    from uldp.library.comparing import Methods

METHODS: Final = ("record-dp", "uldp-group-8", "uldp-naive", "uldp-avg-w", "fedavg")
SYNTHETIC_RECORDS: Final = 2000
"""Of made-up people, over all silos."""


def attack(
    silos: Silos,
    methods: Methods = METHODS,
    *,
    records: Sequence[int] = RECORDS,
    models: int = MODELS,
    workers: int = 1,
    attack_seed: int = 0,
    directory: Path | str | None = None,
    progress: bool | None = None,
    **what: Unpack[Settings],
) -> Attack:
    """Attack the membership of people under several methods, with shadow models.

    Records of the public data sets that come with uldp are dealt to people with few and with many of them. For all
    other data the people are made up, with the public shape of the experiment: an attack trains hundreds of models and
    shows how well people are recognised, which no epsilon covers, so it never reads records of your own.

    Args:
        silos: As for :func:`train`.
        methods: Names or :class:`uldp.Method` objects; or a mapping from what you call them. Each gets the noise for
            the same ``epsilon``.
        records: How many records people have; each number spread over silos and in one silo.
        models: Shadow models of each method.
        workers: Processes that train them; more than one needs a script that can be imported.
        attack_seed: Of who is in which model, and of the noise.
        directory: A folder for what was trained: an attack that was stopped goes on there.
        progress: Show a bar; None for terminals and notebooks only.
        what: As for :func:`train`, without ``method``.

    Returns:
        AUC and rates of recognised members for every method, kind of people and attack, with ceilings.

    Raises:
        InputError: Arguments are wrong, or a method cannot be attacked.

    Example:
        >>> made = attack("synthetic", ["uldp-avg"], records=(1, 8), models=16, epsilon=4.0, rounds=2)
        >>> [round(found.ceiling.auc, 3) for found in made.methods[0].kinds]
        [0.744, 0.744, 0.744]
    """
    if "method" in what:
        raise ConfigError("name the methods in `methods`", location="method")
    check_whole(attack_seed, 0, MAX_SEED, "attack_seed")
    kinds_of(records)
    requests = {}
    base = None if isinstance(silos, str) else CallArguments.of(silos, what, "attack")
    for name, method in label_methods(methods).items():
        with error_context(f"method {name}"):
            given = {**what, "method": method}
            requests[name] = base.with_method(method) if base else CallArguments.of(silos, given, "attack")
    plan = planned_attack(requests, records, models, attack_seed)
    return run_planned_attack(plan, workers, None if directory is None else checked_path(directory), progress)


def planned_attack(
    requests: dict[str, CallArguments], records: Sequence[int], models: int, seed: int
) -> MembershipPlan:
    """What will be trained for these requests, which are about the same data."""
    first = next(iter(requests.values()))
    if first.module is not None:
        reason = "an attack trains models by name (see `uldp run --help`); give a name or package.module:factory"
        raise ConfigError(reason, location="model")
    federation, source = attackable_people(first)
    targets: Targets = deal_targets(federation, kinds_of(records), source, Streams.from_seed(seed))
    return plan_attack({name: request.experiment for name, request in requests.items()}, targets, models, seed)


def run_planned_attack(plan: MembershipPlan, workers: int, folder: Path | None, progress: bool | None) -> Attack:
    """The attack, with a bar over its models."""
    with steps_bar("attack", plan.trained, progress) as on_model:
        return run_attack(plan, workers=workers, folder=folder, on_model=on_model)


def attackable_people(request: CallArguments) -> tuple[Federation, str]:
    """Records that may be attacked, and whose they are: a public data set's, or made-up ones of the same shape."""
    experiment, given = request.experiment, request.federation
    name = experiment.data.dataset if given is None else given.people.dataset if given.people is not None else None
    if name in datasets():
        return load_federation(experiment) if given is None else given, f"the public data set {name}"
    if given is None:
        shape = PublicShape.of(experiment)
        tables, schema = shape.tables, shape.schema
    else:
        if len(given.feature_shape) != 1 or given.task.survival:
            reason = "images and survival times cannot be made up; attack a public data set (`uldp datasets`)"
            raise ConfigError(reason, location="silos")
        (width,), classes = given.feature_shape, given.task.classes
        tables, schema = TableShape(given.users, len(given.silos), 1.0, width, (), classes), given.schema
    tables = replace(tables, people=SYNTHETIC_RECORDS, records=1.0)
    drawn = draw_federation(tables, Streams.from_seed(experiment.run.seed))
    return replace(drawn, schema=schema), "made-up tables of the same public shape"
