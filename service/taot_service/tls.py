"""TLS of both ports from one certificate, which may be rotated while connections are open.

New connections get what the files say now; open ones keep what they began with. Clients show certificates to the gRPC
port alone: probes of an orchestrator have none.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path

import grpc

from taot_service.certificate_dates import read_expiry
from taot_service.kept_file import KeptFile


@dataclass(frozen=True, kw_only=True)
class Certificate:
    """The certificate as both servers take it."""

    for_grpc: grpc.ServerCertificateConfiguration
    """With the authorities of clients, if they need certificates."""

    for_http: ssl.SSLContext
    """The server's side alone."""

    expiry_seconds: float
    """When it ends, in seconds since 1970."""


class CertificateKeeper:
    """The certificate of this planner."""

    def __init__(self, *, certificate: Path, key: Path, client_ca: Path | None) -> None:
        """Reads PEM files: a chain with the server's own first, its key without a password, authorities of clients.

        Raises:
            UnusableFileError: when they cannot be used.
        """
        self._certificate, self._key = certificate, key
        self._needs_client = client_ca is not None
        paths = (certificate, key) if client_ca is None else (certificate, key, client_ca)
        self.file = KeptFile("certificate", paths, self._read)
        self._given_to_grpc = self.file.value

    @property
    def expiry_seconds(self) -> float:
        """When the certificate in force ends, in seconds since 1970."""
        return self.file.value.expiry_seconds

    def grpc_credentials(self) -> grpc.ServerCredentials:
        """Credentials that follow the files."""
        return grpc.dynamic_ssl_server_credentials(
            self.file.value.for_grpc,
            self._next_for_grpc,  # type: ignore[arg-type]  # None is allowed, although the type says otherwise
            require_client_authentication=self._needs_client,
        )

    def http_context(self) -> ssl.SSLContext:
        """A context that gives every new connection the certificate in force."""
        listening = self.file.value.for_http

        def choose(connection: ssl.SSLObject, name: str | None, context: ssl.SSLContext) -> None:
            del name, context  # one certificate, whatever name the planner was called by
            connection.context = self.file.value.for_http

        # Called for every connection, also for those that name no server.
        listening.sni_callback = choose
        return listening

    def _next_for_grpc(self) -> grpc.ServerCertificateConfiguration | None:
        """Asked by gRPC's threads before each handshake; None keeps what it has."""
        current = self.file.value
        if current is self._given_to_grpc:
            return None
        self._given_to_grpc = current
        return current.for_grpc

    def _read(self, contents: tuple[bytes, ...]) -> Certificate:
        chain, key, *client_ca = contents
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        # It takes paths only; KeptFile sees to it that they still say the same afterwards. Without a password OpenSSL
        # would ask for that of an encrypted key at the terminal.
        context.load_cert_chain(self._certificate, self._key, password="")
        if client_ca:
            ssl.create_default_context(cadata=client_ca[0].decode("ascii"))
        return Certificate(
            for_grpc=grpc.ssl_server_certificate_configuration(
                [(key, chain)], root_certificates=client_ca[0] if client_ca else None
            ),
            for_http=context,
            expiry_seconds=read_expiry(chain.decode("ascii", "replace")).timestamp(),
        )
