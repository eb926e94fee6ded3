"""One address in front of several servers, as a load balancer that knows nothing of them is."""

from __future__ import annotations

import contextlib
import itertools
import socket
import threading
from collections.abc import Iterator, Sequence


class TcpForwarder:
    """Sends each new connection to the next server in turn."""

    def __init__(self, listener: socket.socket, ports: Sequence[int]) -> None:
        self.address = f"127.0.0.1:{listener.getsockname()[1]}"
        self._listener = listener
        self._ports = itertools.cycle(ports)
        self._open: list[socket.socket] = []
        self._lock = threading.Lock()
        self._is_closed = False
        threading.Thread(target=self._accept, daemon=True).start()

    def break_connections(self) -> None:
        """Ends all connections: whoever comes back gets to the next server."""
        with self._lock:
            ends, self._open = self._open, []
        for end in ends:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Takes no connections any more, and ends those there are."""
        self._is_closed = True
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self.break_connections()

    def _accept(self) -> None:
        while not self._is_closed:
            try:
                client, _ = self._listener.accept()
                server = socket.create_connection(("127.0.0.1", next(self._ports)), timeout=20)
            except OSError:
                continue
            server.settimeout(None)
            with self._lock:
                self._open += [client, server]
            for source, target in ((client, server), (server, client)):
                threading.Thread(target=_pump, args=(source, target), daemon=True).start()


def _pump(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(65536):
            target.sendall(data)
    for end in (source, target):
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)


@contextlib.contextmanager
def tcp_forwarder(*ports: int) -> Iterator[TcpForwarder]:
    """A forwarder to some ports of this machine, on a free port."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        forwarder = TcpForwarder(listener, ports)
        try:
            yield forwarder
        finally:
            forwarder.close()
