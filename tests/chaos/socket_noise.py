"""Connections that speak no protocol, or one badly."""

from __future__ import annotations

import contextlib
import random
import socket
import struct
from collections.abc import Callable, Iterator

from raw_call import PREFACE, call_begin, frame, message

STREAM = "/taot_api.v1.PlannerService/StreamReports"
BOUND_SECONDS = 20


def noise(source: random.Random) -> bytes:
    """What one connection says."""
    junk = source.randbytes(source.choice((1, 9, 300, 5000)))
    settings = frame(4, 0, 0, b"")
    return source.choice(
        (
            junk,
            PREFACE + junk,
            PREFACE + settings + frame(source.randrange(12), source.randrange(256), source.randrange(2**32), junk),
            PREFACE + settings + frame(1, 4, 1, junk),
            PREFACE + settings + frame(0, 1, 1, junk, length=2**24 - 1),
            PREFACE + frame(4, 0, 0, struct.pack(">HI", source.randrange(8), source.randrange(2**32))),
            PREFACE[: source.randrange(len(PREFACE))],
            # A stream of reports whose answers nobody has room for, and one that ends within a message.
            call_begin(STREAM, window=0) + message(junk) * source.choice((1, 40)),
            call_begin(STREAM) + message(junk, length=len(junk) + source.choice((1, 2**20, 2**31))),
            b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + junk,  # as TLS begins
            b"GET / HTTP/1.1\r\nHost: " + b"x" * source.choice((1, 70_000)) + b"\r\n\r\n",
            b"POST /v1/sessions/x/pause HTTP/1.1\r\nContent-Length: "
            + str(source.randrange(-5, 2**40)).encode()
            + b"\r\n\r\n",
            b"GET /metrics HTTP/1.1\r\n" + b"a: b\r\n" * 3000 + b"\r\n",
            b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nFFFFFFFFFFFFFFFF\r\n" + junk,
            b"GET /%00%ff/../" + junk.replace(b"\n", b"") + b" HTTP/9.9\r\n\r\n",
        )
    )


def speak(port: int, source: random.Random) -> None:
    """Connects, speaks, listens perhaps, and leaves in one way or another."""
    with (
        socket.create_connection(("127.0.0.1", port), timeout=BOUND_SECONDS) as connection,
        contextlib.suppress(OSError),
    ):
        connection.sendall(noise(source))
        if source.random() < 0.3:
            connection.shutdown(socket.SHUT_WR)
        if source.random() < 0.2:
            connection.settimeout(0.05)
            connection.recv(4096)
        if source.random() < 0.3:  # a reset instead of a goodbye
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


@contextlib.contextmanager
def slow_connections(ports: list[int], *, number: int) -> Iterator[Callable[[], None]]:
    """Holds connections open that never finish what they say; calling what is given says one byte more on each."""
    with contextlib.ExitStack() as stack:
        held = []
        for index in range(number):
            connection = socket.create_connection(("127.0.0.1", ports[index % len(ports)]), timeout=BOUND_SECONDS)
            held.append((stack.enter_context(contextlib.closing(connection)), index))

        def say_more() -> None:
            for connection, index in held:
                if index % 3:  # every third stays silent
                    with contextlib.suppress(OSError):
                        connection.sendall(b"P" if index % 2 else b"G")

        yield say_more
