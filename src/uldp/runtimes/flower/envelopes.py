"""Our bytes as Flower's messages, and back: one array of plain bytes, and a word about what it is."""

from __future__ import annotations

from typing import Any, Final

from uldp.errors import first_line

MESSAGE_TYPE: Final = "query.carry"
_KEY: Final = "uldp"
_PLAIN: Final = "uldp.bytes"
"""How the array is serialised: not at all, so there is no header that could lie about what follows."""


def packed(kind: str, body: bytes = b"", **words: str) -> Any:
    """A ``RecordDict`` with ``body`` as an array: arrays travel in chunks, other fields do not."""
    from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

    array = Array("uint8", (len(body),), _PLAIN, body)
    return RecordDict({_KEY: ArrayRecord({"body": array}), "about": ConfigRecord({"kind": kind, **words})})


def unpacked(content: Any) -> tuple[dict[str, str], bytes]:
    """The words and the body of what :func:`packed` made. Whatever is wrong with it is a ``ValueError``."""
    try:
        words = {str(key): str(value) for key, value in content["about"].items()}
        array = content[_KEY]["body"]
        if array.stype != _PLAIN or not isinstance(array.data, bytes) or "kind" not in words:
            raise ValueError("no plain bytes, or no kind")
    except Exception as error:  # it is somebody else's, and may be anything
        raise ValueError(f"not a message of this federation ({first_line(error)})") from error
    return words, array.data
