"""Read what a run wrote: its result with the model, ready to predict."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from uldp.errors import ConfigError, RunError
from uldp.experiment.config import GIVEN
from uldp.library.training import checked_path
from uldp.privacy.statement import Statement
from uldp.runs import spending
from uldp.runs.directory import RunDirectory
from uldp.runs.totals import SpentRun
from uldp.runs.trained import TrainedModel
from uldp.runtimes.result import Result, RoundReport

if TYPE_CHECKING:
    from uldp.experiment.build import OwnModel


def load(path: Path | str, model: OwnModel | None = None) -> Result:
    """Read a finished run from its directory; nothing is trained, and no record is read.

    Args:
        path: The run directory, written by ``uldp run``, ``train(directory=...)`` or :meth:`Result.save`.
        model: The module that was trained, or its factory, where it was handed over in Python. A copy is given the
            trained parameters.

    Returns:
        The result. Its ``total`` counts the run among those of this process.

    Raises:
        RunError: No finished run is there, or its files are damaged.

    Example:
        >>> load("no-such-run")
        Traceback (most recent call last):
        uldp.errors.RunError: no-such-run: ...
    """
    directory = RunDirectory.open(checked_path(path))
    if not directory.finished:
        why = "is not finished; uldp.resume(path), or uldp.train with the same arguments and directory, goes on"
        raise RunError(why, location=str(path), value=str(path))
    experiment, trained = directory.experiment(), TrainedModel.of(directory)
    statement = Statement.from_json(directory.read_json("statement.json"))
    written, times = directory.read_json("result.json"), directory.log.times()
    reports = [
        RoundReport.from_json(line, experiment.method.rounds, times.get(line.get("round", 0), 0.0))
        for line in directory.log.metrics()
    ]
    handed_over = experiment.model.name == GIVEN
    if model is not None and not handed_over:
        raise ConfigError(f"the run's model is {experiment.model.name!r}; leave it out", location="model")
    fitted = None if handed_over and model is None else trained.fitted_model(model)
    spent = SpentRun.read(directory.path.resolve())
    spending.charge(spent)
    return Result(
        dataset=str(written.get("dataset", "")),
        method=experiment.method_name,
        model=trained.x,
        reports=tuple(reports),
        statement=statement,
        saturated=int(written.get("saturated", 0)),
        constant_loss=written.get("constant_loss"),
        constant_accuracy=written.get("constant_accuracy"),
        left_out=0,
        seconds=sum(report.seconds for report in reports),
        run=str(directory.path),
        entries=directory.log.ledger_entries(),
        spent=spent,
        fitted=fitted,
        complete=len(reports) >= experiment.method.rounds,
        silos=tuple(map(str, written.get("silos", ()))),
        users=written.get("users"),
    )
