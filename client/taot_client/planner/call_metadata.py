"""What an interceptor hands on: a call's details with more metadata."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import grpc


class _Details(NamedTuple):
    """grpc.ClientCallDetails with other metadata."""

    method: str
    timeout: float | None
    metadata: tuple[tuple[str, str | bytes], ...]
    credentials: grpc.CallCredentials | None
    wait_for_ready: bool | None
    compression: Any


def with_metadata(details: Any, metadata: Iterable[tuple[str, str]]) -> Any:
    """The details of a call with `metadata` added to its own."""
    return _Details(
        method=details.method,
        timeout=details.timeout,
        metadata=(*(details.metadata or ()), *metadata),
        credentials=details.credentials,
        wait_for_ready=getattr(details, "wait_for_ready", None),
        compression=getattr(details, "compression", None),
    )
