"""Audits what is right with many seeds, and counts how often it is refuted: it should be never.

``make audit-seeds`` runs a hundred; a small form is in ``test_audit.py``.
"""

from __future__ import annotations

import argparse
import time
from collections import Counter

from uldp.audits.audit import audit_of, size_of
from uldp.library.arguments import CallArguments
from uldp.library.auditing import public_shape

SETTINGS = {
    "uldp-avg": {"epsilon": 4.0, "rounds": 20},
    "uldp-avg-w, plain": {"epsilon": 4.0, "rounds": 20, "aggregation": "plain"},
    "uldp-sgd, sampled": {"epsilon": 4.0, "rounds": 10, "options": {"method.sample_rate": 0.3}},
    "uldp-naive": {"epsilon": 4.0, "rounds": 20},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--canaries", type=int, help="of each audit")
    parser.add_argument("--setting", choices=SETTINGS, action="append")
    arguments = parser.parse_args()
    for name in arguments.setting or SETTINGS:
        what = {"method": name.partition(",")[0], **SETTINGS[name]}
        prepared = public_shape(CallArguments.of("synthetic", what))
        size = size_of(prepared, arguments.canaries)
        verdicts: Counter[str] = Counter()
        reached, began = [], time.process_time()
        for seed in range(arguments.seeds):
            made = audit_of(prepared, size, seed=seed)
            doubtful = any(found.verdict.startswith("in doubt") for found in made.found)
            verdicts[made.verdict if made.refuted or not doubtful else "in doubt"] += 1
            reached += [bound.epsilon for bound in made.found[0].bounds if bound.name.startswith("trade-off")]
        seconds = (time.process_time() - began) / arguments.seeds
        by_canaries = f"; trade-off at least {min(reached):.3g} of {size.epsilon:.3g}" if reached else ""
        counts = ", ".join(f"{count} {verdict}" for verdict, count in sorted(verdicts.items()))
        number = size.runs * size.per_run
        print(
            f"{name}: {arguments.seeds} seeds, {number:,} canaries: {counts}{by_canaries}; {seconds:.1f} s each",
            flush=True,
        )


if __name__ == "__main__":
    main()
