"""Whether the papers' claims hold in what was measured; decided by the numbers alone."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import msgspec

from uldp.reproductions.figure import ClaimSide, PaperClaim, Published
from uldp.reproductions.rows import PanelRows

VERDICTS = HOLDS, CAVEAT, FAILS, UNKNOWN = "holds", "holds with a caveat", "does not hold", "not measured"


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """A claim in one panel: both numbers, whether it holds, and whether by more than the seeds' deviations."""

    panel: str
    left: float | None
    right: float | None
    holds: bool
    clear: bool


class ClaimVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """A claim over all its panels."""

    text: str
    where: str
    verdict: str
    reason: str
    decisions: list[Decision]


def judge(claim: PaperClaim, panels: Sequence[PanelRows]) -> ClaimVerdict:
    """The verdict on one claim.

    It holds where it holds in every panel by more than the seeds' deviations; with a caveat where it holds in some
    panels only, or within deviations.
    """
    chosen = [panel for panel in panels if not claim.panels or panel.name in claim.panels]
    decisions = [found for panel in chosen if (found := _decide(claim, panel, panels)) is not None]
    held = [one for one in decisions if one.holds]
    if not decisions:
        verdict, reason = UNKNOWN, "the rows that it is about were not measured in this mode"
    elif not held:
        verdict, reason = FAILS, ""
    elif len(held) < len(decisions):
        elsewhere = ", ".join(one.panel for one in decisions if not one.holds)
        verdict, reason = CAVEAT, f"in {len(held)} of {len(decisions)} panels; not in: {elsewhere}"
    elif not all(one.clear for one in held):
        verdict, reason = CAVEAT, "by no more than the deviations over seeds"
    else:
        verdict, reason = HOLDS, ""
    return ClaimVerdict(text=claim.text, where=claim.where, verdict=verdict, reason=reason, decisions=decisions)


def _decide(claim: PaperClaim, panel: PanelRows, panels: Sequence[PanelRows]) -> Decision | None:
    left = _number(claim.left, panel, panels)
    right = (claim.right, 0.0) if isinstance(claim.right, float) else _number(claim.right, panel, panels)
    if left is None or right is None:
        return None
    (a, spread_a), (b, spread_b) = left, right
    bound = b * claim.times
    if claim.relation == "close":
        holds = abs(a - bound) <= claim.by
    elif claim.relation == "above":
        holds = a > bound + claim.by
    else:
        holds = a < bound - claim.by
    deviation = math.hypot(spread_a, spread_b * claim.times)
    clear = claim.relation == "close" or not abs(a - bound) <= deviation
    shown = [None if math.isinf(value) else value for value in (a, b)]
    return Decision(panel=panel.name, left=shown[0], right=shown[1], holds=holds, clear=clear)


def _number(side: ClaimSide, panel: PanelRows, panels: Sequence[PanelRows]) -> tuple[float, float] | None:
    where = next((one for one in panels if one.name == side.panel), None) if side.panel else panel
    row = where.row(side.row) if where is not None else None
    return None if row is None else (row.value(side.metric), row.deviation(side.metric))


def beside(published: Sequence[Published], panels: Sequence[PanelRows]) -> list[dict[str, Any]]:
    """Published numbers with ours beside them."""
    lines = []
    for number in published:
        side = ClaimSide(row=number.row, metric=number.metric, panel=number.panel)
        ours = _number(side, panels[0], panels) if panels else None
        about = {"panel": number.panel, "row": number.row, "metric": number.metric, "where": number.where}
        lines.append({**about, "published": number.value, "ours": None if ours is None else ours[0]})
    return lines
