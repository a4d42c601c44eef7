"""Work on large numbers spread over processes.

Arithmetic on large numbers holds the interpreter's lock, so threads do not help. A forked child inherits tables and
inputs without copying them and sends back nothing but numbers, through a pipe.

A child is a mere calculator. It ends by ``os._exit``: no exit handlers of the parent run in it, and none of the
parent's half-filled buffers is written twice. It ignores Ctrl-C, which is for the parent; the parent ends its children
whenever it leaves here, by whatever way. If the parent cannot, because it was killed, the system ends them: nobody
reads their pipes any more.
"""

from __future__ import annotations

import contextlib
import fcntl
import gc
import itertools
import os
import select
import signal
import struct
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import Final, Never

from gmpy2 import mpz

from uldp.crypto.integers import pack, unpack
from uldp.errors import first_line, require

Work = Callable[[range], Sequence[int]]

_HEADER: Final = struct.Struct("<?Q")  # whether it went well, and the bytes that follow
_CHUNK: Final = 1 << 20
CAN_FORK: Final = sys.platform == "linux"  # elsewhere a fork without exec is unsafe or does not exist


def parts(count: int, workers: int) -> list[range]:
    """``range(count)`` cut into at most ``workers`` contiguous parts of nearly equal length, none of them empty.

    >>> parts(5, 2)
    [range(0, 2), range(2, 5)]
    """
    workers = min(workers, count)
    cuts = [count * worker // workers for worker in range(workers + 1)] if workers else []
    return [range(start, end) for start, end in itertools.pairwise(cuts)]


def spread(work: Work, count: int, workers: int, width: int) -> list[mpz]:
    """``work`` of all parts of ``range(count)``, one after the other, done by ``workers`` processes.

    ``work`` returns numbers from 0 up that fit into ``width`` bytes, for each index as many as it likes. The caller's
    process does the first part; where there is one worker, or no safe fork, it does everything. Do not use BLAS or
    locks in ``work``: other threads of the parent do not exist in a child, and what they held stays held.
    """
    require(workers >= 1, "workers", workers, "at least one worker")
    if workers == 1 or count < 2 or not CAN_FORK:
        return [mpz(value) for value in work(range(count))]
    mine, *others = parts(count, workers)
    children: list[_WorkerProcess] = []
    with _hold_interrupts() as interrupts:
        try:
            for part in others:
                _start(work, part, width, children)
            with interrupts.allow():
                results = [mpz(value) for value in work(mine)]
                for child in children:
                    results += child.numbers(width)
                return results
        finally:
            for child in children:
                child.end()


class _Interrupts:
    """Ctrl-C while children live: it waits, but where it is wanted, and comes through there once."""

    def __init__(self, handler: Callable[[int, FrameType | None], object]) -> None:
        self._handler = handler
        self._wanted = False
        self.waiting = False

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if not self._wanted:
            self.waiting = True
            return
        self._wanted = False  # before the error is raised: a second Ctrl-C must not disturb the ending of children
        self._handler(number, frame)

    @contextlib.contextmanager
    def allow(self) -> Iterator[None]:
        """Let Ctrl-C through, also one that waits already."""
        self._wanted = True
        try:
            if self.waiting:
                self.waiting = False
                self(signal.SIGINT, None)
            yield
        finally:
            self._wanted = False


@contextlib.contextmanager
def _hold_interrupts() -> Iterator[_Interrupts]:
    """Hold Ctrl-C back until the end, in Python's handler.

    Masking the signal would not do: another thread may get it, and Python raises the error in the main thread all the
    same, perhaps between a fork and the line that notes the child, or in a hook of the fork, where it is lost.
    """
    handler = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(handler):
        yield _Interrupts(lambda number, frame: None)  # nothing is raised here
        return
    interrupts = _Interrupts(handler)
    try:
        signal.signal(signal.SIGINT, interrupts)
        yield interrupts
    finally:
        signal.signal(signal.SIGINT, handler)
        if interrupts.waiting:
            handler(signal.SIGINT, None)


@dataclass(frozen=True)
class _WorkerProcess:
    pid: int
    pipe: int

    def numbers(self, width: int) -> list[mpz]:
        """What the child calculated; its failure is an error here."""
        well, length = _HEADER.unpack(self._read(_HEADER.size))
        data = self._read(length)
        if not well:
            raise RuntimeError(f"a worker process failed: {data.decode(errors='replace')}")
        return unpack(data, width, length // width, "workers")

    def _read(self, length: int) -> bytes:
        data = bytearray()
        while len(data) < length:
            chunk = os.read(self.pipe, min(_CHUNK, length - len(data)))
            if not chunk:
                raise RuntimeError("a worker process ended without a result: it was killed, perhaps for lack of memory")
            data += chunk
        return bytes(data)

    def end(self) -> None:
        """Stop the child if it still runs and let the system forget it."""
        os.close(self.pipe)
        with contextlib.suppress(ProcessLookupError, ChildProcessError):  # someone else may have collected it
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)


def _start(work: Work, part: range, width: int, children: list[_WorkerProcess]) -> None:
    """One more child at work."""
    reader, writer = os.pipe()
    try:
        pid = os.fork()
        if pid == 0:
            _calculate(work, part, width, writer, [reader, *(child.pipe for child in children)])
        children.append(_WorkerProcess(pid, reader))
    except OSError:
        os.close(reader)
        raise
    finally:
        os.close(writer)


def _calculate(work: Work, part: range, width: int, pipe: int, foreign: Sequence[int]) -> Never:
    """The whole life of a child; ``foreign`` are the pipes of which only the parent may hold the reading end."""
    code = 1
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        gc.disable()  # a collection would copy the parent's pages and run the finalisers of its objects
        for reader in foreign:
            os.close(reader)
        _end_with_the_reader(pipe)
        try:
            data, well = pack(work(part), width), True
        except BaseException as error:
            data, well = first_line(error).encode(), False
        fcntl.fcntl(pipe, fcntl.F_SETFL, 0)  # room in the pipe would be signalled, too
        _write(pipe, _HEADER.pack(well, len(data)) + data)
        code = 0
    finally:
        os._exit(code)  # also when the parent is gone and nobody reads


def _end_with_the_reader(pipe: int) -> None:
    """Ask the system for SIGIO when the last reader of ``pipe`` is gone: unhandled, it ends the process."""
    signal.signal(signal.SIGIO, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGIO})
    fcntl.fcntl(pipe, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(pipe, fcntl.F_SETFL, os.O_ASYNC)
    poll = select.poll()
    poll.register(pipe, 0)  # errors are reported unasked
    if poll.poll(0):  # it was gone before
        os._exit(1)


def _write(pipe: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(pipe, view) :]
