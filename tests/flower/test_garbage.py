"""Whatever a silo sends over Flower is that silo's trouble: the others' answers arrive, and memory stays small.

With Flower's own grid over a SuperLink of a few lines: no network.
"""

import io
import json
import tracemalloc
import zipfile
from types import SimpleNamespace

import numpy as np
import pytest
from tests.flower.test_transport import FakeGrid, relaying

from uldp.runtimes.flower.messages import from_record, to_record
from uldp.runtimes.flower.transport import FlowerTransport

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'uldp[flower]'")
LIMIT = 100_000


def zipped():
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("x.npy", b"no array")
    return file.getvalue()


def saved(values):
    file = io.BytesIO()
    np.save(file, values)
    return file.getvalue()


HUGE = saved(np.zeros(3, np.uint8)).replace(b"(3,), }", b"(9999999999999,), }")
ARRAYS = {
    "no data": ("uint8", (0,), "numpy.ndarray", b""),
    "a shape of 10^13": ("uint8", (10**13,), "numpy.ndarray", HUGE),
    "a broken zip": ("uint8", (3,), "numpy.ndarray", zipped()[:-10]),
    "a zip": ("uint8", (3,), "numpy.ndarray", zipped()),
    "a pickle": ("object", (1,), "numpy.ndarray", b"\x80\x04N."),
    "another serialisation": ("float32", (1,), "torch.tensor", b"abcd"),
    "nothing known": ("", (), "", b"\xff" * 100),
}


def with_array(array):
    from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

    return RecordDict({"uldp": ArrayRecord({"body": Array(*array)}), "about": ConfigRecord({"kind": "reply"})})


def both(monkeypatch, content, grid=None):
    """What the transport gets of a silo that sends ``content`` and of one that does well, twice."""
    grid = grid or FakeGrid({1: lambda record: content, 2: lambda record: to_record("reply", from_record(record)[1])})
    with FlowerTransport({"bad": 1, "good": 2}, limit=LIMIT) as transport:
        relaying(transport, grid, monkeypatch)
        for request in (b"first", b"second"):
            found = transport.exchange({"bad": request, "good": request}, 10)
            assert found["good"] == request and transport.is_connected
    return found["bad"]


@pytest.mark.parametrize("case", ARRAYS)
def test_a_malformed_array_is_its_sender_s_garbage(monkeypatch, case):
    bad = both(monkeypatch, with_array(ARRAYS[case]))
    assert bad.refused and "garbage" in bad.reason


@pytest.mark.parametrize("content", [None, {}, {"about": {"kind": "reply"}}, SimpleNamespace(), 7])
def test_a_record_of_another_form_is_its_sender_s_garbage(monkeypatch, content):
    bad = both(monkeypatch, content)
    assert bad.refused and "not a message of this federation" in bad.reason


@pytest.mark.parametrize("error", [KeyError("x"), ValueError("\ud800"), MemoryError(), RecursionError(), EOFError()])
def test_what_flower_itself_cannot_read_takes_nobody_else_s_answer_with_it(monkeypatch, error):
    class Breaking(FakeGrid):
        """Raises where Flower would, while it puts a message together; messages that were pulled with it are lost."""

        def pull_messages(self, identifiers):
            found = super().pull_messages(identifiers)
            if any(reply.content == "unreadable" for reply in found):
                raise error
            return found

    grid = Breaking({1: lambda record: "unreadable", 2: lambda record: to_record("reply", from_record(record)[1])})
    bad = both(monkeypatch, None, grid)
    assert bad.refused and type(error).__name__ in bad.reason


def test_an_answer_counts_for_the_silo_that_was_asked_whatever_it_claims(monkeypatch):
    """A message says itself what it replies to; the SuperLink has checked who sent it."""

    class Claiming(FakeGrid):
        def pull_messages(self, identifiers):
            found = super().pull_messages(identifiers)
            for reply in found:
                if from_record(reply.content)[1] == b"forged":
                    reply.metadata.reply_to_message_id = "somebody else's"
            return found

    grid = Claiming({1: lambda record: to_record("reply", b"forged"), 2: lambda record: to_record("reply", b"mine")})
    with FlowerTransport({"bad": 1, "good": 2}, limit=LIMIT) as transport:
        relaying(transport, grid, monkeypatch)
        assert transport.exchange({"bad": b"q", "good": b"q"}, 10) == {"bad": b"forged", "good": b"mine"}


class SuperLink:
    """Hands out one message's objects, and counts their bytes."""

    def __init__(self, objects, root):
        self.objects, self.root, self.pulled = objects, root, 0

    def PullMessages(self, request):  # noqa: N802
        proto = SimpleNamespace(metadata=SimpleNamespace(message_id=self.root, reply_to_message_id="m1"))
        children = [SimpleNamespace(object_id=key, children=[]) for key in self.objects if key != self.root]
        tree = SimpleNamespace(object_id=self.root, children=children)
        return SimpleNamespace(messages_list=[proto], message_object_trees=[tree])

    def PullObject(self, request):  # noqa: N802
        content = self.objects[request.object_id]
        self.pulled += len(content)
        return SimpleNamespace(object_found=True, object_available=True, object_content=content)

    def ConfirmMessageReceived(self, request):  # noqa: N802
        return None


@pytest.fixture
def pulled(monkeypatch):
    """Pull a message of these objects with Flower's own grid, as the process of a run does."""
    from flwr.superlink.grid import http_grid

    from uldp.runtimes.flower import internals, server_app

    for name in ("pull_objects", "inflate_object_from_contents"):  # put back at the end
        monkeypatch.setattr(http_grid, name, getattr(http_grid, name))
    internals.limit_pulled_messages()

    def pull(objects, root):
        grid, link = http_grid.HttpGrid(insecure=True, token="t"), SuperLink(objects, root)
        grid._client, grid._run = link, SimpleNamespace(run_id=1)
        relay = server_app.Relay(grid, None)
        return relay.pull("m1", LIMIT)[0], link.pulled

    return pull


def objects_of(record):
    from flwr.app import Message
    from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
    from flwr.supercore.task_identity import TaskIdentity

    TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = 1
    message = Message(record, dst_node_id=1, message_type="query.carry")
    return {key: one.deflate() for key, one in get_all_nested_objects(message).items()}, message.object_id


@pytest.mark.parametrize("body", [b"", b"abc", bytes(range(250)) * 400])
def test_a_message_within_the_limit_arrives(pulled, body):
    (words, found), _ = pulled(*objects_of(to_record("reply", body)))
    assert words["kind"] == "reply" and found == body


def test_a_message_that_is_too_long_is_refused_before_all_of_it_has_come(pulled):
    """40 MB in chunks of 5 MB: the first one is more than was asked for."""
    objects, root = objects_of(to_record("reply", np.random.default_rng(0).bytes(40 << 20)))
    tracemalloc.start()
    (words, why), bytes_pulled = pulled(objects, root)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert words["kind"] == "refused" and b"more than 100000 bytes" in why
    assert bytes_pulled <= 16 << 20 and peak < 4 << 20


def test_a_short_message_that_would_become_long_is_refused_before_it_is_put_together(pulled):
    objects, root = objects_of(to_record("reply", bytes(90_000)))
    array = next(key for key, content in objects.items() if content.startswith(b"Array "))
    head, _, about = objects[array].partition(b"\0")
    tree = json.loads(about)
    tree["arraychunk_ids"] = [0] * 100_000  # 9 GB
    body = json.dumps(tree).encode()
    objects[array] = b" ".join([*head.split(b" ")[:-1], str(len(body)).encode()]) + b"\0" + body
    (words, why), _ = pulled(objects, root)
    assert words["kind"] == "refused" and b"an array of more than 100000 bytes" in why


def test_objects_that_are_not_those_of_a_message_of_ours_are_refused(pulled):
    from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

    many = {f"a{number}": Array("uint8", (3,), "uldp.bytes", b"abc") for number in range(3)}
    two = RecordDict({"uldp": ArrayRecord(many), "more": ArrayRecord({}), "about": ConfigRecord({"kind": "reply"})})
    large = RecordDict(
        {
            "uldp": ArrayRecord({"body": Array("uint8", (3,), "uldp.bytes", b"abc")}),
            "about": ConfigRecord({"kind": "reply", "more": "x" * 1_100_000}),
        }
    )
    for record, why in ((two, b"not the objects"), (large, b"bytes")):
        (words, said), _ = pulled(*objects_of(record))
        assert words["kind"] == "refused" and why in said
    objects, root = objects_of(to_record("reply", b"abc"))
    for key in list(objects):
        for wrong in (b"", b"\xff\xfe", objects[key][:-1], objects[key][:20], b"Array  2\0{}"):
            (words, _), _ = pulled({**objects, key: wrong}, root)
            assert words["kind"] == "refused" or objects[key].startswith(b"ArrayChunk")
