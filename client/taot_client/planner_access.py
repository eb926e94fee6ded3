"""How the planner knows the agent, and the agent the planner: tokens and certificates."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path

SYSTEM_AUTHORITIES = "system"
"""In place of a file: the authorities that gRPC brings along."""


@dataclass(frozen=True, kw_only=True)
class PlannerAccess:
    """What the leader shows to the planner and expects of it. Ranks may differ in it.

    What is left out comes from the environment: TAOT_PLANNER_CA, TAOT_PLANNER_CLIENT_CERT, TAOT_PLANNER_CLIENT_KEY,
    TAOT_TOKEN and TAOT_TOKEN_FILE. Files are read again whenever a session is opened, so that they may be rotated.
    """

    ca: str | Path | None = None
    """PEM file with the authorities of the planner's certificate, or `system`. None: no TLS, unless there is a client
    certificate."""

    client_cert: str | Path | None = None
    """PEM file with the certificate of the agent, for planners that ask for one."""

    client_key: str | Path | None = None
    """PEM file with its key, without a password."""

    token: str | None = field(default=None, repr=False)
    """The token of the training job. A file is better: it can be rotated, and programs do not inherit it."""

    token_file: str | Path | None = None
    """File with the token alone."""

    def __post_init__(self) -> None:
        if self.token is not None and self.token_file is not None:
            raise ValueError("a planner gets one token: give token or token_file, not both")
        if (self.client_cert is None) != (self.client_key is None):
            raise ValueError("client_cert and client_key go together: give both or neither")

    @property
    def has_tls(self) -> bool:
        """Whether the connection is encrypted."""
        return self.ca is not None or self.client_cert is not None

    def completed(self, variables: Mapping[str, str]) -> PlannerAccess:
        """This with what is left out taken from `variables`, by field."""
        known = {each.name for each in fields(self) if getattr(self, each.name) is not None}
        # One of a pair that is given stands for the pair.
        for pair in (("token", "token_file"), ("client_cert", "client_key")):
            if known & set(pair):
                known |= set(pair)
        return replace(self, **{name: value for name, value in variables.items() if name not in known})
