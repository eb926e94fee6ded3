"""Recorded counts and homes, read from files and checked."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from taot_planning.arrays import IntArray, frozen_ints


@dataclass(frozen=True, kw_only=True, eq=False)
class RecordedLayer:
    """One layer of a counts file."""

    name: str
    """Name of the array."""

    layer: int
    """Index into the array's layer axis, 0 for an array without one."""

    counts_RE: IntArray
    """Tokens routed from each source rank to each expert. Shape: [ranks, experts]."""


def read_counts(path: Path) -> list[RecordedLayer]:
    """Reads every layer of an .npz file of [ranks, experts] or [layers, ranks, experts] arrays.

    Raises:
        ValueError: if the file cannot be read or an array is not of that form.
    """
    try:
        with path.open("rb") as file:
            if not zipfile.is_zipfile(file):
                raise ValueError(f"{path} is not an .npz file: make one with numpy.savez(FILE, name=counts)")
            file.seek(0)
            with np.load(file, allow_pickle=False) as archive:
                arrays = {name: np.asarray(archive[name]) for name in archive.files}
    except OSError as error:
        raise ValueError(f"cannot read {path}: {error.strerror}") from error
    except (zipfile.BadZipFile, EOFError) as error:
        raise ValueError(f"{path} is damaged: {error}") from error
    if not arrays:
        raise ValueError(f"{path} holds no arrays: it needs at least one of [ranks, experts]")
    return [layer for name, array in arrays.items() for layer in _layers(name, array)]


def _layers(name: str, array: np.ndarray) -> Iterator[RecordedLayer]:
    if array.ndim not in (2, 3) or array.size == 0:
        raise ValueError(
            f"{name}: counts must be [ranks, experts] or [layers, ranks, experts], got shape {list(array.shape)}"
        )
    for layer, values in enumerate(array if array.ndim == 3 else array[None]):
        try:
            counts_RE = frozen_ints(values, name="counts", num_axes=2)
        except ValueError as error:
            raise ValueError(f"{name}, layer {layer}: {error}") from error
        yield RecordedLayer(name=name, layer=layer, counts_RE=counts_RE)


def read_homes(path: Path) -> IntArray:
    """Reads the home rank of each expert from a .npy file or a JSON list. Shape: [experts].

    Raises:
        ValueError: if the file cannot be read or does not hold one list of whole numbers.
    """
    try:
        if path.suffix == ".npy":
            values = np.load(path, allow_pickle=False)
        else:
            values = np.asarray(json.loads(path.read_text(encoding="utf-8")))
        return frozen_ints(values, name="homes", num_axes=1)
    except (OSError, ValueError, EOFError, RecursionError) as error:
        raise ValueError(f"{path} must hold a list of home ranks (.npy or .json): {error}") from error
