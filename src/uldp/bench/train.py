"""``uldp bench train``: the trainer against simple code, Opacus and pfl; how it starts, and how it scales."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final

from uldp.bench import dp_sgd_epoch, plain_loop, scaling, start, user_round
from uldp.bench.machine import Case, Say, check_names, silent

CASES: Final[Mapping[str, Callable[[Say], Case]]] = {
    **{work.name: partial(plain_loop.run_case, work) for work in plain_loop.WORKLOADS},
    "dp-sgd-epoch": dp_sgd_epoch.run_case,
    "user-round": user_round.run_case,
    "start": start.run_case,
    "scaling": scaling.run_case,
}


def run_cases(names: Sequence[str] | None = None, say: Say = silent) -> list[Case]:
    """Measure the named cases (all by default)."""
    check_names(names, CASES)
    return [run(say) for name, run in CASES.items() if names is None or name in names]
