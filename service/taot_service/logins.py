"""Logins of browsers: a cookie stands for a token that was shown once. Pure: callers pass in the time.

The token itself is in no cookie: browsers send cookies of a host to all of its ports. Logins are kept in memory, so a
restarted planner asks again.
"""

from __future__ import annotations

import hashlib
import secrets
from collections import Counter

LIFETIME_SECONDS = 12 * 3600.0
"""How long a login lasts: a working day."""

MAX_LOGINS = 256
"""Logins at a time; beyond them the token with most logins loses its oldest, so that nobody can log out others."""


class Logins:
    """Who is logged in."""

    def __init__(self) -> None:
        self._logins: dict[bytes, tuple[bytes, float]] = {}  # the oldest first

    def open(self, digest: bytes, *, now_seconds: float) -> str:
        """Logs in who has shown the token with this digest; returns what stands for it, for a cookie."""
        self._logins = {key: login for key, login in self._logins.items() if now_seconds < login[1]}
        key = secrets.token_urlsafe(32)
        self._logins[_hashed(key)] = digest, now_seconds + LIFETIME_SECONDS
        if len(self._logins) > MAX_LOGINS:
            self._logins.pop(self._surplus_login())
        return key

    def find(self, key: str, *, now_seconds: float) -> bytes | None:
        """The digest of the token that was shown, or None for what is not logged in or not any more."""
        digest, end_seconds = self._logins.get(_hashed(key), (None, 0.0))
        return digest if now_seconds < end_seconds else None

    def close(self, key: str) -> None:
        """Logs out."""
        self._logins.pop(_hashed(key), None)

    def _surplus_login(self) -> bytes:
        """The oldest login of the token that has most of them."""
        counted = Counter(digest for digest, _ in self._logins.values())
        crowd = max(counted, key=counted.__getitem__)
        return next(key for key, (digest, _) in self._logins.items() if digest == crowd)


def _hashed(key: str) -> bytes:
    # Looked up by its hash, so that the time of a look-up tells nothing of what would be a good key.
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()
