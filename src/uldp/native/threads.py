"""Work spread over threads."""

from __future__ import annotations

import functools
import itertools
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")

_AHEAD: Final = 2
"""Results per thread that may be there before they are fetched: memory stays bounded."""


@functools.cache
def _pool(threads: int, process: int) -> ThreadPoolExecutor:
    """Threads that stay, with their workspaces. A forked process has none of its parent's threads, and makes others."""
    return ThreadPoolExecutor(threads, thread_name_prefix="uldp")


@dataclass
class _Job(Generic[Item, Result]):
    item: Item
    future: Future[Result]


def in_threads(work: Callable[[Item], Result], items: Iterable[Item], threads: int) -> Iterator[Result]:
    """Results in the order of the items. The calling thread is one of ``threads``, and works while it waits.

    ``work`` must not call this function: threads would wait for each other.
    """
    pool, source = _pool(threads - 1, os.getpid()), iter(items)
    waiting: deque[_Job[Item, Result]] = deque()
    try:
        while True:
            for item in itertools.islice(source, _AHEAD * threads - len(waiting)):
                waiting.append(_Job(item, pool.submit(work, item)))
            if not waiting:
                return
            if not waiting[0].future.done():
                untouched = next((task for task in waiting if task.future.cancel()), None)
                if untouched is not None:
                    untouched.future = _run_now(work, untouched.item)
                    continue
            yield waiting.popleft().future.result()
    finally:
        futures = [task.future for task in waiting]
        for future in futures:
            future.cancel()
        wait(futures)


def _run_now(work: Callable[[Item], Result], item: Item) -> Future[Result]:
    """``work(item)`` here and now. What it raises is raised when its turn comes."""
    future: Future[Result] = Future()
    try:
        future.set_result(work(item))
    except Exception as error:
        future.set_exception(error)
    return future
