"""What commands share: where results go, how errors look.

Results go to stdout: text for people, or with ``--json`` one JSON document and nothing else. Progress, warnings and
errors for people go to stderr.
"""

from __future__ import annotations

import functools
import json
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, ParamSpec

import typer

from uldp.errors import ConfigError, DataError, InputError, UldpError, first_line

if TYPE_CHECKING:
    from uldp.runtimes.event_log import EventLog
    from uldp.runtimes.gauges import Gauges

P = ParamSpec("P")

NOTHING_STARTED = "stopped; nothing was started."


def report_errors(command: Callable[P, None]) -> Callable[P, None]:
    """Turn our errors into one sentence and an exit code: 2 for bad input, 1 for the rest."""

    @functools.wraps(command)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            with _report_memory_errors(), _own_code_that_leaves():
                command(*args, **kwargs)
        except UldpError as error:
            report(error, as_json=bool(kwargs.get("as_json")), printed=kwargs.get("log") == "json")
            raise typer.Exit(error.exit_code) from None
        except KeyboardInterrupt as stopped:
            if kwargs.get("log") != "json":
                typer.echo(str(stopped) or "stopped.", err=True)
            raise typer.Exit(130) from None
        except BrokenPipeError:  # the reader of our output has gone, as in `uldp methods | head`
            sys.stderr.close()
            raise typer.Exit(1) from None

    return wrapper


def report(error: UldpError, *, as_json: bool, printed: bool = False) -> None:
    """An error for people, unless it is in the log already, and as a document for programs."""
    if as_json:
        print_json(error.to_json())
    if not printed:
        typer.echo(f"error: {error}", err=True)


@contextmanager
def before_start() -> Iterator[None]:
    """Ctrl-C inside says that nothing was started, unless somebody deeper said something already."""
    try:
        yield
    except KeyboardInterrupt as stopped:
        raise KeyboardInterrupt(str(stopped) or NOTHING_STARTED) from None


@contextmanager
def ended_by_sigterm() -> Iterator[None]:
    """SIGTERM acts like Ctrl-C: everything that was started is stopped."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def _report_memory_errors() -> Iterator[None]:
    """Running out of memory is an error of the input: less of it may fit."""
    try:
        yield
    except (MemoryError, OSError, RuntimeError) as error:
        if isinstance(error, RecursionError):
            raise InputError("something that was given is nested too deep") from error
        if not isinstance(error, MemoryError) and "allocate memory" not in str(error).lower():  # PyTorch, fork
            raise
        raise InputError(
            "not enough memory for this; take fewer users, silos, records or parameters, or a machine with more"
        ) from error


@contextmanager
def _own_code_that_leaves() -> Iterator[None]:
    """A model or method of somebody's own may call ``sys.exit(0)`` at any time: nothing was done then."""
    try:
        yield
    except (Exception, KeyboardInterrupt):
        raise
    except BaseException as error:
        if isinstance(error, SystemExit) and isinstance(error.__context__, BrokenPipeError):
            raise error.__context__ from None  # rich leaves when nobody reads its output any more
        raise InputError(f"code of the experiment's own ended the command ({first_line(error)})") from error


@contextmanager
def name_options(options: Mapping[str, str]) -> Iterator[None]:
    """Errors inside name a command's own options: ``options`` maps locations to them."""
    try:
        yield
    except (ConfigError, DataError) as error:
        location = options.get(error.location or "", error.location)
        raise type(error)(error.message, location=location, value=error.value) from error


def print_json(tree: Any) -> None:
    typer.echo(json.dumps(tree, indent=2, allow_nan=False))


def print_table(headers: Sequence[str], rows: Sequence[Sequence[str]], title: str = "") -> None:
    """A table that fits the terminal."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    table = Table(*headers, title=title or None, box=SIMPLE_HEAD, title_justify="left")
    for row in rows:
        table.add_row(*row)
    Console(highlight=False, soft_wrap=False, width=None if sys.stdout.isatty() else 120).print(table, markup=False)


def print_metrics(metrics: Mapping[str, float], constant_loss: float | None = None) -> None:
    """The headline metric first; the loss beside that of always predicting the base rate, or the mean."""
    from uldp.runtimes.result import metric_names

    rows = [(name, f"{metrics[name]:.4f}") for name in metric_names(metrics)]
    if constant_loss is not None:
        rows = [(name, f"{text} (base rate: {constant_loss:.4f})" if name == "loss" else text) for name, text in rows]
    print_table(("test metric", "value"), rows)


def say(text: str) -> None:
    """Print a line for people on stderr, or write it to the command's log of events."""
    log = _LOG.get()
    if log is None:
        typer.echo(text, err=True)
    else:
        log.say(text)


def warn(text: str) -> None:
    log = _LOG.get()
    if log is None:
        typer.echo(f"warning: {text}", err=True)
    else:
        log.event("note", text, level="warning")


_LOG: ContextVar[EventLog | None] = ContextVar("log", default=None)


@contextmanager
def event_log(party: str, form: str) -> Iterator[EventLog]:
    """A log of events on stderr; what a command says inside goes there, an error that ends it too."""
    from uldp.runtimes.event_log import EventLog

    log = EventLog(party, form, functools.partial(typer.echo, err=True))
    before = _LOG.set(log)
    try:
        with log.log_errors():
            yield log
    finally:
        _LOG.reset(before)


@contextmanager
def gauges_at(port: int | None) -> Iterator[Gauges]:
    """Health and metrics, served while the block runs if there is a port."""
    from uldp.runtimes.gauges import Gauges, GaugeServer

    gauges = Gauges()
    with nullcontext() if port is None else GaugeServer(gauges, port):
        yield gauges


def paragraphs(lines: Sequence[str]) -> str:
    """Sentences wrapped for a terminal, one bullet each."""
    import textwrap

    return "\n".join(
        textwrap.fill(line, 100, initial_indent="  - ", subsequent_indent="    ", break_long_words=False)
        for line in lines
    )
