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

import contextlib
import difflib
import math
import sys
import traceback
import warnings
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


def describe_unexpected(error: BaseException) -> str:
    """An unexpected error: its class, and the last line of ours on the way to it. Never its text, for that may
    quote somebody's data.

    >>> describe_unexpected(ValueError("of patient 17"))
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


def warn_caller(text: str, category: type[Warning] = UserWarning) -> None:
    """Warn at the line that called uldp, however deep inside it the reason was found."""
    package, frame, level = Path(__file__).parent, sys._getframe(1), 2
    while frame.f_back and (
        package in Path(frame.f_code.co_filename).parents or frame.f_code.co_filename == contextlib.__file__
    ):
        frame, level = frame.f_back, level + 1
    warnings.warn(text, category, stacklevel=level)


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


def format_value(value: object) -> str:
    """A setting for an error message: plain values as Python writes them, but not without end.

    Of anything else the type and the shape: a data frame in the wrong place must not print somebody's records.

    >>> format_value("ward"), format_value([1, 2.5]), format_value(list("abcdef")), format_value([[1, 2], {"a": 1}])
    ("'ward'", '[1, 2.5]', "['a', 'b', 'c', 'd', ... 6 in all]", '[a list of 2, a dict of 1]')
    >>> import numpy as np
    >>> format_value(np.zeros((3, 4))), format_value(10**5000)
    ('a ndarray of shape (3, 4)', 'a whole number of 5001 digits')
    """
    if isinstance(value, list | tuple):
        listed = [_format_entry(entry) for entry in value[:MAX_LISTED]]
        more = [f"... {len(value)} in all"] if len(value) > MAX_LISTED else []
        return f"[{', '.join([*listed, *more])}]"
    return _format_entry(value)


def _format_entry(value: object) -> str:
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
    """Base class of all errors raised on purpose by this package.

    Args:
        message: One sentence: what is wrong with which value, and the remedy.
        location: The setting, file or party that it concerns.
        value: What was found there.

    Example:
        >>> error = ConfigError("a positive number, not -1", location="method.clip", value=-1)
        >>> str(error), error.exit_code
        ('method.clip: a positive number, not -1', 2)
        >>> error.to_json()["error"]["location"]
        'method.clip'
    """

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
            value = format_value(value)
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
        raise ConfigError(f"{wanted}, not {format_value(value)}", location=location, value=value)


def check_keys(tree: Any, known: Iterable[str], location: str, owner: str = "") -> None:
    """Refuse anything but a table with only ``known`` keys; ``owner`` is whose keys they are.

    >>> check_keys({"epsillon": 2.0}, ("delta", "epsilon"), "privacy")
    Traceback (most recent call last):
    uldp.errors.ConfigError: privacy: unknown key 'epsillon'. Known keys: delta, epsilon. Did you mean 'epsilon'?
    """
    known = list(known)
    require(isinstance(tree, Mapping), location, tree, f"a table with the keys {', '.join(known)}")
    for key in tree:
        if key not in known:
            what = f"unknown key {format_value(key)} for {owner}" if owner else f"unknown key {format_value(key)}"
            hint = f"Known keys: {', '.join(known)}{did_you_mean(str(key), known)}"
            raise ConfigError(f"{what}. {hint}", location=location, value=key)


class InputError(UldpError):
    """Something that the caller passed is wrong: the base class of such errors, with exit code 2.

    Example:
        >>> issubclass(DataError, InputError), InputError.exit_code
        (True, 2)
    """

    exit_code = 2


class ConfigError(InputError):
    """An experiment file, an option or an argument is wrong.

    Example:
        >>> from uldp import Experiment
        >>> Experiment.from_tree({"data": {"dataset": "synthetic"}, "method": {"name": "uldp-afg"}})
        Traceback (most recent call last):
        uldp.errors.ConfigError: method.name: unknown method 'uldp-afg'...Did you mean 'uldp-avg'?
    """


class DataError(InputError):
    """A table, a schema or a roster is wrong. Its text never quotes a record.

    Example:
        >>> import numpy as np
        >>> from uldp import Records
        >>> Records(np.zeros((3, 2), np.float32), np.zeros(2, np.int64))
        Traceback (most recent call last):
        uldp.errors.DataError: 3 rows of features but 2 labels
    """


class ModelError(InputError):
    """A model cannot be trained here, or returned something that is not a number.

    Example:
        >>> raise ModelError("BatchNorm mixes records", location="model.name")
        Traceback (most recent call last):
        uldp.errors.ModelError: model.name: BatchNorm mixes records
    """


class RunError(InputError):
    """A run directory or a checkpoint cannot be used.

    Example:
        >>> import uldp
        >>> uldp.resume("no-such-run")
        Traceback (most recent call last):
        uldp.errors.RunError: no-such-run: ...
    """


class MessageRefused(UldpError):
    """Another party's message was malformed, out of turn or foreign; nothing was changed by it.

    Its text may quote that message, so it is made fit for logs.

    Example:
        >>> raise MessageRefused("no\\nmore", location="silo north")
        Traceback (most recent call last):
        uldp.errors.MessageRefused: silo north: no?more
    """

    def __init__(self, message: str, *, location: str = "", value: Any = None) -> None:
        super().__init__(printable(message), location=printable(location), value=value)


class BudgetExhausted(UldpError):
    """The next release would exceed the privacy budget; it was not made.

    Example:
        >>> from uldp.privacy.events import Gaussian
        >>> from uldp.privacy.ledger import Entry, Ledger
        >>> Ledger(delta=1e-5, budget=1.0).charge(Entry(1, Gaussian(0.5), "digest"))
        Traceback (most recent call last):
        uldp.errors.BudgetExhausted: privacy.epsilon: ...
    """


@contextmanager
def error_context(what: str) -> Iterator[None]:
    """Errors inside also say what they are about. Those about data do not: they are the same whatever is done with it.

    >>> with error_context("method uldp-sgd"):
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
    """An unexpected error stops a run with one sentence, like an expected one.

    >>> with stopping_clearly("server"):
    ...     1 / 0
    Traceback (most recent call last):
    uldp.errors.RunError: server: stopped by an unexpected error (ZeroDivisionError); please report it
    """
    try:
        yield
    except UldpError:
        raise
    except Exception as error:
        raise RunError(
            f"stopped by an unexpected error ({describe_unexpected(error)}); please report it",
            location=location,
        ) from None  # its text may quote records


@contextmanager
def foreign_exceptions(*authors: object, location: str) -> Iterator[None]:
    """An exception in a class that is not part of uldp becomes one sentence with its type and line.

    Not its text, which may quote records; Python does not print it below ours either. Whoever debugs the class finds it
    in ``__context__``.

    >>> Own = type("Own", (), {"__module__": "my"})
    >>> with foreign_exceptions(Own(), location="method.silo"):
    ...     raise KeyError("patient 17")
    Traceback (most recent call last):
    uldp.errors.ModelError: method.silo: my:Own raised KeyError (<doctest uldp.errors.foreign_exceptions[1]>, line 2)
    """
    try:
        yield
    except UldpError:
        raise
    except Exception as error:
        foreign = [type(one) for one in authors if type(one).__module__.partition(".")[0] != "uldp"]
        if not foreign:
            raise
        names = " or ".join(f"{kind.__module__}:{kind.__qualname__}" for kind in foreign)
        line = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{Path(line.filename).name}, line {line.lineno}"
        raise ModelError(f"{names} raised {type(error).__name__} ({where})", location=location) from None


@contextmanager
def user_code(kind: type[UldpError], what: str, location: str) -> Iterator[None]:
    """An exception in third-party code becomes an error of uldp; Ctrl-C stays what it is.

    ``sys.exit(0)`` too: it would end a command as if it had succeeded.

    >>> with user_code(ModelError, "'nets:make' failed", "model.name"):
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
