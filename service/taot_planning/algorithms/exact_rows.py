"""The constraints of a mixed-integer program, written down one block at a time."""

from __future__ import annotations

import numpy as np

from taot_planning.arrays import FloatArray, IntArray


class Rows:
    """Sparse rows `lower <= row * columns <= upper`; columns may be added on the way."""

    def __init__(self, num_columns: int) -> None:
        self.num_columns = num_columns
        self.num_rows = 0
        self._lower: list[FloatArray] = []
        self._upper: list[FloatArray] = []
        self._row: list[IntArray] = []
        self._column: list[IntArray] = []
        self._value: list[FloatArray] = []

    def append(self, lower: FloatArray, upper: FloatArray) -> int:
        """Adds empty rows; returns the number of the first."""
        first = self.num_rows
        self.num_rows += lower.size
        self._lower.append(lower)
        self._upper.append(upper)
        return first

    def add_columns(self, count: int) -> int:
        """Adds columns; returns the number of the first."""
        first = self.num_columns
        self.num_columns += count
        return first

    def put(self, row: IntArray, column: IntArray, value: FloatArray) -> None:
        """Writes entries; those of one place add up. Shapes: [entries] each."""
        self._row.append(row)
        self._column.append(column)
        self._value.append(value)

    def entries(self) -> tuple[FloatArray, tuple[IntArray, IntArray]]:
        """All entries: values, and their rows and columns."""
        return np.concatenate(self._value), (np.concatenate(self._row), np.concatenate(self._column))

    def lower(self) -> FloatArray:
        """Lower bounds. Shape: [rows]."""
        return np.concatenate(self._lower)

    def upper(self) -> FloatArray:
        """Upper bounds. Shape: [rows]."""
        return np.concatenate(self._upper)
