"""The library as a script with types: plan, train, compare, count what was spent, save and load.

``python make_data.py`` in ``examples/hospitals`` writes the tables. A test type-checks this file with ``mypy --strict``
and runs it.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pandas as pd
from torch import nn

import uldp


def network(shape: tuple[int, ...], task: uldp.Task) -> nn.Module:
    """A factory: it is told how many features and classes there are."""
    return nn.Sequential(nn.Linear(shape[0], 8), nn.Tanh(), nn.Linear(8, task.classes))


def patient(report: uldp.RoundReport) -> bool:
    """A callback that ends training; the number of rounds must not depend on what was looked at."""
    return report.round == 4


def main(data: Path, out: Path) -> None:
    frames = {name: pd.read_csv(data / f"{name}.csv") for name in ("north", "harbour")}
    test = pd.read_csv(data / "holdout.csv")
    schema = (
        uldp.Schema.classes("outcome", [0, 1])
        .numeric("age", 0, 110)
        .numeric("blood_pressure", 60, 240)
        .category("smoker", ["no", "yes"])
    )
    hospitals = uldp.Federation.from_frames(
        frames, user="patient_id", label="outcome", schema=schema, users=3000, test=test
    )

    planned: uldp.TrainingPlan = uldp.plan(hospitals, model=network, epsilon=4.0, rounds=5)
    noise: float = uldp.noise_multiplier("uldp-avg-w", epsilon=4.0, rounds=5)
    spent: float = uldp.epsilon(uldp.UldpAvg(rounds=5, sample_rate=0.5), noise_multiplier=noise, silos=2)
    print(f"noise {planned.noise_multiplier:.2f}, about {noise:.2f}; with every second user {spent:.2f}")

    part: uldp.Result = planned.train(callbacks=[patient], progress=False)
    result = part.resume()
    history: pd.DataFrame = result.history
    print(history.tail(1), result.predict(test)[:3], result.predict_proba(test).shape, result.module())
    result.plot().savefig(out / "history.png")

    comparison: uldp.Comparison = uldp.compare(
        hospitals, {"all": uldp.UldpAvg(), "half": uldp.UldpAvg(sample_rate=0.5)}, epsilon=4.0, rounds=2, progress=False
    )
    frame: pd.DataFrame = comparison.frame
    print(frame[["accuracy", "epsilon"]])

    loaded = uldp.load(result.save(out / "trial"), model=network)
    total: uldp.Total = uldp.total(loaded, *comparison.results.values())
    print(loaded.statement.headline(), total.epsilon)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
