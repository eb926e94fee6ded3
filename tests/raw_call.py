"""A gRPC call of which every byte is the test's: what no library would send, or leave unread."""

from __future__ import annotations

import contextlib
import socket
import struct
from collections.abc import Iterable, Iterator

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
BOUND_SECONDS = 60
_INITIAL_WINDOW_SIZE = 4


def frame(kind: int, flags: int, stream: int, payload: bytes, *, length: int | None = None) -> bytes:
    """An HTTP/2 frame, whose length may lie."""
    size = len(payload) if length is None else length
    return (
        size.to_bytes(3, "big") + bytes([kind & 255, flags & 255]) + (stream & 2**32 - 1).to_bytes(4, "big") + payload
    )


def call_begin(method: str, *, window: int = 65535, metadata: Iterable[tuple[str, str]] = ()) -> bytes:
    """The first bytes of a connection that begins a call of /SERVICE/METHOD as its stream 1.

    Args:
        method: its path.
        window: bytes of answers that may be sent before the caller says that it has read some.
        metadata: what goes with it.
    """
    headers = [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", method),
        (":authority", "planner"),
        ("te", "trailers"),
        ("content-type", "application/grpc"),
        *metadata,
    ]
    # Literals that no table keeps; none is long.
    packed = b"".join(b"\0" + _counted(name) + _counted(value) for name, value in headers)
    settings = frame(4, 0, 0, struct.pack(">HI", _INITIAL_WINDOW_SIZE, window))
    return PREFACE + settings + frame(1, 4, 1, packed)


def message(data: bytes, *, length: int | None = None) -> bytes:
    """A message of the call, whose length may lie."""
    size = len(data) if length is None else length
    return frame(0, 0, 1, b"\0" + size.to_bytes(4, "big") + data)


def half_close() -> bytes:
    """Tells that no message follows."""
    return frame(0, 1, 1, b"")


def more_room(num_bytes: int) -> bytes:
    """Tells that so many bytes of answers more may come."""
    return frame(8, 0, 1, num_bytes.to_bytes(4, "big"))


def _counted(text: str) -> bytes:
    assert len(text) < 127, "a longer one has more bytes of length"  # noqa: PLR2004
    return bytes([len(text)]) + text.encode()


@contextlib.contextmanager
def raw_connection(port: int, *, source: str = "127.0.0.1") -> Iterator[socket.socket]:
    """A connection to a port, from an address of the loopback."""
    address = ("127.0.0.1", port)
    with socket.create_connection(address, timeout=BOUND_SECONDS, source_address=(source, 0)) as connection:
        yield connection


def vanish(connection: socket.socket) -> None:
    """Ends a connection without a goodbye, as a machine does that is gone."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()
