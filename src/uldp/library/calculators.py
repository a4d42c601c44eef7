"""Epsilon without data: what the settings of a method cost, and the noise that stays within an epsilon."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from numbers import Real
from typing import Any, Self, TypedDict, Unpack

from uldp.errors import check_keys, require
from uldp.experiment.calculator import PrivacyQuery, Side
from uldp.methods.base import Method
from uldp.privacy.sentences import PUBLIC, finite_or_none, show_epsilon


class Account(TypedDict, total=False):
    """For whom, and how: the keyword arguments that :func:`epsilon` and :func:`noise_multiplier` share."""

    rounds: int
    delta: float
    adversary: str
    aggregation: str
    silos: int
    colluding: int
    dropped: int
    dropout_tolerance: int
    accountant: str
    settings: Mapping[str, Any]


class PrivacyCost(float):
    """An epsilon that knows what it is about; otherwise a number like any other.

    Args:
        query: The method, the adversary and delta.
        noise_multiplier: The noise.

    Example:
        >>> cost = epsilon("uldp-avg", noise_multiplier=5.0, rounds=50)
        >>> round(cost, 3), round(cost.replace_one, 3), cost.accountant
        (6.573, 15.456, 'analytic-gaussian')
    """

    query: PrivacyQuery
    noise_multiplier: float
    accountant: str
    replace_one: float

    def __new__(cls, query: PrivacyQuery, noise_multiplier: float) -> Self:
        spent = query.epsilon(noise_multiplier)
        made = super().__new__(cls, spent.value)
        made.query, made.noise_multiplier, made.accountant = query, noise_multiplier, spent.accountant
        made.replace_one = query.replace_one(noise_multiplier)
        return made

    @property
    def delta(self) -> float:
        return self.query.delta

    def __reduce__(self) -> tuple[Any, ...]:
        return PrivacyCost, (self.query, self.noise_multiplier)

    def notes(self) -> list[str]:
        """Code that is not ours, and the number of a user's silos where epsilon depends on it."""
        found = []
        if by := self.query.third_party_names():
            found.append(f"asserted by {', '.join(by)}, not proven by uldp")
        if (silos := self.query.silos_of_a_user()) is not None:
            of = self.query.side.silos
            found.append(f"for a user with records in {silos} of {of} silos (method.max_silos, silos)")
        return found

    def to_json(self) -> dict[str, Any]:
        """The document of ``uldp epsilon --json``."""
        return {
            "epsilon": finite_or_none(float(self)),
            "epsilon_replace_one": finite_or_none(self.replace_one),
            "delta": self.delta,
            "accountant": self.accountant,
            "adversary": self.query.side.adversary,
            "silos_of_a_user": self.query.silos_of_a_user(),
            "asserted_by": list(self.query.third_party_names()),
            "noise_multiplier": self.noise_multiplier,
        }

    def __str__(self) -> str:
        side, unit = self.query.side, self.query.method.privacy_unit or "user"
        who = {"public": PUBLIC, "server": "the server", "silo": "one silo"}[side.adversary]
        who = f"{side.colluding} colluding silos" if side.colluding > 1 else who
        return (
            f"epsilon {show_epsilon(float(self))} at delta {self.delta:g} against {who} ({self.accountant}, add/remove "
            f"one {unit}; {show_epsilon(self.replace_one)} under replace-one adjacency)"
        )


class CalibratedNoise(float):
    """The smallest noise multiplier that stays within an epsilon; ``cost`` is the epsilon that it reaches."""

    cost: PrivacyCost

    def __new__(cls, query: PrivacyQuery, target: float) -> Self:
        found = query.noise_multiplier(target)
        made = super().__new__(cls, found)
        made.cost = PrivacyCost(query.worst(), found)
        return made

    def __reduce__(self) -> tuple[Any, ...]:
        return float, (float(self),)

    def to_json(self) -> dict[str, Any]:
        """The document of ``uldp sigma --json``."""
        about = self.cost.to_json()
        return {"noise_multiplier": float(self), **{key: about[key] for key in _SIGMA}}

    def __str__(self) -> str:
        cost = self.cost
        return f"noise multiplier {self:g} (epsilon {cost:.4g} at delta {cost.delta:g}, {cost.accountant})"


_SIGMA = ("epsilon", "delta", "accountant", "asserted_by")


def epsilon(method: Method | str, noise_multiplier: float, **account: Unpack[Account]) -> PrivacyCost:
    """The epsilon of a run, without data: what so much noise over so many rounds costs, and against whom.

    Args:
        method: A name (see ``uldp methods``) or a :class:`uldp.Method`.
        noise_multiplier: The standard deviation of the noise is this many clips.
        account: For whom, and how, as the following keyword arguments.
        rounds: How many; a :class:`uldp.Method` brings its own.
        delta: 1e-5 by default.
        adversary: "public" (anyone who sees the released models), "server" or "silo".
        aggregation: Which decides what the server and the silos see; "masked" by default.
        silos: How many silos there are, 5 by default.
        colluding: With the adversary "silo": how many silos collude.
        dropped: How many silos dropped out, and their noise with them.
        dropout_tolerance: How many silos' shares of the noise may be missing without a larger epsilon.
        accountant: "auto" takes the smallest valid epsilon; "rdp", "lemma5", "lemma6" give the papers' figures.
        settings: Other settings of the method, such as ``{"sample_rate": 0.1}``.

    Returns:
        The epsilon under add/remove adjacency, a float; printed, it says what it is about.

    Raises:
        ConfigError: An argument is unknown or wrong.

    Example:
        >>> round(epsilon("uldp-avg", noise_multiplier=5.0, rounds=50, settings={"sample_rate": 0.1}), 3)
        0.526
        >>> print(epsilon("uldp-avg", 5.0, rounds=2))
        epsilon 1.061 at delta 1e-05 against anyone who sees the released models (analytic-gaussian, ...)
    """
    require(_is_number(noise_multiplier), "noise_multiplier", noise_multiplier, "0 or a positive number")
    return PrivacyCost(_query(method, account, "epsilon"), float(noise_multiplier))


def noise_multiplier(method: Method | str, epsilon: float, **account: Unpack[Account]) -> CalibratedNoise:
    """The smallest noise multiplier with which a run stays within an epsilon.

    Args:
        method: As for :func:`epsilon`.
        epsilon: The target.
        account: As for :func:`epsilon`.

    Returns:
        The noise multiplier, a float.

    Raises:
        ConfigError: An argument is unknown or wrong, or no noise reaches the target.

    Example:
        >>> found = noise_multiplier("uldp-avg", epsilon=3.0, rounds=50)
        >>> round(found, 2), round(found.cost, 2)
        (9.83, 3.0)
    """
    require(_is_number(epsilon), "epsilon", epsilon, "a positive number")
    return CalibratedNoise(_query(method, account, "noise_multiplier"), float(epsilon))


def _is_number(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def _query(method: Method | str, account: Mapping[str, Any], caller: str) -> PrivacyQuery:
    check_keys(account, tuple(Account.__annotations__), caller)
    of_side = {item.name for item in fields(Side)}
    side = Side(**{key: value for key, value in account.items() if key in of_side})
    return PrivacyQuery.of(method, side=side, **{key: value for key, value in account.items() if key not in of_side})
