"""Who may use this planner: tokens, read again when their file changes, and what callers without one are told."""

from __future__ import annotations

import logging
from pathlib import Path

from taot_api.contract_error import ContractError, Reason
from taot_service.failure_bound import FailureBound
from taot_service.kept_file import KeptFile
from taot_service.tokens import Grant, TokenBook, parse_tokens

logger = logging.getLogger(__name__)

_SCHEME = "bearer"


class Access:
    """The tokens of one planner. Without a file everybody may do everything, as on a machine of one's own."""

    def __init__(self, token_file: Path | None) -> None:
        """Reads the tokens.

        Raises:
            UnusableFileError: when the file cannot be used.
        """
        self.file: KeptFile[TokenBook] | None = None
        if token_file is not None:
            self.file = KeptFile("token file", (token_file,), _read)
        self.failures = FailureBound()

    @property
    def needs_token(self) -> bool:
        """Whether callers must show who they are."""
        return self.file is not None

    def find(self, authorization: str | None) -> Grant | None:
        """What the header or metadata `authorization` allows its sender, or None."""
        scheme, _, token = (authorization or "").partition(" ")
        if self.file is None or scheme.lower() != _SCHEME:
            return None
        return self.file.value.find(token.strip())

    def find_digest(self, digest: bytes) -> Grant | None:
        """What a token is allowed by now whose digest was kept at a login."""
        return None if self.file is None else self.file.value.find_digest(digest)

    def is_current(self, grant: Grant) -> bool:
        """Whether a grant is of the tokens in force, and not of those before."""
        return self.file is not None and self.file.value.has(grant)

    def note_failure(self, peer: str, what: str, *, now_seconds: float) -> bool:
        """Notes a refused caller in the log, the first of a row; False when too many came from where it did."""
        failure = self.failures.note(peer, now_seconds=now_seconds)
        if failure.is_first:
            logger.warning("refused %s from %s; further ones from there are not logged for a while", what, peer)
        return failure.is_within_bound


def _read(contents: tuple[bytes, ...]) -> TokenBook:
    return parse_tokens(contents[0].decode("utf-8"))


def unauthenticated(*, has_token: bool) -> ContractError:
    """The error for a caller whom the planner does not know."""
    what = "the planner does not know the token of this call" if has_token else "the call has no token"
    return ContractError(
        Reason.UNAUTHENTICATED,
        f"{what}: send 'authorization: Bearer TOKEN', which agents take from AgentOptions.planner_access or"
        " TAOT_TOKEN_FILE",
    )
