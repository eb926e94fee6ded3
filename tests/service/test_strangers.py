"""What speaks to the ports without speaking a protocol: it fills no log, and takes no room from probes."""

from __future__ import annotations

import contextlib
import random
import socket

import httpx
import pytest
from link_samples import eventually
from planner_client import CALL_SECONDS
from running_planner import planner_process, running_planner

from taot_service import http_connection

HTTP_2 = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
SETTINGS = b"\x00\x00\x00\x04\x00\x00\x00\x00\x00"
BAD_STATUS = b"\x48\x01x"
"""As HTTP/2 packs it: `:status: x`, which is no number."""


def connect(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=CALL_SECONDS)


def is_closed(connection: socket.socket) -> bool:
    """Whether the planner has closed it; what it has said is read and forgotten."""
    connection.setblocking(False)
    try:
        return connection.recv(2**16) == b""
    except BlockingIOError:
        return False
    except ConnectionResetError:
        return True


def live(port: int) -> int:
    return httpx.get(f"http://127.0.0.1:{port}/livez", timeout=CALL_SECONDS, trust_env=False).status_code


@pytest.mark.slow
@pytest.mark.parametrize("verbosity", [{}, {"GRPC_VERBOSITY": "ERROR"}], ids=["as it is", "asked to speak"])
def test_junk_leaves_nothing_in_the_log_unless_asked_for(verbosity):
    source = random.Random(3)
    junk = source.randbytes(300)
    with planner_process(environment=verbosity) as planner:
        said = planner.stderr
        for _ in range(3):
            for port in (planner.grpc_port, planner.http_port):
                for words in (
                    junk,
                    HTTP_2 + SETTINGS + bytes([0, 1, 44, 1, 4, 0, 0, 0, 1]) + junk,
                    HTTP_2 + SETTINGS + bytes([0, 0, len(BAD_STATUS), 1, 5, 0, 0, 0, 1]) + BAD_STATUS,
                    b"GET / HTTP/9.9\r\n\r\n",
                    b"GET / HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: upgrade\r\n\r\n",
                ):
                    with connect(port) as connection, contextlib.suppress(OSError):
                        connection.sendall(words)
                        connection.shutdown(socket.SHUT_WR)
                        while connection.recv(2**16):
                            pass
        assert live(planner.http_port) == 200
        more = planner.stderr.removeprefix(said)
    assert bool(more) == bool(verbosity), more


def test_a_request_that_does_not_end_is_not_waited_for(monkeypatch):
    monkeypatch.setattr(http_connection, "REQUEST_SECONDS", 0.3)
    head = b"GET /livez HTTP/1.1\r\nHost: localhost\r\n"
    with running_planner(is_warm_awaited=False) as planner, contextlib.ExitStack() as stack:
        said = (b"", b"G", head, b"POST /logout HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n")
        held = [stack.enter_context(connect(planner.http_port)) for _ in said]
        for connection, words in zip(held, said, strict=True):
            connection.sendall(words)
        twice = stack.enter_context(connect(planner.http_port))
        twice.sendall(head + b"\r\n")
        assert twice.recv(2**16).startswith(b"HTTP/1.1 200")
        twice.sendall(b"G")
        for connection in (*held, twice):
            assert eventually(lambda connection=connection: is_closed(connection), seconds=CALL_SECONDS)


def test_an_answer_may_take_longer_than_its_request(monkeypatch):
    monkeypatch.setattr(http_connection, "REQUEST_SECONDS", 0.3)
    with running_planner(is_warm_awaited=False) as planner, connect(planner.http_port) as reader:
        reader.sendall(b"GET /v1/events HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert reader.recv(2**16).startswith(b"HTTP/1.1 200")
        with connect(planner.http_port) as silent:
            assert eventually(lambda: is_closed(silent), seconds=CALL_SECONDS), "three tenths of a second later"
        assert not is_closed(reader)


def test_connections_that_ask_for_nothing_give_way_to_probes(monkeypatch):
    monkeypatch.setattr(http_connection, "MAX_CONNECTIONS", 20)
    with running_planner(is_warm_awaited=False) as planner, contextlib.ExitStack() as stack:
        reader = stack.enter_context(connect(planner.http_port))
        reader.sendall(b"GET /v1/events HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert reader.recv(2**16).startswith(b"HTTP/1.1 200")
        silent = [stack.enter_context(connect(planner.http_port)) for _ in range(60)]
        assert live(planner.http_port) == 200
        assert eventually(lambda: sum(map(is_closed, silent)) >= 41, seconds=CALL_SECONDS)
        assert is_closed(silent[0])
        assert not is_closed(silent[-1]), "the newest may be about to ask"
        assert not is_closed(reader), "who is being answered gives no way"


@pytest.mark.slow
def test_a_connection_that_never_speaks_grpc_is_closed():
    with running_planner(is_warm_awaited=False) as planner, contextlib.ExitStack() as stack:
        held = [stack.enter_context(connect(planner.grpc_port)) for _ in range(2)]
        held[1].sendall(HTTP_2[:5])
        for connection in held:
            assert eventually(lambda connection=connection: is_closed(connection), seconds=CALL_SECONDS)
