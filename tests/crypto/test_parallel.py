"""Processes share the work, and none is left behind."""

import atexit
import os
import signal
import subprocess
import sys
import time

import pytest

from uldp.crypto import parallel
from uldp.crypto.parallel import parts, spread
from uldp.errors import ConfigError

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the work is done in one process")


@pytest.fixture(autouse=True)
def nothing_left_behind():
    before = set(os.listdir("/proc/self/fd"))
    yield
    with pytest.raises(ChildProcessError):  # no child at all, neither running nor a zombie
        os.waitpid(-1, os.WNOHANG)
    assert set(os.listdir("/proc/self/fd")) == before


def squares(part):
    return [i * i for i in part]


@pytest.mark.parametrize("count", [0, 1, 2, 3, 10, 11])
@pytest.mark.parametrize("workers", [1, 2, 3, 12])
def test_results_come_in_order(count, workers):
    assert spread(squares, count, workers, 2) == squares(range(count))


@pytest.mark.parametrize("count", [0, 1, 5, 12])
@pytest.mark.parametrize("workers", [1, 2, 5, 20])
def test_parts_are_contiguous_and_of_nearly_equal_length(count, workers):
    cut = parts(count, workers)
    assert [i for part in cut for i in part] == list(range(count))
    assert len(cut) == min(workers, count)
    assert all(part for part in cut)
    assert not cut or max(map(len, cut)) - min(map(len, cut)) <= 1


def test_the_parent_does_the_first_part_and_children_the_others():
    pids = [int(pid) for pid in spread(lambda part: [os.getpid() for _ in part], 6, 3, 4)]
    assert pids[:2] == [os.getpid()] * 2
    assert len(set(pids)) == 3


def test_without_a_safe_fork_one_process_does_everything(monkeypatch):
    monkeypatch.setattr(parallel, "CAN_FORK", False)
    assert spread(lambda part: [os.getpid() for _ in part], 4, 2, 4) == [os.getpid()] * 4


def test_results_may_be_larger_than_a_pipe_and_of_any_number():
    wide = (1 << 80_000) - 1
    assert spread(lambda part: [wide for i in part for _ in range(i)], 30, 3, 10_000) == [wide] * sum(range(30))


@pytest.mark.parametrize("workers", [0, -1])
def test_no_worker_is_a_mistake(workers):
    with pytest.raises(ConfigError, match="workers"):
        spread(squares, 3, workers, 2)


def fail_at(index, error):
    def work(part):
        if index in part:
            raise error
        return squares(part)

    return work


@pytest.mark.parametrize("error", [ValueError("no such number"), KeyboardInterrupt(), SystemExit(3)])
def test_a_childs_error_is_an_error_here(error, capfd):
    with pytest.raises(RuntimeError, match=f"a worker process failed: {type(error).__name__}"):
        spread(fail_at(9, error), 10, 3, 2)
    assert capfd.readouterr() == ("", "")


def test_a_result_that_does_not_fit_is_an_error_here():
    with pytest.raises(RuntimeError, match="does not fit into 1 bytes"):
        spread(lambda part: [1000 for _ in part], 4, 2, 1)


def test_a_killed_child_is_an_error_here():
    parent = os.getpid()

    def work(part):
        if os.getpid() != parent:
            os.kill(os.getpid(), signal.SIGKILL)
        return squares(part)

    with pytest.raises(RuntimeError, match="ended without a result"):
        spread(work, 10, 2, 2)


@pytest.mark.parametrize("error", [ValueError("mine"), KeyboardInterrupt()])
def test_an_error_of_the_parent_ends_the_children(error):
    parent = os.getpid()

    def work(part):
        if os.getpid() == parent:
            raise error
        time.sleep(60)
        return squares(part)

    started = time.monotonic()
    with pytest.raises(type(error)):
        spread(work, 10, 3, 2)
    assert time.monotonic() - started < 10


def test_ctrl_c_while_waiting_ends_the_children(monkeypatch):
    parent = os.getpid()

    def work(part):
        if os.getpid() != parent:
            time.sleep(60)
        return squares(part)

    def interrupted(pipe, length):  # the parent is about to wait for the first number
        os.kill(parent, signal.SIGINT)
        time.sleep(60)

    monkeypatch.setattr(os, "read", interrupted)
    with pytest.raises(KeyboardInterrupt):
        spread(work, 4, 2, 2)


EVERY_STEP = """
import os, signal, sys, time
from uldp.crypto import parallel

signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell starts its background jobs without it
parent, second = os.getpid(), sys.argv[1] == "second"
armed, left = False, 0

def interrupt(frame=None):  # what Python does in the main thread, whichever thread the system gave the signal to
    signal.getsignal(signal.SIGINT)(signal.SIGINT, frame)

def trace(frame, event, argument):
    global left
    if frame.f_code.co_filename != parallel.__file__ or os.getpid() != parent:
        return None
    frame.f_trace_opcodes = True
    if event == "opcode" and armed:
        left -= 1
        if left == 0:
            interrupt(frame)
    return trace

def work(part):
    global armed
    if os.getpid() == parent and second:
        armed = True
        interrupt()
    if os.getpid() != parent and left > 0 and second:
        time.sleep(20)  # far too long: somebody is to end it
    return list(part)

def interrupted(step):  # whether there are so many steps
    global armed, left
    armed, left = not second, step
    raised = False
    sys._getframe().f_trace_opcodes = True  # Python 3.12 looks for it when tracing begins
    sys.settrace(trace)
    try:
        parallel.spread(work, 3, 3 if second else 2, 1)
    except KeyboardInterrupt:
        raised = True
    finally:
        sys.settrace(None)
    reached = left <= 0
    try:
        child = os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        child = None
    assert child is None, f"step {step}: a child is left"
    assert raised or not reached, f"step {step}: the interrupt is lost"
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler, f"step {step}: the handler is lost"
    return reached

step = 1
while interrupted(step):
    step += 1
print(step)
"""


@pytest.mark.parametrize("which", ["first", "second"])
def test_an_interrupt_at_any_step_is_neither_lost_nor_leaves_a_child(which):
    """Ctrl-C at each instruction in turn; or in the parent's part, and a second one at each instruction after it."""
    done = subprocess.run([sys.executable, "-c", EVERY_STEP, which], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 50


def test_children_end_when_the_parent_is_killed():
    program = """
import os, sys, time
from uldp.crypto.parallel import spread
parent, writer = os.getpid(), int(sys.argv[1])
def work(part):
    if os.getpid() != parent:
        os.write(writer, b"x")
    time.sleep(20)
    os.write(writer, b"too late")
spread(work, 3, 3, 1)
"""
    reader, writer = os.pipe()
    parent = subprocess.Popen([sys.executable, "-c", program, str(writer)], pass_fds=[writer])
    os.close(writer)
    assert os.read(reader, 1) + os.read(reader, 1) == b"xx"
    parent.kill()
    parent.wait()
    assert os.read(reader, 9) == b""  # the end, which comes when the last child is gone
    os.close(reader)


def test_children_ignore_ctrl_c():
    parent = os.getpid()

    def work(part):
        if os.getpid() != parent:
            os.kill(os.getpid(), signal.SIGINT)
        return squares(part)

    assert spread(work, 4, 2, 2) == squares(range(4))


def test_children_neither_flush_buffers_nor_run_exit_handlers():
    program = f"""
import sys
sys.stdout.reconfigure(write_through=False)
import atexit
from uldp.crypto.parallel import spread
atexit.register(lambda: print("{atexit.__name__} ran"))
print("once", end=" ")
assert spread(lambda part: [i for i in part], 5, 3, 2) == list(range(5))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "once atexit ran\n"
    assert done.stderr == ""
