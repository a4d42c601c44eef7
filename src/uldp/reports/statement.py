"""Privacy statements for people: three lines for a terminal, the whole as text and as a page."""

from __future__ import annotations

import html
import textwrap
from typing import Final

from uldp.privacy.sentences import COUNTS_MARK, NOT_SECRET, PUBLIC, assertion, show_epsilon
from uldp.privacy.statement import Statement

WIDTH: Final = 100


def summary(statement: Statement) -> list[str]:
    """Three lines: who is protected against whom, epsilon at delta, the single most important caveat."""
    lines = []
    if statement.asserted_by:
        lines.append(assertion(statement.asserted_by))
    if not statement.holds:
        lines.append(statement.headline())
    else:
        whom = {
            "user": f"every user, with all records in all silos, against {PUBLIC}",
            "record": f"single records, not people, against {PUBLIC}",
            "client": "every client, with all of its records, against everybody",
        }.get(str(statement.privacy_unit), f"every {statement.privacy_unit}, against {PUBLIC}")
        epsilon = f"epsilon {show_epsilon(statement.epsilon)} at delta {statement.delta:g}"
        if statement.simulated:
            lines += [f"{NOT_SECRET}. With secret noise it would protect", f"{whom}: {epsilon}."]
        else:
            lines += [f"Protects {whom}.", f"{epsilon} over {statement.rounds} rounds ({statement.accountant})"]
    main = statement.main_caveat()
    if main is not None and statement.privacy_unit is not None:
        first, more, _ = main.text.partition(". ")
        lines += textwrap.wrap(f"{first}." if more else main.text, WIDTH)
    return lines


def rows(statement: Statement) -> list[tuple[str, str, str]]:
    """Who faces which epsilon: (adversary, epsilon, epsilon under replace-one adjacency)."""
    return [(e.who, show_epsilon(e.epsilon) + e.mark, show_epsilon(e.replace_one)) for e in statement.exposures]


def _people(statement: Statement) -> list[str]:
    return [f"A person with {size} records faces epsilon {show_epsilon(e)}." for size, e in statement.per_person]


def text(statement: Statement) -> list[str]:
    """The whole statement, line by line."""
    whose, headline = assertion(statement.asserted_by), statement.headline()
    lines = [whose] if headline.startswith(whose) else []  # a line of its own, however long the names are
    lines += textwrap.wrap(headline.removeprefix(whose).strip(), WIDTH)
    for caveat in statement.weakening_caveats():
        lines += ["", *textwrap.wrap(caveat.text, WIDTH)]
    table = rows(statement) if statement.holds else []
    if table:
        width = max(len(who) for who, _, _ in table)
        lines += ["", f"{'adversary':{width}}   epsilon     replace-one"]
        lines += [f"{who:{width}}   {epsilon:9}   {replaced}" for who, epsilon, replaced in table]
        if any(e.counts for e in statement.exposures):
            lines.append(COUNTS_MARK)
    lines.append("")
    notes = _people(statement)
    if statement.holds:
        notes += [f"{e.who[0].upper()}{e.who[1:]} sees {e.sees}." for e in statement.exposures[1:3]]
    notes += [caveat.text for caveat in statement.other_caveats()]
    if statement.holds:
        notes += [f"Corrected: {line}" for line in statement.corrections]
    for note in notes:
        lines += textwrap.wrap(note, WIDTH, initial_indent="- ", subsequent_indent="  ")
    return lines


def page(statement: Statement, title: str) -> str:
    """The statement as an HTML page that stands on its own."""
    return _PAGE.format(title=html.escape(title), body=fragment(statement))


def fragment(statement: Statement) -> str:
    """The statement as a part of an HTML page, such as a notebook."""

    def items(lines: list[str]) -> str:
        return "\n".join(f"<li>{html.escape(line)}</li>" for line in lines)

    table = ""
    if statement.holds and statement.exposures:
        body = "\n".join(
            f"<tr><td>{html.escape(e.who)}</td><td>{html.escape(e.sees)}</td>"
            f"<td>{show_epsilon(e.epsilon)}{e.mark}</td><td>{show_epsilon(e.replace_one)}</td></tr>"
            for e in statement.exposures
        )
        head = "<tr><th>adversary</th><th>sees</th><th>epsilon</th><th>replace-one</th></tr>"
        mark = f"\n<p>{COUNTS_MARK}</p>" if any(e.counts for e in statement.exposures) else ""
        table = f"<h2>Who faces which epsilon</h2>\n<table>\n{head}\n{body}\n</table>{mark}"
    weakening = "".join(f"<p><strong>{html.escape(c.text)}</strong></p>\n" for c in statement.weakening_caveats())
    corrected = ""
    if statement.holds and statement.corrections:
        corrected = f"<h2>Where the paper was corrected</h2>\n<ul>\n{items(list(statement.corrections))}\n</ul>"
    return _FRAGMENT.format(
        headline=html.escape(statement.headline()),
        weakening=weakening,
        table=table,
        notes=items([*_people(statement), *(caveat.text for caveat in statement.other_caveats())]),
        corrected=corrected,
    )


_PAGE: Final = """<!doctype html>
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
{body}
</html>
"""
_FRAGMENT: Final = """<p class="headline">{headline}</p>
{weakening}{table}
<h2>What goes with it</h2>
<ul>
{notes}
</ul>
{corrected}"""
