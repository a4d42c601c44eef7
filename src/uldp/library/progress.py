"""What is shown while a caller waits: a bar in terminals and notebooks; and Ctrl-C that ends after a round."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from uldp.runtimes.result import RoundReport


@contextmanager
def progress_bar(label: str, rounds: int, show: bool | None = None) -> Iterator[Callable[[RoundReport], None]]:
    """A bar with round, metric and epsilon. ``show`` is None for terminals and notebooks only."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    if show is False or (show is None and not (console.is_terminal or console.is_jupyter)):
        yield lambda report: None
        return
    description, note = TextColumn("{task.description}"), TextColumn("{task.fields[note]}")
    columns = (description, BarColumn(bar_width=24), MofNCompleteColumn(), note, TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(label, total=rounds, note="")

        def show_round(report: RoundReport) -> None:
            note = f"{report.shown_metric}  epsilon {report.shown_epsilon}"
            bar.update(task, completed=report.round, note=note)

        yield show_round


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
