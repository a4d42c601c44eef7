"""Our bytes as Flower's messages, and back: one array of plain bytes, and a word about what it is.

Both apps that Flower starts use this, and it loads in a moment.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from uldp.errors import first_line

MESSAGE_TYPE: Final = "query.carry"
MAX_BYTES: Final = 1 << 40
"""Where nobody has named a limit. The sessions know how large a message may be; these processes only transport it."""
ADDRESS_VARIABLE: Final = "ULDP_TRANSPORT"
"""Where the ServerApp of a SuperLink that we started finds the transport. A run that names another is not ours."""
_KEY: Final = "uldp"
_PLAIN: Final = "uldp.bytes"
"""How the array is serialised: not at all, so there is no header that could lie about what follows."""


def to_record(kind: str, body: bytes = b"", **words: str) -> Any:
    """A ``RecordDict`` with ``body`` as an array: arrays travel in chunks, other fields do not."""
    from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

    array = Array("uint8", (len(body),), _PLAIN, body)
    return RecordDict({_KEY: ArrayRecord({"body": array}), "about": ConfigRecord({"kind": kind, **words})})


def from_record(content: Any) -> tuple[dict[str, str], bytes]:
    """The words and the body of what :func:`to_record` made. Whatever is wrong with it is a ``ValueError``."""
    try:
        words = {str(key): str(value) for key, value in content["about"].items()}
        array = content[_KEY]["body"]
        if array.stype != _PLAIN or not isinstance(array.data, bytes) or "kind" not in words:
            raise ValueError("no plain bytes, or no kind")
    except Exception as error:  # it is somebody else's, and may be anything
        raise ValueError(f"not a message of this federation ({first_line(error)})") from error
    return words, array.data


def client_app(respond: Callable[[Any, Any], Any]) -> Any:
    """Flower's ``ClientApp``: ``respond(record, node_config)`` is the record to send back."""
    from flwr.app import Context, Message
    from flwr.clientapp import ClientApp

    app = ClientApp()

    @app.query(MESSAGE_TYPE.removeprefix("query."))  # type: ignore[untyped-decorator]
    def query(message: Message, context: Context) -> Message:
        return Message(respond(message.content, context.node_config), reply_to=message)

    return app
