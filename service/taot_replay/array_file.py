"""Counts from elsewhere: an array of [steps, layers, ranks, experts] in an .npz file."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from taot_api.session_spec import LayerSpec
from taot_api.trace import TraceHeader, TraceRecord, check_record
from taot_planning import contiguous_homes, two_level_topology
from taot_planning.arrays import MAX_COUNT, IntArray, frozen_ints
from taot_replay.recording import DEFAULT_INTER_COST

DEFAULT_RANKS_PER_NODE = 8


class ArrayRecording:
    """A recording whose steps have one micro-batch each; see `Recording`."""

    def __init__(self, header: TraceHeader, counts_NLRE: IntArray) -> None:
        self.header = header
        self.num_records = counts_NLRE.shape[0]
        self._counts_NLRE = counts_NLRE

    def __iter__(self) -> Iterator[TraceRecord]:
        """Yields the steps in order.

        Raises:
            ValueError: naming the step whose counts are out of range.
        """
        for step, counts_LRE in enumerate(self._counts_NLRE):
            if counts_LRE.max() > MAX_COUNT:  # before int32 makes another number of it
                raise ValueError(f"step {step}: counts must be between 0 and 2^31-1, got {counts_LRE.max()}")
            record = TraceRecord(step=step, micro_batch=0, counts_L=tuple(counts_LRE.astype(np.int32)))
            try:
                check_record(record, self.header)
            except ValueError as error:
                raise ValueError(f"step {step}: {error}") from error
            yield record


def read_array_file(path: Path, *, key: str | None = None, ranks_per_node: int | None = None) -> ArrayRecording:
    """Reads an array of [steps, layers, ranks, experts]; experts live on rank e * R // E.

    Args:
        path: the .npz file.
        key: name of the array; needed where there are several of four axes.
        ranks_per_node: consecutive ranks that share a node, 8 when None.

    Raises:
        ValueError: if the file cannot be read or has no such array.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            name = key if key is not None else _only_candidate(archive, path)
            if f"{name}.npy" not in archive.namelist():
                raise ValueError(f"{path} has no array {name!r}, it has {', '.join(_names(archive))}")
            with archive.open(f"{name}.npy") as file:
                values = np.lib.format.read_array(file, allow_pickle=False)
    except OSError as error:
        raise ValueError(f"cannot read {path}: {error.strerror or error}") from error
    except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError) as error:
        raise ValueError(f"{path} is not an .npz file, or damaged: {error}") from error
    if values.ndim != 4 or values.size == 0:
        raise ValueError(f"{name} must be [steps, layers, ranks, experts], got shape {list(values.shape)}")
    try:
        counts_NLRE = frozen_ints(values, name=name, num_axes=4)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    return ArrayRecording(_header(counts_NLRE, name=path.stem, ranks_per_node=ranks_per_node), counts_NLRE)


def _header(counts_NLRE: IntArray, *, name: str, ranks_per_node: int | None) -> TraceHeader:
    _, num_layers, num_ranks, num_experts = counts_NLRE.shape
    home_E = contiguous_homes(num_experts=num_experts, num_ranks=num_ranks)
    return TraceHeader(
        training_job=name[:128],
        topology=two_level_topology(
            num_ranks=num_ranks,
            ranks_per_node=DEFAULT_RANKS_PER_NODE if ranks_per_node is None else ranks_per_node,
            slots=0,
            inter_cost=DEFAULT_INTER_COST,
        ),
        layers=tuple(
            # How many experts a token chose does not show in counts, and no figure of a replay depends on it.
            LayerSpec(name=f"layers.{layer}", top_k=1, expert_size_bytes=0, home_E=home_E)
            for layer in range(num_layers)
        ),
    )


def _names(archive: zipfile.ZipFile) -> list[str]:
    return [name.removesuffix(".npy") for name in archive.namelist()]


def _only_candidate(archive: zipfile.ZipFile, path: Path) -> str:
    """The one array of four axes, found without unpacking any."""
    candidates = []
    for name in _names(archive):
        with archive.open(f"{name}.npy") as file:
            version = np.lib.format.read_magic(file)
            read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
            if len(read(file)[0]) == 4:
                candidates.append(name)
    if len(candidates) != 1:
        found = ", ".join(candidates) or "none"
        raise ValueError(
            f"{path} must have one array of [steps, layers, ranks, experts], got {found}: name it by --key"
        )
    return candidates[0]
