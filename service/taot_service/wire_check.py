"""What parsing a request would allocate, read off its bytes before it is parsed. Pure.

An empty message inside another takes two bytes on the wire and some eighty in memory, a number one byte and up to
eight: so a request of 64 MiB could take gigabytes. Only what lies between the fields is read, not the tensors.
"""

from __future__ import annotations

from google.protobuf.descriptor import Descriptor, FieldDescriptor

from taot_api.contract_error import ContractError, Reason

SMALL_BYTES = 2**20
"""Requests below this are not looked at: whatever they hold takes some 40 MB at most, and is gone at once."""

MAX_PARTS = 2**16
"""Messages inside a request: twice what a group of 1,024 ranks sends with everything there is to tell."""

MAX_FIELDS = 2**17
"""Fields of the request and of all messages inside: twice MAX_PARTS. It bounds the time of this check too, which
takes one to three microseconds for each and holds up the event loop."""

MAX_NUMBER_BYTES = 2**24
"""Bytes of repeated numbers: four homes for each expert of the largest session, in every layer."""

_VARINT, _FIXED_64, _BYTES, _FIXED_32 = 0, 1, 2, 5
_FIXED_SIZES = {_FIXED_64: 8, _FIXED_32: 4}
_TEXT_TYPES = (FieldDescriptor.TYPE_BYTES, FieldDescriptor.TYPE_STRING)


def check_parts(data: bytes, descriptor: Descriptor) -> None:
    """Checks that a serialized message of this type does not become much larger when it is parsed.

    Bytes that are no message are left to the parser, except groups: they are legal, no method has them, and what lies
    behind them would have to be looked at.

    Raises:
        ContractError: LIMIT_EXCEEDED or INVALID_MESSAGE.
    """
    if len(data) < SMALL_BYTES:
        return
    tally = _Tally()
    try:
        tally.add_message(memoryview(data), descriptor)
    except IndexError:
        return


class _Tally:
    """What has been found so far."""

    def __init__(self) -> None:
        self._fields = 0
        self._parts = 0
        self._number_bytes = 0

    def add_message(self, data: memoryview, descriptor: Descriptor) -> None:
        position = 0
        fields = descriptor.fields_by_number
        while position < len(data):
            self._add_one_field()
            tag, position = _read_varint(data, position)
            wire_type, field = tag & 7, fields.get(tag >> 3)
            if wire_type == _BYTES:
                size, position = _read_varint(data, position)
                self._add_field(data[position : position + size], field)
                position += size
            elif wire_type == _VARINT:
                _, position = _read_varint(data, position)
            elif wire_type in _FIXED_SIZES:
                position += _FIXED_SIZES[wire_type]
            else:
                raise ContractError(
                    Reason.INVALID_MESSAGE,
                    f"the request has a field of wire type {wire_type}, which no method has: use the stubs of taot_api",
                )

    def _add_field(self, data: memoryview, field: FieldDescriptor | None) -> None:
        if field is None or field.type in _TEXT_TYPES:
            self._add_part()
        elif field.message_type is not None:
            self._add_part()
            self.add_message(data, field.message_type)
        else:  # packed
            self._add_numbers(len(data))

    def _add_one_field(self) -> None:
        self._fields += 1
        _check(self._fields, MAX_FIELDS, "fields in a request")

    def _add_part(self) -> None:
        self._parts += 1
        _check(self._parts, MAX_PARTS, "messages and texts inside a request")

    def _add_numbers(self, num_bytes: int) -> None:
        self._number_bytes += num_bytes
        _check(self._number_bytes, MAX_NUMBER_BYTES, "bytes of numbers in a request")


def _check(got: int, limit: int, what: str) -> None:
    if got > limit:
        raise ContractError(
            Reason.LIMIT_EXCEEDED,
            f"this planner reads at most {limit} {what}: send the tensors that the session declares, and nothing twice",
            metadata={"limit": str(limit)},
        )


def _read_varint(data: memoryview, position: int) -> tuple[int, int]:
    byte = data[position]
    if byte < 0x80:  # noqa: PLR2004 - the highest bit says that more follow
        return byte, position + 1
    value = shift = 0
    for _ in range(10):
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:  # noqa: PLR2004
            return value, position
        shift += 7
    raise IndexError("no number is longer: the parser will say so")
