"""Errors, drawn as a tree. The class says whose fault it is; the text names the place, the value and the remedy.

::

    UldpError
     +-- InputError          what you gave us: exit code 2
     |    +-- ConfigError    an experiment file, an option or an argument
     |    +-- DataError      a table, a schema, a roster
     |    +-- ModelError     a model that cannot be trained here, or that returned NaN
     |    +-- RunError       a run directory or a checkpoint
     +-- MessageRefused      what another party sent: nothing was changed by it
     +-- BudgetExhausted     the next release would exceed the privacy budget
"""

from __future__ import annotations

import difflib
import math
import traceback
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import date, time
from pathlib import Path
from typing import Any, Final


def did_you_mean(given: str, known: Iterable[str]) -> str:
    """A hint at the name that was probably meant, or nothing.

    >>> did_you_mean("uldp-afg", ["uldp-avg", "fedavg"])
    ". Did you mean 'uldp-avg'?"
    """
    close = difflib.get_close_matches(given.lower(), known, n=1)
    return f". Did you mean {close[0]!r}?" if close else ""


def first_line(error: BaseException) -> str:
    """Somebody else's error as part of one sentence of ours.

    >>> first_line(ValueError("no\\nmore"))
    'ValueError: no'
    """
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0]}" if text else type(error).__name__


def located(error: BaseException) -> str:
    """An error that nobody foresaw: its class, and the last line of ours on the way to it. Never its text, for that may
    quote somebody's data.

    >>> located(ValueError("of patient 17"))
    'ValueError'
    """
    package = Path(__file__).parent
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if package in Path(frame.filename).parents and frame.filename != __file__
    ]
    if not frames:
        return type(error).__name__
    file = Path(frames[-1].filename).relative_to(package.parent)
    return f"{type(error).__name__} in {file.as_posix()}, line {frames[-1].lineno}"


MAX_FOREIGN: Final = 400
"""Characters of another party's text that are shown."""
MAX_MESSAGE: Final = 1000
"""Characters of any message: whatever was given to us, an error is one sentence on one line."""
MAX_SHOWN: Final = 80
"""Characters of a value in a message."""
MAX_LISTED: Final = 4
"""Entries of a list in a message."""


def printable(text: str, most: int = MAX_FOREIGN) -> str:
    """Another party's text for a log or a terminal: one line, no control characters, not without end.

    >>> printable("no\\nmore\\x1b[2J")
    'no?more?[2J'
    """
    shown = "".join(sign if sign.isprintable() else "?" for sign in text[:most])
    return shown if len(text) <= most else f"{shown}..."


def shown(value: object) -> str:
    """A setting for an error message: plain values as Python writes them, but not without end.

    Of anything else the type and the shape: a data frame in the wrong place must not print somebody's records.

    >>> shown("ward"), shown([1, 2.5]), shown(list("abcdef")), shown([[1, 2], {"a": 1}])
    ("'ward'", '[1, 2.5]', "['a', 'b', 'c', 'd', ... 6 in all]", '[a list of 2, a dict of 1]')
    >>> import numpy as np
    >>> shown(np.zeros((3, 4))), shown(10**5000)
    ('a ndarray of shape (3, 4)', 'a whole number of 5001 digits')
    """
    if isinstance(value, list | tuple):
        listed = [_shown_entry(entry) for entry in value[:MAX_LISTED]]
        more = [f"... {len(value)} in all"] if len(value) > MAX_LISTED else []
        return f"[{', '.join([*listed, *more])}]"
    return _shown_entry(value)


def _shown_entry(value: object) -> str:
    if isinstance(value, int) and value.bit_length() > 4 * MAX_SHOWN:
        return f"a whole number of {math.floor(math.log10(abs(value))) + 1} digits"
    if isinstance(value, str | bytes):
        text = repr(value[: MAX_SHOWN + 1])
        return text if len(value) <= MAX_SHOWN else f"{value[:MAX_SHOWN]!r}... ({len(value)} characters)"
    if value is None or isinstance(value, bool | int | float | date | time):
        return repr(value)
    kind = type(value).__name__
    if isinstance(value, Mapping | list | tuple | set | frozenset):
        return f"a {kind} of {len(value)}"
    shape = getattr(value, "shape", None)
    return f"a {kind} of shape {shape}" if isinstance(shape, tuple) else f"a {kind}"


class UldpError(Exception):
    """Base class of all errors raised on purpose by this package."""

    exit_code = 1

    def __init__(self, message: str, *, location: str = "", value: Any = None) -> None:
        self.message = printable(message, MAX_MESSAGE)
        self.location = printable(location)
        self.value = value
        super().__init__(f"{self.location}: {self.message}" if location else self.message)

    def to_json(self) -> dict[str, Any]:
        """The error as the JSON document that every command prints with ``--json``."""
        value = self.value
        if isinstance(value, str):
            value = printable(value)
        elif not isinstance(value, int | float | bool | None) or (isinstance(value, int) and abs(value) >> 63):
            value = shown(value)
        elif isinstance(value, float) and not math.isfinite(value):
            value = repr(float(value))  # JSON has no nan and no inf
        return {"error": {"location": self.location, "value": value, "message": self.message}}


def require(holds: bool, location: str, value: Any, wanted: str) -> None:
    """Refuse a setting that does not hold, in one sentence.

    >>> require(False, "method.clip", -1, "a positive number")
    Traceback (most recent call last):
    uldp.errors.ConfigError: method.clip: a positive number, not -1
    """
    if not holds:
        raise ConfigError(f"{wanted}, not {shown(value)}", location=location, value=value)


class InputError(UldpError):
    """Something that the caller gave us is wrong."""

    exit_code = 2


class ConfigError(InputError):
    """An experiment file, an option or an argument is wrong."""


class DataError(InputError):
    """A table, a schema or a roster is wrong."""


class ModelError(InputError):
    """A model cannot be trained here, or returned something that is not a number."""


class RunError(InputError):
    """A run directory or a checkpoint cannot be used."""


class MessageRefused(UldpError):
    """Another party's message was malformed, out of turn or foreign; nothing was changed by it.

    Its text may quote that message, so it is made fit for logs.
    """

    def __init__(self, message: str, *, location: str = "", value: Any = None) -> None:
        super().__init__(printable(message), location=printable(location), value=value)


class BudgetExhausted(UldpError):
    """The next release would exceed the privacy budget; it was not made."""


@contextmanager
def concerning(what: str) -> Iterator[None]:
    """Errors inside also say what they are about. Those about data do not: they are the same whatever is done with it.

    >>> with concerning("method uldp-sgd"):
    ...     raise ConfigError("a positive number, not -1", location="method.clip")
    Traceback (most recent call last):
    uldp.errors.ConfigError: method.clip: a positive number, not -1 (method uldp-sgd)
    """
    try:
        yield
    except DataError:
        raise
    except UldpError as error:
        raise type(error)(f"{error.message} ({what})", location=error.location, value=error.value) from error


@contextmanager
def stopping_clearly(location: str) -> Iterator[None]:
    """An error that nobody foresaw stops a run with one sentence, like those that somebody did.

    >>> with stopping_clearly("server"):
    ...     1 / 0
    Traceback (most recent call last):
    uldp.errors.RunError: server: stopped by an error that nobody foresaw (ZeroDivisionError); please report it
    """
    try:
        yield
    except UldpError:
        raise
    except Exception as error:
        raise RunError(
            f"stopped by an error that nobody foresaw ({located(error)}); please report it", location=location
        ) from error


@contextmanager
def own_code(kind: type[UldpError], what: str, location: str) -> Iterator[None]:
    """Whatever code of somebody's own raises inside is an error of ours; Ctrl-C stays what it is.

    ``sys.exit(0)`` too: it would end a command as if all had been done.

    >>> with own_code(ModelError, "'nets:make' failed", "model.name"):
    ...     raise SystemExit(0)
    Traceback (most recent call last):
    uldp.errors.ModelError: model.name: 'nets:make' failed (SystemExit: 0)
    """
    try:
        yield
    except (UldpError, KeyboardInterrupt):
        raise
    except BaseException as error:
        raise kind(f"{what} ({first_line(error)})", location=location) from error
