"""What more people, fewer columns, another epsilon or delta would buy: tried on made-up tables of the same shape.

No record is read, so it costs no privacy. The numbers are of made-up tables: differences between them say more than
each of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import mean
from typing import Any, Final

from uldp.experiment.config import Experiment
from uldp.library.synthetic_runs import PublicShape, synthetic_skill

FEDERATIONS: Final = 4
MORE_PEOPLE: Final = 4
MORE_EPSILON: Final = 3.0
MORE_DELTA: Final = 10.0


@dataclass(frozen=True)
class Alternative:
    """One change, and the mean skill with it over made-up federations: 0 is the base rate, 1 is perfect."""

    change: str
    skill: float


def alternatives(experiment: Experiment, records: float | None = None) -> list[Alternative]:
    """What the experiment would reach as it is, and with single changes.

    Args:
        experiment: The settings; no table that it names is opened.
        records: Per person over all silos, if that is public.

    Returns:
        The experiment as planned comes first, and last what it would reach without noise.

    Raises:
        ConfigError: The data are no tables, or the method adds no Gaussian noise to a sum.

    Example:
        >>> experiment = Experiment.from_tree({
        ...     "data": {"dataset": "synthetic", "users": 20, "silos": 2, "options": {"features": 2}},
        ...     "method": {"name": "auto", "rounds": 3}, "privacy": {"epsilon": 3.0}})
        >>> [found.change for found in alternatives(experiment, records=2.0)][:2]
        ['as planned', 'with 80 people']
    """
    shape = PublicShape.of(experiment, records)
    return [
        Alternative(change, mean(synthetic_skill(changed, other, {}, number) for number in range(FEDERATIONS)))
        for change, changed, other in _changes(experiment, shape)
    ]


def _changes(experiment: Experiment, shape: PublicShape) -> Iterator[tuple[str, Experiment, PublicShape]]:
    tables, privacy = shape.tables, experiment.privacy
    yield "as planned", experiment, shape
    people = MORE_PEOPLE * tables.people
    yield f"with {people:,} people", experiment, replace(shape, tables=replace(tables, people=people))
    if tables.features > 1:
        max_features = max(1, tables.features // 2)
        yield (
            f"with {max_features} of the {tables.features} features",
            experiment,
            replace(shape, max_features=max_features),
        )
    if privacy.epsilon is not None:
        epsilon = MORE_EPSILON * privacy.epsilon
        yield f"at epsilon {epsilon:g}", _with_privacy(experiment, {"epsilon": epsilon}), shape
        delta = MORE_DELTA * privacy.delta
        if delta < 1 / tables.people:
            yield f"at delta {delta:g}", _with_privacy(experiment, {"delta": delta}), shape
    quiet = {"noise_multiplier": 0.0, "delta": privacy.delta}
    yield "without noise", _with_privacy(experiment, quiet, instead=True), shape


def _with_privacy(experiment: Experiment, changes: Mapping[str, Any], *, instead: bool = False) -> Experiment:
    tree = experiment.to_tree()
    privacy = dict(changes) if instead else {**tree["privacy"], **changes}
    return Experiment.from_tree({**tree, "privacy": privacy}, experiment.base, experiment.name)


def sentence(found: Sequence[Alternative], experiment: Experiment, records: float | None = None) -> str:
    """For people."""
    first, *others = found
    listed = ", ".join(f"{one.skill:.2f} {one.change}" for one in others)
    shape = PublicShape.of(experiment, records).words()
    return (
        f"On {FEDERATIONS} made-up federations of {shape} (no record was read): skill {first.skill:.2f} as planned; "
        f"{listed}. 0 is the base rate, 1 is perfect."
    )
