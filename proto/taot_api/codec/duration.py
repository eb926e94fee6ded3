"""Spans of time as messages, to the nanosecond."""

from __future__ import annotations

from google.protobuf.duration_pb2 import Duration


def encode_seconds(seconds: float) -> Duration:
    """Packs a span of time, which may be negative."""
    duration = Duration()
    duration.FromNanoseconds(round(seconds * 1e9))
    return duration


def decode_seconds(duration: Duration) -> float:
    """Unpacks a span of time."""
    return duration.seconds + duration.nanos / 1e9
