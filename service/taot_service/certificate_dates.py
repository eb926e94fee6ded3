"""When a certificate ends: the one thing about it that operators must be told.

Python's standard library tells it for certificates of peers only, so this reads the few bytes of DER before it.
"""

from __future__ import annotations

import ssl
from datetime import datetime, timezone

_END_MARKER = "-----END CERTIFICATE-----"
_BEGIN_MARKER = "-----BEGIN CERTIFICATE-----"
_VERSION_TAG = 0xA0
_UTC_TIME_TAG = 0x17


def read_expiry(pem: str) -> datetime:
    """The end of validity of the first certificate in `pem`, which is the server's own in a chain.

    Raises:
        ValueError: if there is none.
    """
    start, end = pem.find(_BEGIN_MARKER), pem.find(_END_MARKER)
    if start < 0 or end < start:
        raise ValueError("there is no PEM certificate in it")
    der = ssl.PEM_cert_to_DER_cert(pem[start : end + len(_END_MARKER)])
    try:
        return _read_not_after(der)
    except IndexError as error:
        raise ValueError("its certificate is cut off") from error


def _read_not_after(der: bytes) -> datetime:
    # RFC 5280: Certificate { tbsCertificate { [0] version, serial, signature, issuer, validity { from, to } ...
    _, at, _ = _element(der, 0)
    _, at, _ = _element(der, at)
    tag, _, behind = _element(der, at)
    if tag == _VERSION_TAG:
        at = behind
    for _ in ("serial", "signature", "issuer"):
        _, _, at = _element(der, at)
    _, at, _ = _element(der, at)
    _, _, at = _element(der, at)
    tag, begin, behind = _element(der, at)
    text = der[begin:behind].decode("ascii")
    if tag == _UTC_TIME_TAG:  # two digits of a year: 50 to 99 are of the last century
        text = ("19" if int(text[:2]) >= 50 else "20") + text
    return datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=timezone.utc)


def _element(der: bytes, at: int) -> tuple[int, int, int]:
    """Tag of the DER element at `at`, where its content begins, and where it ends."""
    length, begin = der[at + 1], at + 2
    if length & 0x80:
        num_bytes = length & 0x7F
        length, begin = int.from_bytes(der[begin : begin + num_bytes], "big"), begin + num_bytes
    return der[at], begin, begin + length
