"""The privacy statement: for whom which epsilon holds, and what it does not cover. Part of every result."""

from __future__ import annotations

import html
import math
import textwrap
from dataclasses import dataclass
from typing import Any

WIDTH = 100
NOT_SECRET = "NOT A GUARANTEE FOR THIS RUN: the noise was generated from run.seed"
_COUNTED = "* of the noised numbers. Record counts are seen besides, and no epsilon covers those."


@dataclass(frozen=True)
class Exposure:
    """What one kind of observer faces: if a person is left out, and if a person's records are replaced by others."""

    who: str
    sees: str
    epsilon: float
    replaced: float
    counts: bool = False
    """Whether this observer is shown record counts too, in the clear."""

    @property
    def mark(self) -> str:
        return " *" if self.counts else ""

    def to_json(self) -> dict[str, Any]:
        return {
            "who": self.who,
            "sees": self.sees,
            "sees_counts": self.counts,
            "epsilon": finite_or_none(self.epsilon),
            "epsilon_if_replaced": finite_or_none(self.replaced),
        }


@dataclass(frozen=True)
class Statement:
    """An (epsilon, delta) guarantee in words and numbers. ``epsilon`` is the outside world's.

    ``void`` says why there is no guarantee although noise was added; it is empty where there is one. ``groups`` says,
    for a guarantee about single records, what a person with so many of them faces.
    """

    unit: str | None
    epsilon: float
    delta: float
    accountant: str
    rounds: int
    simulated: bool
    exposures: tuple[Exposure, ...]
    caveats: tuple[str, ...]
    void: str = ""
    first: int = 0
    """How many of the caveats weaken the headline and so stand right below it."""
    corrections: tuple[str, ...] = ()
    groups: tuple[tuple[int, float], ...] = ()

    @property
    def holds(self) -> bool:
        """Whether there is a guarantee at all."""
        return self.unit is not None and not self.void and math.isfinite(self.epsilon)

    @property
    def noise(self) -> str:
        return noise_kind(simulated=self.simulated)

    def headline(self) -> str:
        """The one sentence."""
        return guarantee(
            self.unit, self.epsilon, self.delta, simulated=self.simulated, void=self.void, whom=self._whom()
        )

    def _whom(self) -> str:
        """Against whom the guarantee is, and about what."""
        if self.unit == "client":
            return (
                f" against everybody, the server included: all records of any one client could have been others "
                f"({self.rounds} rounds, {self.accountant})"
            )
        what = "all records of any one user, in all silos together," if self.unit == "user" else "any one record"
        return (
            f" against whoever sees the model of every round: {what} could have been left out (add/remove, "
            f"{self.rounds} rounds, {self.accountant})"
        )

    def rows(self) -> list[tuple[str, str, str]]:
        """Who faces which epsilon: (observer, epsilon, epsilon if records are replaced)."""
        return [(e.who, show_epsilon(e.epsilon) + e.mark, show_epsilon(e.replaced)) for e in self.exposures]

    def remarks(self) -> list[str]:
        """What goes with the numbers, sentence by sentence."""
        lines = [
            f"A person with {size} records faces epsilon {show_epsilon(epsilon)}." for size, epsilon in self.groups
        ]
        if self.holds:
            lines += [f"{e.who[0].upper()}{e.who[1:]} sees {e.sees}." for e in self.exposures[1:3]]
        lines += self.caveats[self.first :]
        if self.holds:
            lines += [f"Corrected: {line}" for line in self.corrections]
        return lines

    def lines(self) -> list[str]:
        """The statement as text."""
        lines = [*textwrap.wrap(self.headline(), WIDTH)]
        for caveat in self.caveats[: self.first]:
            lines += ["", *textwrap.wrap(caveat, WIDTH)]
        if self.holds and self.exposures:
            names = max(len(who) for who, _, _ in self.rows())
            lines += ["", f"{'who looks on':{names}}   epsilon     if records are replaced"]
            lines += [f"{who:{names}}   {epsilon:9}   {replaced}" for who, epsilon, replaced in self.rows()]
            if any(e.counts for e in self.exposures):
                lines.append(_COUNTED)
        lines.append("")
        for remark in self.remarks():
            lines += textwrap.wrap(remark, WIDTH, initial_indent="- ", subsequent_indent="  ")
        return lines

    def page(self, title: str) -> str:
        """The statement as a page that stands on its own."""

        def items(lines: list[str]) -> str:
            return "\n".join(f"<li>{html.escape(line)}</li>" for line in lines)

        table = ""
        if self.holds and self.exposures:
            body = "\n".join(
                f"<tr><td>{html.escape(e.who)}</td><td>{html.escape(e.sees)}</td>"
                f"<td>{show_epsilon(e.epsilon)}{e.mark}</td><td>{show_epsilon(e.replaced)}</td></tr>"
                for e in self.exposures
            )
            head = "<tr><th>who looks on</th><th>sees</th><th>epsilon</th><th>if records are replaced</th></tr>"
            note = f"\n<p>{_COUNTED}</p>" if any(e.counts for e in self.exposures) else ""
            table = f"<h2>Who faces which epsilon</h2>\n<table>\n{head}\n{body}\n</table>{note}"
        weakening = "".join(f"<p><strong>{html.escape(line)}</strong></p>\n" for line in self.caveats[: self.first])
        groups = [f"A person with {size} records faces epsilon {show_epsilon(e)}." for size, e in self.groups]
        remarks = items([*groups, *self.caveats[self.first :]])
        corrected = ""
        if self.holds and self.corrections:
            corrected = f"<h2>Where the paper was corrected</h2>\n<ul>\n{items(list(self.corrections))}\n</ul>"
        return _PAGE.format(
            title=html.escape(title),
            headline=html.escape(self.headline()),
            weakening=weakening,
            table=table,
            remarks=remarks,
            corrected=corrected,
        )

    def to_json(self) -> dict[str, Any]:
        return {
            "guarantee": self.headline(),
            "unit": self.unit,
            "neighbours": _NEIGHBOURS.get(self.unit or "", "add or remove all records of one user, |U| public"),
            "epsilon": finite_or_none(self.epsilon),
            "delta": self.delta,
            "accountant": self.accountant,
            "rounds": self.rounds,
            "noise": self.noise,
            "exposures": [exposure.to_json() for exposure in self.exposures],
            "records_per_person": [{"records": n, "epsilon": finite_or_none(e)} for n, e in self.groups],
            "caveats": list(self.caveats),
            "corrections": list(self.corrections),
        }


_NEIGHBOURS = {
    "record": "add or remove one record, |U| public",
    "client": "replace all records of one client",
}

_PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<title>{title}</title>
<style>
body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 50rem; margin: 2rem auto; padding: 0 1rem; color: #222; }}
h1 {{ font-size: 1.3rem; }} h2 {{ font-size: 1.05rem; margin-top: 1.8rem; }}
.headline {{ background: #eef3f8; border-left: 4px solid #36648b; padding: .8rem 1rem; }}
table {{ border-collapse: collapse; }}
td, th {{ text-align: left; vertical-align: top; padding: .3rem .8rem .3rem 0; border-bottom: 1px solid #ddd; }}
</style>
<h1>{title}</h1>
<p class="headline">{headline}</p>
{weakening}{table}
<h2>What goes with it</h2>
<ul>
{remarks}
</ul>
{corrected}
</html>
"""


def noise_kind(*, simulated: bool) -> str:
    """What ``noise`` says beside every epsilon of a run: whoever knows the seed can compute simulated noise."""
    return "simulated" if simulated else "secret"


def guarantee(
    unit: str | None, epsilon: float, delta: float, *, simulated: bool, void: str = "", whom: str = ""
) -> str:
    """An epsilon in words, as it stands beside the number wherever a run's epsilon is written down.

    >>> guarantee("user", 2.5, 1e-5, simulated=False)
    'User-level DP with epsilon 2.5 at delta 1e-05.'
    >>> guarantee("user", 2.5, 1e-5, simulated=True).partition(". ")[0]
    'NOT A GUARANTEE FOR THIS RUN: the noise was generated from run.seed'
    """
    if unit is None:
        return "No privacy: this method bounds nobody's influence and adds no noise."
    if void:
        return f"NO GUARANTEE: {void}."
    if math.isinf(epsilon):
        return "NO PRIVACY: the noise is zero, so epsilon is infinite."
    kind = "Client-level local DP" if unit == "client" else f"{unit.capitalize()}-level DP"
    words = f"{kind} with epsilon {epsilon:.4g} at delta {delta:g}{whom}."
    return f"{NOT_SECRET}. With secret noise it would be: {words}" if simulated else words


def finite_or_none(value: float) -> float | None:
    """JSON has no infinity: null stands for "no bound"."""
    return value if math.isfinite(value) else None


def show_epsilon(epsilon: float) -> str:
    """Epsilon for people.

    >>> show_epsilon(9.99726), show_epsilon(math.inf)
    ('9.997', 'infinite')
    """
    return f"{epsilon:.4g}" if math.isfinite(epsilon) else "infinite"
