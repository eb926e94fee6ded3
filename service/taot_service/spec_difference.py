"""Where two session specs differ."""

from __future__ import annotations

from taot_api.codec import encode_session_spec
from taot_api.session_spec import SessionSpec


def first_difference(left: SessionSpec, right: SessionSpec) -> str | None:
    """The first top-level field of the request in which the two differ, None when they agree."""
    left_message, right_message = encode_session_spec(left), encode_session_spec(right)
    for field in left_message.DESCRIPTOR.fields:
        if getattr(left_message, field.name) != getattr(right_message, field.name):
            return str(field.name)
    return None
