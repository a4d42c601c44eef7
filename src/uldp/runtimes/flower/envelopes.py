"""Our bytes as Flower's messages, and back: one uint8 array, and a word about what it is."""

from __future__ import annotations

from typing import Any, Final

MESSAGE_TYPE: Final = "query.carry"
_KEY: Final = "uldp"


def packed(kind: str, body: bytes = b"", **words: str) -> Any:
    """A ``RecordDict`` with ``body`` as an array: arrays travel in chunks, other fields do not."""
    import numpy as np
    from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

    array = Array(np.frombuffer(body, dtype=np.uint8))
    return RecordDict({_KEY: ArrayRecord({"body": array}), "about": ConfigRecord({"kind": kind, **words})})


def unpacked(content: Any) -> tuple[dict[str, str], bytes]:
    """The words and the body of what :func:`packed` made."""
    try:
        words = {str(key): str(value) for key, value in content["about"].items()}
        array = content[_KEY]["body"].numpy()
        if array.dtype != "uint8" or array.ndim != 1 or "kind" not in words:
            raise ValueError("no uint8 array, or no kind")
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise ValueError(f"not a message of this federation: {error}") from error
    return words, array.tobytes()
