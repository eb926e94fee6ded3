"""Requests that nobody should send: valid ones, spoilt by a given source of chance."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import EncodeError, Message

INT32_EXTREMES = (-(2**31), -1, 0, 1, 2, 255, 65536, 2**31 - 1)
INT64_EXTREMES = (*INT32_EXTREMES, -(2**63), 2**31, 2**53, 2**62, 2**63 - 1)
DOUBLE_EXTREMES = (math.nan, math.inf, -math.inf, -1.0, -0.0, 1e308, 5e-324)
TEXTS = ("", "\0", "a b", "../..", "\u2603", "%s%n{0}", "x" * 129, "y" * 100_000, "nan", "taot-paper", "magic")
SURROGATES = b"\xed\xa0\x80\xed\xb0\x80"
"""UTF-8 has no such thing: half of a pair each."""
MANY = 1_000_000
_INT32 = (FieldDescriptor.TYPE_INT32, FieldDescriptor.TYPE_ENUM)


def is_repeated(field: FieldDescriptor) -> bool:
    """Whether the field is a list or a map; protobuf has given this two names over the years."""
    return bool(field.is_repeated if hasattr(field, "is_repeated") else field.label == field.LABEL_REPEATED)


class Mutator:
    """Spoils messages; the same source gives the same messages."""

    def __init__(self, source: random.Random, *, many_chance: float = 0.002) -> None:
        """Takes chance from `source`; `many_chance` is that of a list of a million entries."""
        self._source = source
        self._many_chance = many_chance

    def request(self, message: Message) -> bytes:
        """A spoilt copy of `message` in bytes: in its values, in its bytes, or in both."""
        spoilt = type(message)()
        spoilt.CopyFrom(message)
        kind = self._source.random()
        if kind < 0.7:
            for _ in range(self._source.choice((1, 1, 1, 2, 4))):
                self._spoil_values(spoilt)
        try:
            data = spoilt.SerializeToString()
        except (EncodeError, ValueError):
            data = message.SerializeToString()
        return data if kind < 0.6 else self._spoil_bytes(data)

    # Values.

    def _spoil_values(self, message: Message) -> None:
        """Changes one field of the message or of one inside it."""
        inner, fields = message, list(message.DESCRIPTOR.fields)
        while True:
            field = self._source.choice(fields)
            children = self._children(inner, field)
            if not children or self._source.random() < 0.2:
                break
            inner = self._source.choice(children)
            fields = list(inner.DESCRIPTOR.fields)
            if not fields:
                return
        self._spoil_field(inner, field)

    @staticmethod
    def _children(message: Message, field: FieldDescriptor) -> list[Message]:
        if field.message_type is None or field.message_type.GetOptions().map_entry:
            return []
        value = getattr(message, field.name)
        return list(value) if is_repeated(field) else [value] if message.HasField(field.name) else []

    def _spoil_field(self, message: Message, field: FieldDescriptor) -> None:
        if is_repeated(field):
            self._spoil_list(message, field)
        elif self._source.random() < 0.15:
            message.ClearField(field.name)
        elif field.message_type is not None:
            getattr(message, field.name).SetInParent()
        else:
            setattr(message, field.name, self._value(field))

    def _spoil_list(self, message: Message, field: FieldDescriptor) -> None:
        values = getattr(message, field.name)
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            values[self._source.choice(TEXTS)] = self._value(field.message_type.fields_by_name["value"])
            return
        change = self._source.choice(("clear", "shorten", "double", "set", "grow"))
        if change == "clear" or not len(values):
            message.ClearField(field.name)
            change = self._source.choice(("grow", "clear"))
        if change == "shorten":
            values.pop()
        elif change == "double":
            values.extend(list(values))
        elif change == "set" and field.message_type is None:
            values[self._source.randrange(len(values))] = self._value(field)
        elif change == "grow":
            self._grow(values, field)

    def _grow(self, values: object, field: FieldDescriptor) -> None:
        number = MANY if self._source.random() < self._many_chance else self._source.choice((1, 2, 300))
        if field.message_type is not None:
            for _ in range(min(number, 100_000)):
                values.add()
        else:
            values.extend([self._value(field)] * min(number, 100_000 if field.type == field.TYPE_STRING else MANY))

    def _value(self, field: FieldDescriptor) -> object:
        if field.type == FieldDescriptor.TYPE_BOOL:
            return self._source.random() < 0.5
        if field.type == FieldDescriptor.TYPE_STRING:
            return self._source.choice(TEXTS)
        if field.type == FieldDescriptor.TYPE_BYTES:
            return self._source.randbytes(self._source.choice((0, 1, 3, 128, 4096)))
        if field.type in (FieldDescriptor.TYPE_DOUBLE, FieldDescriptor.TYPE_FLOAT):
            return self._source.choice(DOUBLE_EXTREMES)
        return self._source.choice(INT32_EXTREMES if field.type in _INT32 else INT64_EXTREMES)

    # Bytes.

    def _spoil_bytes(self, data: bytes) -> bytes:
        ways: tuple[Callable[[bytes], bytes], ...] = (
            self._flip,
            self._truncate,
            self._repeat,
            self._insert,
            self._nest,
            self._name_in_surrogates,
            lambda data: data + self._varint(self._source.choice((15999 << 3, 1 << 3 | 7, 0))) + b"\x01",
            lambda data: self._source.randbytes(self._source.randrange(200)),
        )
        for _ in range(self._source.choice((1, 1, 3))):
            data = self._source.choice(ways)(data)
        return data

    def _flip(self, data: bytes) -> bytes:
        spoilt = bytearray(data)
        for _ in range(self._source.choice((1, 1, 8)) if spoilt else 0):
            spoilt[self._source.randrange(len(spoilt))] ^= 1 << self._source.randrange(8)
        return bytes(spoilt)

    def _truncate(self, data: bytes) -> bytes:
        return data[: self._source.randrange(len(data) + 1)]

    def _repeat(self, data: bytes) -> bytes:
        start = self._source.randrange(len(data) + 1)
        return data[:start] + data[start : start + self._source.randrange(64)] * 3 + data[start:]

    def _insert(self, data: bytes) -> bytes:
        at = self._source.randrange(len(data) + 1)
        # A length that promises more than will ever come.
        huge = b"\x1a" + self._varint(self._source.choice((2**31 - 1, 2**32, 2**63 - 1, 2**64 - 1)))
        return data[:at] + self._source.choice((huge, self._source.randbytes(9), SURROGATES)) + data[at:]

    def _nest(self, data: bytes) -> bytes:
        """Unknown groups inside each other, deeper than any parser follows, or just not."""
        depth = self._source.choice((3, 90, 110, 20_000))
        return data + b"\xfb\x07" * depth + b"\xfc\x07" * depth

    def _name_in_surrogates(self, data: bytes) -> bytes:
        return data + b"\x0a" + bytes([len(SURROGATES)]) + SURROGATES

    @staticmethod
    def _varint(value: int) -> bytes:
        out = bytearray()
        while value > 127:
            out.append(value & 127 | 128)
            value >>= 7
        return bytes([*out, value])
