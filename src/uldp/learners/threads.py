"""Work spread over threads."""

from __future__ import annotations

import functools
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


@functools.cache
def _pool(threads: int, process: int) -> ThreadPoolExecutor:
    """Threads that stay, with their workspaces. A forked process has none of its parent's threads, and makes others."""
    return ThreadPoolExecutor(threads, thread_name_prefix="uldp")


def in_threads(work: Callable[[Item], Result], items: Iterable[Item], threads: int) -> Iterator[Result]:
    """Results in the order of the items; at most ``threads`` of them wait to be fetched.

    ``work`` must not call this function: threads would wait for each other.
    """
    pool = _pool(threads, os.getpid())
    waiting: deque[Future[Result]] = deque()
    try:
        for item in items:
            waiting.append(pool.submit(work, item))
            if len(waiting) > threads:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        for future in waiting:
            future.cancel()
        wait(waiting)
