"""What is saved does not crash the process where memory ends."""

import subprocess
import sys

import msgspec
import pytest

from uldp.encoding import encode, size_bound


class State(msgspec.Struct):
    name: str
    parts: list[bytes]
    more: dict[str, int | float | None]


@pytest.mark.parametrize(
    "state", [State("", [], {}), State("ä" * 50, [b"", bytes(70_000)] * 3, {"a" * 40: 2**63, "b": 1e300, "c": None})]
)
def test_the_bytes_are_those_of_msgspec_and_room_for_them_is_known(state):
    assert encode(state) == msgspec.msgpack.encode(state)
    assert size_bound(state) >= len(encode(state))


@pytest.mark.skipif(sys.platform != "linux", reason="memory is limited as on Linux")
def test_too_much_is_a_memory_error():
    """In a process of its own: msgspec by itself ends it with a segmentation fault."""
    code = """
import resource
from uldp.encoding import encode
part = bytes(200 << 20)
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (300 << 20),) * 2)
try:
    encode([part, part, part])
except MemoryError:
    print("refused")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "refused\n"), done.stderr
