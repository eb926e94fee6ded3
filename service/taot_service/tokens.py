"""Bearer tokens: who may do what. The planner knows tokens by their SHA-256 only, so its file gives none away.

A line of the file grants one thing to one token; what follows a # is a remark:

    job=pretrain-a  <SHA-256 of the token in hex>   # the agents of that job, over gRPC
    job=*           <SHA-256>                       # the agents of any job
    read            <SHA-256>                       # pages, metrics and GET below /v1, over HTTP
    admin           <SHA-256>                       # those, pause and resume

Several lines may name one token: it may do all that they grant.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from dataclasses import dataclass
from enum import Enum

from taot_api.session_spec import NAME_PATTERN

ANY_JOB = "*"
"""Stands for every training job."""

MAX_LINES = 1000
"""Grants of a file: all of them are compared with every token that comes."""

MAX_TOKEN_CHARS = 512
"""A longer token is none; nothing of it is hashed."""

_DIGEST = re.compile(r"[0-9a-f]{64}")


class Role(Enum):
    """What a token may do over HTTP, from little to much."""

    NONE = 0
    READ = 1
    ADMIN = 2


@dataclass(frozen=True, kw_only=True)
class Grant:
    """What one token may do."""

    digest: bytes
    """SHA-256 of the token."""

    jobs: frozenset[str] = frozenset()
    """Training jobs whose sessions it may open and use over gRPC."""

    role: Role = Role.NONE
    """What it may do over HTTP."""

    def has_job(self, training_job: str) -> bool:
        """Whether it may use sessions of a training job."""
        return training_job in self.jobs or ANY_JOB in self.jobs


class TokenBook:
    """All grants of a planner."""

    def __init__(self, grants: tuple[Grant, ...]) -> None:
        self._grants = grants
        self._ids = frozenset(map(id, grants))

    def has(self, grant: Grant) -> bool:
        """Whether it is this very grant of this book, which keeps it alive."""
        return id(grant) in self._ids

    def find(self, token: str) -> Grant | None:
        """The grant of a token, or None."""
        if not 0 < len(token) <= MAX_TOKEN_CHARS:
            return None
        return self.find_digest(digest_of(token))

    def find_digest(self, digest: bytes) -> Grant | None:
        """The grant of a token whose digest is known; takes equally long whichever of them it is."""
        found = None
        for grant in self._grants:
            if hmac.compare_digest(grant.digest, digest):
                found = grant
        return found


def make_token() -> str:
    """A new token: 256 bits by chance, with a prefix by which scanners of leaked secrets may know it."""
    return "taot_" + secrets.token_urlsafe(32)


def digest_of(token: str) -> bytes:
    """SHA-256 of a token. Tokens are long and made by chance: neither salt nor many rounds would add anything."""
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()


def format_line(what: str, token: str) -> str:
    """The line of the file that grants `what`, such as `read` or `job=NAME`, to a token."""
    return f"{what} {digest_of(token).hex()}"


def parse_tokens(text: str) -> TokenBook:
    """Reads a token file.

    Raises:
        ValueError: when it grants nothing; or naming a line and never quoting it, since somebody may have put a token
            there.
    """
    jobs: dict[bytes, set[str]] = {}
    roles: dict[bytes, Role] = {}
    num_grants = 0
    for number, line in enumerate(text.splitlines(), start=1):
        words = line.split("#", 1)[0].split()
        if not words:
            continue
        num_grants += 1
        if num_grants > MAX_LINES:
            raise ValueError(f"it has more than {MAX_LINES} grants: give jobs that trust each other one token")
        if len(words) != 2 or not _DIGEST.fullmatch(words[1]):
            raise ValueError(
                f"line {number} must be what is granted and the SHA-256 of the token in 64 hex digits, as"
                " `taot token new` prints it"
            )
        digest = bytes.fromhex(words[1])
        job, role = _read_grant(words[0], number)
        jobs.setdefault(digest, set()).update({job} if job else ())
        roles[digest] = max(role, roles.get(digest, Role.NONE), key=lambda each: each.value)
    if not jobs:
        # More likely a file that is being written than the wish to lock everybody out.
        raise ValueError("it grants nothing: `taot token new --file` adds a line")
    return TokenBook(tuple(Grant(digest=digest, jobs=frozenset(jobs[digest]), role=roles[digest]) for digest in jobs))


def _read_grant(word: str, number: int) -> tuple[str, Role]:
    """The job, or an empty string, and the role that a word grants."""
    if word in ("read", "admin"):
        return "", Role[word.upper()]
    job = word.removeprefix("job=")
    if job == word or not (job == ANY_JOB or NAME_PATTERN.fullmatch(job)):
        raise ValueError(f"line {number} must begin with job=NAME, job=*, read or admin")
    return job, Role.NONE
