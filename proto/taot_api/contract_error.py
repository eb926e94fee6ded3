"""What is wrong with a request, in a form that machines and people can read."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from types import MappingProxyType

ERROR_DOMAIN = "taot"
"""The `domain` of every `google.rpc.ErrorInfo` that the planner sends."""


class Reason(Enum):
    """Why a request was refused: the `reason` of `google.rpc.ErrorInfo`, with its gRPC status code.

    proto/README.md explains each to callers.
    """

    INVALID_MESSAGE = ("INVALID_MESSAGE", "INVALID_ARGUMENT")
    INVALID_NAME = ("INVALID_NAME", "INVALID_ARGUMENT")
    INVALID_INCARNATION = ("INVALID_INCARNATION", "INVALID_ARGUMENT")
    INVALID_LAYER = ("INVALID_LAYER", "INVALID_ARGUMENT")
    INVALID_TOPOLOGY = ("INVALID_TOPOLOGY", "INVALID_ARGUMENT")
    INVALID_OPTION = ("INVALID_OPTION", "INVALID_ARGUMENT")
    INVALID_TENSOR = ("INVALID_TENSOR", "INVALID_ARGUMENT")
    INVALID_COUNTS = ("INVALID_COUNTS", "INVALID_ARGUMENT")
    INVALID_STEP = ("INVALID_STEP", "INVALID_ARGUMENT")
    UNKNOWN_ALGORITHM = ("UNKNOWN_ALGORITHM", "INVALID_ARGUMENT")
    ALGORITHM_UNAVAILABLE = ("ALGORITHM_UNAVAILABLE", "FAILED_PRECONDITION")
    DEADLINE_REQUIRED = ("DEADLINE_REQUIRED", "INVALID_ARGUMENT")
    UNAUTHENTICATED = ("UNAUTHENTICATED", "UNAUTHENTICATED")
    PERMISSION_DENIED = ("PERMISSION_DENIED", "PERMISSION_DENIED")
    SESSION_NOT_FOUND = ("SESSION_NOT_FOUND", "NOT_FOUND")
    PLAN_NOT_FOUND = ("PLAN_NOT_FOUND", "NOT_FOUND")
    STALE_INCARNATION = ("STALE_INCARNATION", "FAILED_PRECONDITION")
    LIMIT_EXCEEDED = ("LIMIT_EXCEEDED", "RESOURCE_EXHAUSTED")
    OVERLOADED = ("OVERLOADED", "RESOURCE_EXHAUSTED")
    DEADLINE_EXCEEDED = ("DEADLINE_EXCEEDED", "DEADLINE_EXCEEDED")
    PLANNING_FAILED = ("PLANNING_FAILED", "INTERNAL")
    SHUTTING_DOWN = ("SHUTTING_DOWN", "UNAVAILABLE")

    @property
    def status_code(self) -> str:
        """Name of the gRPC status code, such as `INVALID_ARGUMENT`."""
        return self.value[1]


class ContractError(ValueError):
    """A request that breaks the contract: what was wrong, what was got, what to do."""

    def __init__(
        self,
        reason: Reason,
        message: str,
        *,
        field: str = "",
        metadata: Mapping[str, str] | None = None,
        retry_seconds: float | None = None,
    ) -> None:
        super().__init__(f"{field}: {message}" if field else message)
        self.reason = reason
        self.bare_message = message
        """The message without the field."""
        self.field = field
        """Path of the offending field in the request, such as `layers[3].home_ranks`, or empty."""
        self.metadata: Mapping[str, str] = MappingProxyType(dict(metadata or {}))
        """The facts of the message for machines, such as the session id; the wire adds `field`."""
        self.retry_seconds = retry_seconds
        """After how long the same request may succeed; None: not by waiting."""

    def within(self, outer: str) -> ContractError:
        """The same error with the field as a path from an outer message, such as `report`."""
        field = f"{outer}.{self.field}" if self.field else outer
        return ContractError(
            self.reason, self.bare_message, field=field, metadata=self.metadata, retry_seconds=self.retry_seconds
        )
