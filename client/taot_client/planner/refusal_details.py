"""What a refused call says beyond its status: why, the facts, and when to try again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from google.protobuf.message import DecodeError
from google.rpc import error_details_pb2, status_pb2

from taot_api.codec.duration import decode_seconds

DETAILS_KEY = "grpc-status-details-bin"
"""Metadata that holds a serialized google.rpc.Status."""


@dataclass(frozen=True, kw_only=True)
class RefusalDetails:
    """The details of a refusal; empty where there are none, as for calls that never reached a planner."""

    reason: str = ""
    """The reason of its ErrorInfo, such as `SESSION_NOT_FOUND`."""

    metadata: Mapping[str, str] = field(default_factory=dict)
    """The facts of its ErrorInfo."""

    retry_seconds: float | None = None
    """When to try again by its RetryInfo; None: it has none."""


def details_of(error: Any) -> RefusalDetails:
    """Reads the details of a failed call, a `grpc.RpcError`. What cannot be read is left out."""
    packed = dict(error.trailing_metadata() or ()).get(DETAILS_KEY)
    if not isinstance(packed, bytes):
        return RefusalDetails()
    info, retry = error_details_pb2.ErrorInfo(), error_details_pb2.RetryInfo()
    has_retry = False
    try:
        for detail in status_pb2.Status.FromString(packed).details:
            detail.Unpack(info)
            has_retry |= detail.Unpack(retry)
    except DecodeError:
        return RefusalDetails()
    return RefusalDetails(
        reason=info.reason,
        metadata=dict(info.metadata),
        retry_seconds=decode_seconds(retry.retry_delay) if has_retry else None,
    )
