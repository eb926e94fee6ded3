"""Logins of browsers: a cookie stands for a token that was shown once. Pure: callers pass in the time.

The token itself is in no cookie: browsers send cookies of a host to all of its ports. Logins are kept in memory, so a
restarted planner asks again.
"""

from __future__ import annotations

import hashlib
import secrets
from collections import OrderedDict

LIFETIME_SECONDS = 12 * 3600.0
"""How long a login lasts: a working day."""

MAX_LOGINS = 256
"""Logins at a time; the oldest gives way."""


class Logins:
    """Who is logged in."""

    def __init__(self) -> None:
        self._logins: OrderedDict[bytes, tuple[bytes, float]] = OrderedDict()

    def open(self, digest: bytes, *, now_seconds: float) -> str:
        """Logs in who has shown the token with this digest; returns what stands for it, for a cookie."""
        key = secrets.token_urlsafe(32)
        self._logins[_hashed(key)] = digest, now_seconds + LIFETIME_SECONDS
        if len(self._logins) > MAX_LOGINS:
            self._logins.popitem(last=False)
        return key

    def find(self, key: str, *, now_seconds: float) -> bytes | None:
        """The digest of the token that was shown, or None for what is not logged in or not any more."""
        digest, end_seconds = self._logins.get(_hashed(key), (None, 0.0))
        return digest if now_seconds < end_seconds else None

    def close(self, key: str) -> None:
        """Logs out."""
        self._logins.pop(_hashed(key), None)


def _hashed(key: str) -> bytes:
    # Looked up by its hash, so that the time of a look-up tells nothing of what would be a good key.
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()
