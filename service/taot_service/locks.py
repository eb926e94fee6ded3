"""What keeps the two ports to those who may use them: the certificate and the tokens, followed as they change."""

from __future__ import annotations

import asyncio

from taot_service.access import Access
from taot_service.config import ServiceConfig
from taot_service.host_names import is_loopback
from taot_service.kept_file import UnusableFileError
from taot_service.metrics import ServiceMetrics
from taot_service.tls import CertificateKeeper

CHECK_SECONDS = 2.0
"""How often the files are looked at: a revoked token opens nothing after this long."""


class Locks:
    """The certificate and the tokens of one planner, each of them optional."""

    def __init__(self, config: ServiceConfig) -> None:
        """Reads them.

        Raises:
            UnusableFileError: when they cannot be used, or not without another that is missing.
        """
        if (config.tls_cert is None) != (config.tls_key is None):
            raise UnusableFileError("--tls-cert and --tls-key go together: give both or neither")
        if config.tls_client_ca is not None and config.tls_cert is None:
            raise UnusableFileError("--tls-client-ca needs --tls-cert and --tls-key")
        self.access = Access(config.tokens)
        self.certificate: CertificateKeeper | None = None
        if config.tls_cert is not None and config.tls_key is not None:
            self.certificate = CertificateKeeper(
                certificate=config.tls_cert, key=config.tls_key, client_ca=config.tls_client_ca
            )

    def show_in(self, metrics: ServiceMetrics) -> None:
        """Adds gauges for what operators must see coming."""
        files = [self.access.file, self.certificate.file if self.certificate is not None else None]
        metrics.show(
            "taot_refused_files",
            "Certificates and token files that have changed into what cannot be used; the last one stays in force.",
            lambda: sum(file is not None and file.is_refused for file in files),
        )
        if self.certificate is not None:
            certificate = self.certificate
            metrics.show(
                "taot_certificate_expiry_timestamp_seconds",
                "When the certificate in force ends, in seconds since 1970.",
                lambda: certificate.expiry_seconds,
            )

    async def follow_files(self) -> None:
        """Reads the files again when they change, as long as the planner runs."""
        while True:
            await asyncio.sleep(CHECK_SECONDS)
            await asyncio.to_thread(self.refresh)

    def refresh(self) -> None:
        """Reads them again now."""
        if self.access.file is not None:
            self.access.file.refresh()
        if self.certificate is not None:
            self.certificate.file.refresh()


def exposure_warnings(config: ServiceConfig) -> list[str]:
    """What whoever starts a planner should know about who can reach it; nothing on the loopback."""
    if is_loopback(config.host):
        return []
    warnings = []
    if config.tokens is None:
        warnings.append(
            f"everybody who reaches {config.host} may use this planner, pause jobs and disturb their sessions: say who"
            " may with --tokens"
        )
    if config.tls_cert is None:
        warnings.append(
            f"what is sent to {config.host} travels in plain text{', tokens too' if config.tokens else ''}: encrypt it"
            " with --tls-cert and --tls-key"
        )
    return warnings
