"""What ``uldp serve`` and ``uldp join`` say while they run: lines for people, or lines of JSON with fixed fields.

A field is a fact about a party, a round or the federation. None is about a person: no record, no id, no count of
records, and no time but that of the line itself.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, Final

from uldp.errors import DataError, UldpError, describe_unexpected, printable, require
from uldp.runtimes.result import RoundReport

FORMATS: Final = ("text", "json")
FIELDS: Final[dict[str, str]] = {
    "time": "when the line was written, UTC",
    "level": "info, warning or error",
    "party": "server, or the silo's name",
    "event": "what kind of line it is",
    "message": "one sentence",
    "round": "the round, from 1",
    "rounds": "how many there will be",
    "epsilon": "spent so far by the run; null where there is no guarantee",
    "head": "where the audit trail ends, NUMBER:DIGEST",
}
"""All fields that a line may have; the first five are in every line."""
EVENTS: Final[dict[str, str]] = {
    "started": "the party is up",
    "note": "anything else that people should know: who is late, what was started again",
    "round": "the server has finished a round",
    "released": "a silo wrote an entry of its audit trail",
    "refused": "a silo refused a request",
    "finished": "the experiment is over",
    "stopped": "ended from outside; nothing is lost",
    "error": "ended by an error",
}


DATA_ERROR: Final = "the data cannot be used; `uldp doctor` on this machine says why"
OWNER_ONLY: Final = "cannot respond; what is wrong may be about data: `join` with --log text says it"


class EventLog:
    """Writes lines for people, or of JSON.

    Args:
        party: ``server``, or the silo's name.
        form: ``text`` or ``json``.
        write: Takes a line.
    """

    def __init__(self, party: str, form: str, write: Callable[[str], None]) -> None:
        require(form in FORMATS, "--log", form, "text or json")
        self._party, self._write = party, write
        self.as_json = form == "json"

    def say(self, text: str) -> None:
        """A line that is a note."""
        self.event("note", text)

    def event(self, event: str, message: str, level: str = "info", **fields: Any) -> None:
        """A line of this kind; ``fields`` are left out for people, who read the sentence."""
        if not self.as_json:
            self._write(f"warning: {message}" if level == "warning" else message)
            return
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        line = {"time": now, "level": level, "party": self._party, "event": event, "message": printable(message, 2000)}
        self._write(json.dumps({**line, **fields}, allow_nan=False))

    def round(self, report: RoundReport) -> None:
        """A round of the server."""
        metric = f"  {report.shown_metric}" if report.metrics else ""
        without = f"  without {', '.join(report.missing)}" if report.missing else ""
        text = f"round {report.round}/{report.rounds}{metric}  epsilon {report.shown_epsilon}"
        # Seconds are for who looks at the terminal: a log is collected, and shows one user's many records in them.
        seconds = "" if self.as_json else f"  {report.seconds:.1f} s"
        epsilon = report.epsilon if math.isfinite(report.epsilon) else None
        self.event("round", text + seconds + without, round=report.round, rounds=report.rounds, epsilon=epsilon)

    @contextmanager
    def log_errors(self) -> Iterator[None]:
        """What ends the party is a line too, where lines are JSON; for people it is printed later."""
        try:
            yield
        except UldpError as error:
            if self.as_json:
                about_data = isinstance(error, DataError)  # which may name a line or a column
                self.event("error", DATA_ERROR if about_data else str(error), level="error")
            raise
        except KeyboardInterrupt:
            if self.as_json:
                self.event("stopped", "stopped; the same command continues")
            raise

    def handler(self) -> logging.Handler:
        """For Python's logging: the silo's process writes there."""
        return _EventHandler(self)


class _EventHandler(logging.Handler):
    """Lines of Python's logging as lines of a log of events. Of an exception its class and place, never its text."""

    def __init__(self, log: EventLog) -> None:
        super().__init__(logging.INFO)
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        message = OWNER_ONLY if getattr(record, "owner_only", False) else record.getMessage()
        if record.exc_info and record.exc_info[1] is not None:
            message = f"{message}: {describe_unexpected(record.exc_info[1])}"
        level = "info" if record.levelno < logging.WARNING else record.levelname.lower()
        facts = {name: getattr(record, name) for name in ("round", "head") if hasattr(record, name)}
        self._log.event(getattr(record, "event", "note"), message, level, **facts)
