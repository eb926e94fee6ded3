"""A refused request as gRPC carries it: status code, message, and `google.rpc.Status` with the details."""

from __future__ import annotations

from typing import NamedTuple

import grpc
from google.rpc import error_details_pb2, status_pb2

from taot_api.codec.duration import encode_seconds
from taot_api.contract_error import ERROR_DOMAIN, ContractError

MAX_MESSAGE_CHARS = 1000
"""Messages travel as HTTP/2 metadata, whose usual limit is 8 KiB for everything together."""

DETAILS_KEY = "grpc-status-details-bin"


class Refusal(NamedTuple):
    """The arguments of `ServicerContext.abort`."""

    code: grpc.StatusCode
    """The status."""

    details: str
    """The message."""

    trailing_metadata: tuple[tuple[str, bytes], ...]
    """A serialized google.rpc.Status."""


def refusal_of(error: ContractError) -> Refusal:
    """Packs an error with ErrorInfo, BadRequest when a field is to blame, RetryInfo when waiting helps."""
    code = grpc.StatusCode[error.reason.status_code]
    message = _clip(str(error))
    metadata = {key: _clip(value) for key, value in error.metadata.items()}
    if error.field:
        metadata["field"] = error.field
    status = status_pb2.Status(code=code.value[0], message=message)
    status.details.add().Pack(
        error_details_pb2.ErrorInfo(reason=error.reason.name, domain=ERROR_DOMAIN, metadata=metadata)
    )
    if code is grpc.StatusCode.INVALID_ARGUMENT and error.field:
        violation = error_details_pb2.BadRequest.FieldViolation(
            field=error.field, description=_clip(error.bare_message)
        )
        status.details.add().Pack(error_details_pb2.BadRequest(field_violations=[violation]))
    if error.retry_seconds is not None:
        delay = encode_seconds(error.retry_seconds)
        status.details.add().Pack(error_details_pb2.RetryInfo(retry_delay=delay))
    return Refusal(code, message, ((DETAILS_KEY, status.SerializeToString()),))


def _clip(text: str) -> str:
    """ASCII of bounded length: requests may be quoted in messages, and hold anything."""
    plain = text.encode("ascii", "backslashreplace").decode("ascii")
    if len(plain) <= MAX_MESSAGE_CHARS:
        return plain
    return plain[: MAX_MESSAGE_CHARS - 3] + "..."
