"""Ports: taking them, and telling others which they are."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path


class PortUnavailableError(OSError):
    """An address that cannot be listened on."""


def listen(host: str, port: int, *, flag: str) -> socket.socket:
    """Takes a TCP port.

    Raises:
        PortUnavailableError: naming the address, the cause and the flag.
    """
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        return socket.create_server(address[:2], family=family, backlog=1024)
    except OSError as error:
        raise PortUnavailableError(
            f"cannot listen on {join_address(host, port)}: {error.strerror or error};"
            f" choose another {flag}, or 0 for a free one"
        ) from error


def join_address(host: str, port: int) -> str:
    """The host and port as URLs and gRPC write them."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def write_ports_file(path: Path, *, grpc_port: int, http_port: int) -> None:
    """Writes the ports as JSON. A reader sees the whole file or none."""
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    partial.write_text(json.dumps({"grpc_port": grpc_port, "http_port": http_port, "pid": os.getpid()}) + "\n")
    partial.replace(path)
