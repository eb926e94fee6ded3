"""The connection to the planner: plain or with TLS, with a token on every call.

gRPC keeps the certificates of a channel for ever, and training runs for longer than certificates hold: so a channel is
made anew when its files have changed.
"""

from __future__ import annotations

import ipaddress
import logging
import re
import ssl
from pathlib import Path
from typing import NamedTuple

import grpc

from taot_client.planner.call_spans import make_call_spans
from taot_client.planner.planner_calls import Connections, PlannerCalls
from taot_client.planner_access import SYSTEM_AUTHORITIES, PlannerAccess

logger = logging.getLogger(__name__)

_CHANNEL_OPTIONS = [
    # Cluster images set http_proxy; a sidecar on loopback must not be looked for behind it.
    ("grpc.enable_http_proxy", 0),
    # Pauses between attempts to connect: calls fail at once meanwhile, also while the planner listens again.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 300),
    # The least time that one attempt gets: greetings take their time on a busy machine and over long links.
    ("grpc.min_reconnect_backoff_ms", 1000),
    # Notices a connection that has silently gone.
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.max_receive_message_length", 64 * 1024 * 1024),
    ("grpc.max_send_message_length", 64 * 1024 * 1024),
]

_TOKEN = re.compile(r"[\x21-\x7e]{1,512}")
"""What a header can hold."""


class _Shown(NamedTuple):
    """The contents of all files, and the token."""

    ca: bytes | None = None
    client_cert: bytes | None = None
    client_key: bytes | None = None
    token: str | None = None

    def __repr__(self) -> str:
        return "_Shown(...)"  # nothing of it belongs into a log


class PlannerChannel:
    """The connection to one address, made anew by `refresh` and `close`d while other threads call over it."""

    def __init__(self, address: str, access: PlannerAccess) -> None:
        """Prepares the connection to host:port or a unix: path.

        Raises:
            ValueError: naming the file that cannot be used, never quoting a token.
        """
        self._address, self._access = address, access
        self._shown = _read(access)
        if self._shown.token is not None and not access.has_tls and not _stays_here(address):
            logger.warning("the token for the planner at %s travels in plain text: set PlannerAccess.ca", address)
        self._complaint = ""
        self._connections = Connections(self._connect())
        self.stub = PlannerCalls(self._connections, lambda: self._shown.token, make_call_spans())
        """The planner's methods, over the connection at hand."""

    def refresh(self) -> None:
        """Reads the files again; what cannot be used leaves the last in force. Calls in flight go on."""
        try:
            shown = _read(self._access)
        except ValueError as error:
            if str(error) != self._complaint:
                logger.error("%s; the last one stays in use", error)
            self._complaint = str(error)
            return
        self._complaint = ""
        before, self._shown = self._shown, shown
        if shown[:3] != before[:3]:
            logger.info("certificates for the planner at %s have changed: connecting anew", self._address)
            self._connections.replace(self._connect())

    def close(self) -> None:
        """Ends the connection, and the calls in flight with it."""
        self._connections.close()

    def _connect(self) -> grpc.Channel:
        if self._access.has_tls:
            credentials = grpc.ssl_channel_credentials(
                root_certificates=self._shown.ca,
                private_key=self._shown.client_key,
                certificate_chain=self._shown.client_cert,
            )
            return grpc.secure_channel(self._address, credentials, options=_CHANNEL_OPTIONS)
        return grpc.insecure_channel(self._address, options=_CHANNEL_OPTIONS)


def _read(access: PlannerAccess) -> _Shown:
    token = access.token
    if access.token_file is not None:
        token = _read_file("token_file", access.token_file).decode("ascii", "replace").strip()
    if token is not None and not _TOKEN.fullmatch(token):
        where = f"in {access.token_file}" if access.token_file is not None else "for the planner"
        raise ValueError(f"the token {where} must be 1 to 512 visible ASCII characters, as `taot token new` prints it")
    ca = None
    if access.ca is not None and str(access.ca) != SYSTEM_AUTHORITIES:
        ca = _read_file("ca", access.ca)
    certificate = key = None
    try:
        if ca is not None:
            # Between certificates a bundle may hold any text.
            ssl.create_default_context(cadata=ca.decode("ascii", "ignore"))
        if access.client_cert is not None and access.client_key is not None:
            # Before they are read: a key that does not belong to its certificate would end every connection unnamed.
            ssl.create_default_context().load_cert_chain(access.client_cert, access.client_key, password="")
            certificate = _read_file("client_cert", access.client_cert)
            key = _read_file("client_key", access.client_key)
    except (OSError, ValueError) as error:
        raise ValueError(
            f"cannot use PlannerAccess.ca {access.ca}, client_cert {access.client_cert}, client_key"
            f" {access.client_key}: {error}"
        ) from error
    return _Shown(ca=ca, client_cert=certificate, client_key=key, token=token)


def _read_file(name: str, path: str | Path) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise ValueError(f"cannot read PlannerAccess.{name}: {error}") from error


def _stays_here(address: str) -> bool:
    """Whether what is sent to an address stays on this machine."""
    if address.startswith("unix"):
        return True
    host = address.rsplit("/", 1)[-1].rsplit(":", 1)[0].strip("[]")
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
