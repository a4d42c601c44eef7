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
    """A claim in one panel: both numbers, whether it holds, and whether by more than the seeds' deviations.

    ``one_seed``: nothing is known about these deviations.
    """

    panel: str
    left: float | None
    right: float | None
    holds: bool
    clear: bool
    one_seed: bool = False


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
    if any(one.one_seed for one in decisions):
        reason = "; ".join(filter(None, (reason, "one seed")))
    return ClaimVerdict(text=claim.text, where=claim.where, verdict=verdict, reason=reason, decisions=decisions)


def _decide(claim: PaperClaim, panel: PanelRows, panels: Sequence[PanelRows]) -> Decision | None:
    left = _number(claim.left, panel, panels)
    right = SideValue(claim.right) if isinstance(claim.right, float) else _number(claim.right, panel, panels)
    if left is None or right is None:
        return None
    a, b = left.value, right.value
    bound = b * claim.times
    if claim.relation == "close":
        holds = abs(a - bound) <= claim.by
    elif claim.relation == "above":
        holds = a > bound + claim.by
    else:
        holds = a < bound - claim.by
    deviation = math.hypot(left.deviation, right.deviation * claim.times)
    clear = claim.relation == "close" or not abs(a - bound) <= deviation
    shown = [None if math.isinf(value) else value for value in (a, b)]
    one_seed = left.one_seed or right.one_seed
    return Decision(panel=panel.name, left=shown[0], right=shown[1], holds=holds, clear=clear, one_seed=one_seed)


class SideValue(msgspec.Struct, frozen=True):
    """A number of a claim, its deviation over seeds, and whether it is of a training with one seed."""

    value: float
    deviation: float = 0.0
    one_seed: bool = False


def _number(side: ClaimSide, panel: PanelRows, panels: Sequence[PanelRows]) -> SideValue | None:
    where = next((one for one in panels if one.name == side.panel), None) if side.panel else panel
    row = where.row(side.row) if where is not None else None
    if row is None:
        return None
    one_seed = bool(row.curves) and not row.deviations and not side.metric.endswith("epsilon")
    return SideValue(row.value(side.metric), row.deviation(side.metric), one_seed)


def beside(published: Sequence[Published], panels: Sequence[PanelRows]) -> list[dict[str, Any]]:
    """Published numbers with ours beside them."""
    lines = []
    for number in published:
        side = ClaimSide(row=number.row, metric=number.metric, panel=number.panel)
        ours = _number(side, panels[0], panels) if panels else None
        about = {"panel": number.panel, "row": number.row, "metric": number.metric, "where": number.where}
        lines.append({**about, "published": number.value, "ours": None if ours is None else ours.value})
    return lines
