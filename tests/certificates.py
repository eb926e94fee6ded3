"""Certificates for tests, made in an instant with elliptic curves."""

from __future__ import annotations

import datetime
import ipaddress
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID


@dataclass(frozen=True, kw_only=True)
class Issued:
    """A certificate and its key as PEM."""

    certificate: bytes
    key: bytes
    end: datetime.datetime

    def write(self, folder: Path, name: str = "server") -> tuple[Path, Path]:
        """Puts both in place as tools that rotate do: each whole, one after the other."""
        paths = folder / f"{name}.crt", folder / f"{name}.key"
        for path, content in zip(paths, (self.certificate, self.key), strict=True):
            partial = path.with_suffix(".partial")
            partial.write_bytes(content)
            partial.replace(path)
        return paths


class Authority:
    """One that signs certificates."""

    def __init__(self, name: str = "tests") -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _name(name)
        self.certificate = _pem(_builder(self._name, self._name, self._key, days=3650, is_authority=True), self._key)

    def write(self, folder: Path, name: str = "ca") -> Path:
        path = folder / f"{name}.crt"
        path.write_bytes(self.certificate)
        return path

    def issue(self, name: str = "planner", *, days: float = 30, password: bytes | None = None) -> Issued:
        """A certificate for the loopback that ends after `days`."""
        key = ec.generate_private_key(ec.SECP256R1())
        builder = _builder(_name(name), self._name, key, days=days, is_authority=False)
        certificate = _pem(builder, self._key)
        encryption = BestAvailableEncryption(password) if password else NoEncryption()
        return Issued(
            certificate=certificate,
            key=key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encryption),
            end=x509.load_pem_x509_certificate(certificate).not_valid_after_utc,
        )


def _name(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, *, days: float, is_authority: bool
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.timezone.utc).replace(microsecond=0)
    addresses = [x509.IPAddress(ipaddress.ip_address(each)) for each in ("127.0.0.1", "::1")]
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=days))
        .add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost"), *addresses]), critical=False)
    )


def _pem(builder: x509.CertificateBuilder, key: ec.EllipticCurvePrivateKey) -> bytes:
    return builder.sign(key, hashes.SHA256()).public_bytes(Encoding.PEM)
