"""How the tensors of one expert lie in one flat buffer of bytes, with a label that says whose they are."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial

import torch

_ALIGNMENT_BYTES = 16
_LABEL_WORDS = 4
_LABEL = struct.Struct(f"={_LABEL_WORDS}q")


@dataclass(frozen=True, kw_only=True)
class ExpertLayout:
    """Shapes, dtypes and byte offsets of an expert's tensors in a flat buffer.

    The buffer ends in a label of four int64: layer, expert, weight epoch, checksum (0 when not in use).
    """

    shapes: tuple[torch.Size, ...]
    """Shape of each tensor of one expert."""

    dtypes: tuple[torch.dtype, ...]
    """Dtype of each."""

    offsets_bytes: tuple[int, ...]
    """Where each begins."""

    size_bytes: int
    """Length of the buffer without its label: what one guest costs to move and to keep."""

    @classmethod
    def of(cls, fused: Sequence[torch.Tensor]) -> ExpertLayout:
        """The layout of one expert of fused tensors whose first axis is the local expert."""
        return cls.of_shapes([(tensor.shape[1:], tensor.dtype) for tensor in fused])

    @classmethod
    def of_shapes(cls, tensors: Sequence[tuple[torch.Size, torch.dtype]]) -> ExpertLayout:
        """The layout of an expert that consists of tensors of these shapes and dtypes."""
        return cls._of_shapes(tuple(tensors))

    @classmethod
    @lru_cache(maxsize=256)  # asked in every step, whether it is still the same
    def _of_shapes(cls, tensors: tuple[tuple[torch.Size, torch.dtype], ...]) -> ExpertLayout:
        offsets, size = [], 0
        for shape, dtype in tensors:
            offsets.append(size)
            size += math.prod(shape) * dtype.itemsize
            size = -(-size // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES
        return cls(
            shapes=tuple(shape for shape, _ in tensors),
            dtypes=tuple(dtype for _, dtype in tensors),
            offsets_bytes=tuple(offsets),
            size_bytes=size,
        )

    @property
    def buffer_bytes(self) -> int:
        """Length of the buffer with its label."""
        return self.size_bytes + 8 * _LABEL_WORDS

    def views(self, buffer: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """The expert's tensors as views of a flat uint8 buffer."""
        if self._strided is not None:
            flat = buffer.view(self.dtypes[0])
            start = flat.storage_offset()
            return tuple([flat.as_strided(shape, strides, start + offset) for shape, strides, offset in self._strided])
        spans = zip(self.shapes, self.dtypes, self.offsets_bytes, self._ends_bytes, strict=True)
        return tuple(buffer[start:end].view(dtype).view(shape) for shape, dtype, start, end in spans)

    @cached_property
    def _strided(self) -> list[tuple[torch.Size, tuple[int, ...], int]] | None:
        """Shape, strides and first element of each tensor; None where dtypes differ.

        So that each view is made in one go.
        """
        if len(set(self.dtypes)) != 1:
            return None
        strides = [tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape))) for shape in self.shapes]
        offsets = [offset // self.dtypes[0].itemsize for offset in self.offsets_bytes]
        return list(zip(self.shapes, strides, offsets, strict=True))

    @cached_property
    def _ends_bytes(self) -> tuple[int, ...]:
        sizes = [math.prod(shape) * dtype.itemsize for shape, dtype in zip(self.shapes, self.dtypes, strict=True)]
        return tuple(start + size for start, size in zip(self.offsets_bytes, sizes, strict=True))

    def label(self, buffer: torch.Tensor) -> torch.Tensor:
        """The label of a buffer: [layer, expert, weight epoch, checksum], int64, as a view."""
        return buffer[self.size_bytes : self.buffer_bytes].view(torch.int64)

    def read_label(self, buffer: torch.Tensor) -> tuple[int, ...]:
        """The numbers of a buffer's label. Stops a device until it is there."""
        if buffer.device.type == "cpu":  # in one go, as it happens in the middle of a step
            return _LABEL.unpack_from(buffer.numpy().data, self.size_bytes)
        return tuple(self.label(buffer).tolist())

    def label_reader(self, buffer: torch.Tensor) -> Callable[[], tuple[int, ...]]:
        """Does what `read_label` does, again and again for a buffer that stays where it is."""
        if buffer.device.type == "cpu":
            return partial(_LABEL.unpack_from, buffer.numpy().data, self.size_bytes)
        return partial(self.read_label, buffer)

    def write_label(self, buffer: torch.Tensor, *label: int) -> None:
        """Writes the numbers of a buffer's label."""
        if buffer.device.type == "cpu":
            _LABEL.pack_into(buffer.numpy().data, self.size_bytes, *label)
        else:
            self.label(buffer).copy_(torch.tensor(label))

    def fill(self, buffer: torch.Tensor, tensors: Sequence[torch.Tensor]) -> None:
        """Copies an expert's tensors into a flat buffer; its label stays as it is."""
        for view, tensor in zip(self.views(buffer), tensors, strict=True):
            view.copy_(tensor.detach())

    def checksum(self, buffer: torch.Tensor) -> int:
        """Sum of the content's 64-bit words, wrapping around; never 0, which means none was taken."""
        words = buffer[: self.size_bytes].view(torch.int64)
        return int(words.sum().item()) or 1
