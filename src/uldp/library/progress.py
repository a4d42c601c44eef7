"""What is shown while a caller waits: a bar in terminals and notebooks; and Ctrl-C that ends after a round."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count

from uldp.runtimes.result import RoundReport


@contextmanager
def progress_bar(label: str, rounds: int, show: bool | None = None) -> Iterator[Callable[[RoundReport], None]]:
    """A bar with round, metric and epsilon. ``show`` is None for terminals and notebooks only."""
    with _bar(label, rounds, show) as update:
        yield lambda report: update(report.round, f"{report.shown_metric}  epsilon {report.shown_epsilon}")


@contextmanager
def steps_bar(label: str, steps: int, show: bool | None = None) -> Iterator[Callable[[], None]]:
    """A bar that goes on by one with every call. ``show`` as for :func:`progress_bar`."""
    done = count(1)
    with _bar(label, steps, show) as update:
        yield lambda: update(min(next(done), steps), "")


@contextmanager
def _bar(label: str, total: int, show: bool | None) -> Iterator[Callable[[int, str], None]]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    if show is False or (show is None and not (console.is_terminal or console.is_jupyter)):
        yield lambda completed, note: None
        return
    description, note = TextColumn("{task.description}"), TextColumn("{task.fields[note]}")
    columns = (description, BarColumn(bar_width=24), MofNCompleteColumn(), note, TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(label, total=total, note="")
        yield lambda completed, note: bar.update(task, completed=completed, note=note)


@contextmanager
def stopping_after_the_round() -> Iterator[Callable[[], bool]]:
    """The first Ctrl-C is remembered until the round is over, a second one acts at once."""
    pressed = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield pressed.is_set
        return
    before = signal.getsignal(signal.SIGINT)

    def remember(*_: object) -> None:
        pressed.set()
        signal.signal(signal.SIGINT, before or signal.default_int_handler)

    signal.signal(signal.SIGINT, remember)
    try:
        yield pressed.is_set
    finally:
        signal.signal(signal.SIGINT, before or signal.default_int_handler)
