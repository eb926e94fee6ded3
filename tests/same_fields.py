"""Compares the data types of the contract, which hold arrays and so have no plain equality."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from taot_api.layer_counts import LayerCounts


def assert_same(left, right):
    """Compares field by field."""
    assert type(left) is type(right) or {type(left), type(right)} == {tuple, LayerCounts}
    if dataclasses.is_dataclass(left):
        for field in dataclasses.fields(left):
            assert_same(getattr(left, field.name), getattr(right, field.name))
    elif isinstance(left, np.ndarray):
        np.testing.assert_array_equal(left, right)
    elif isinstance(left, tuple | LayerCounts):
        assert len(left) == len(right)
        for one, other in zip(left, right, strict=True):
            assert_same(one, other)
    elif isinstance(left, float):
        # Durations travel in nanoseconds, times in seconds since 1970.
        assert left == pytest.approx(right, abs=1e-6)
    else:
        assert left == right
