"""Sizes of silos' messages, checked before Flower decodes anything of them.

Flower takes a message as many objects of any size and puts an array together from chunks, each as often as the sender
says. So a long message takes memory several times over before anybody could refuse it, and a short one may become
arbitrarily long. What :func:`~uldp.runtimes.flower.envelopes.packed` makes is one array, four small objects around it
and the array's chunks: everything else is refused, with a ``ValueError``.
"""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

MOST_BYTES: Final = 1 << 40
SMALL_BYTES: Final = 1 << 20
"""Room for the objects around an array's chunks. What the array says of 10,000 chunks takes 700 kB."""
_AROUND: Final = ("Message", "RecordDict", "ArrayRecord", "Array", "ConfigRecord")
_CHUNK: Final = "ArrayChunk"


class Sizes:
    """The limit that holds for the message at hand, and Flower's two functions kept within it."""

    def __init__(self) -> None:
        self._limit = MOST_BYTES

    @contextmanager
    def at_most(self, limit: int) -> Iterator[None]:
        """Messages that are pulled inside have an array of at most ``limit`` bytes."""
        before, self._limit = self._limit, limit
        try:
            yield
        finally:
            self._limit = before

    def pulling(self, pull_objects: Callable[..., dict[str, bytes]]) -> Callable[..., dict[str, bytes]]:
        """Flower's ``pull_objects``, ended when more than the limit has come."""

        def bounded(object_ids: list[str], pull_object_fn: Callable[[str], bytes], **options: Any) -> dict[str, bytes]:
            room, lock = [self._limit + SMALL_BYTES], threading.Lock()

            def counted(object_id: str) -> bytes:
                content = pull_object_fn(object_id)
                with lock:
                    room[0] -= len(content)
                    if room[0] < 0:
                        raise ValueError(f"a message of more than {self._limit} bytes")
                return content

            return pull_objects(object_ids, counted, **options)

        return bounded

    def inflating(self, inflate: Callable[..., Any]) -> Callable[..., Any]:
        """Flower's ``inflate_object_from_contents``, for messages that have the form of ours."""

        def bounded(object_id: str, object_contents: dict[str, bytes], **options: Any) -> Any:
            check_form(object_contents, self._limit)
            return inflate(object_id, object_contents, **options)

        return bounded


SIZES: Final = Sizes()
"""Those of this process: it takes one message at a time."""


def check_form(contents: Mapping[str, bytes], limit: int) -> None:
    """Refuse objects that are no message of ours, or whose array would have more than ``limit`` bytes."""
    kinds = {identifier: content[:32].partition(b" ")[0].decode("ascii") for identifier, content in contents.items()}
    found = Counter(kinds.values())
    chunks = found.pop(_CHUNK, 0)
    if found != Counter(_AROUND) and (chunks or found != Counter(("Message",))):  # alone: an error of the silo's node
        raise ValueError("not the objects of a message of this federation")
    if sum(len(content) for key, content in contents.items() if kinds[key] != _CHUNK) > SMALL_BYTES:
        raise ValueError(f"more than {SMALL_BYTES} bytes around the array")
    if chunks:
        array = next(content for key, content in contents.items() if kinds[key] == "Array")
        pieces = len(json.loads(array.partition(b"\0")[2])["arraychunk_ids"])
        largest = max(len(content) for key, content in contents.items() if kinds[key] == _CHUNK)
        if (pieces - 1) * largest > limit:  # all but the last one are full
            raise ValueError(f"an array of more than {limit} bytes")
