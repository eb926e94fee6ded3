"""A trace on disk: a folder with `meta.json` and chunks `counts-000000.npz`, `counts-000001.npz` and so on.

A chunk holds the counts of some micro-batches in a row: `step` and `micro_batch`, both [records], and
`layer_0000` and so on, each [records, ranks, experts]. Chunks appear whole: a job that is killed leaves a
trace that can be read. Steps may be missing, where a recorder could not keep up.
"""

from __future__ import annotations

import json
import os
import re
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from taot_api.trace import TraceHeader, TraceRecord, check_order, check_record
from taot_api.trace_header import header_from_json, header_to_json

META_NAME = "meta.json"

MAX_META_BYTES = 64 * 2**20

MAX_CHUNK_RECORDS = 2**20

MAX_CHUNK_BYTES = 2**30
"""Counts of one chunk, uncompressed: what a reader is asked to hold at once."""

_CHUNK_NAME = re.compile(r"counts-(\d{6})\.npz")

_NPY_HEADER_BYTES = 1024
"""More than the header of one array takes."""


class TraceWriter:
    """Writes a new trace. Every call waits for the disk."""

    def __init__(self, folder: Path, header: TraceHeader) -> None:
        """Makes the folder, where there is none yet, and writes the header.

        Raises:
            ValueError: if the folder holds a trace already or cannot be written.
        """
        self._folder = folder
        self._header = header
        self._num_chunks = 0
        self._last: tuple[int, int] | None = None
        self.num_bytes = 0
        """Bytes written, the header included."""
        try:
            folder.mkdir(parents=True, exist_ok=True)
            if (folder / META_NAME).exists() or _chunk_names(folder):
                raise ValueError(f"{folder} holds a trace already: give a new folder")
            self._write(META_NAME, (json.dumps(header_to_json(header)) + "\n").encode())
        except OSError as error:
            raise ValueError(f"cannot write a trace to {folder}: {error.strerror}") from error

    def write(self, records: Sequence[TraceRecord]) -> None:
        """Adds one chunk.

        Raises:
            ValueError: if a record does not fit the header, or records do not follow each other.
            OSError: if it cannot be written; the trace is as before.
        """
        if not records:
            return
        places = [(record.step, record.micro_batch) for record in records]
        check_order(places if self._last is None else [self._last, *places])
        for record in records:
            check_record(record, self._header)
        steps_N2 = np.array(places, dtype=np.int64)
        arrays = {"step": steps_N2[:, 0], "micro_batch": steps_N2[:, 1]}
        for layer in range(len(self._header.layers)):
            arrays[_layer_name(layer)] = np.stack([record.counts_L[layer] for record in records]).astype(np.int32)
        temporary = self._folder / "chunk.part"
        with temporary.open("wb") as file:
            # numpy's stub takes the names of the arrays for its own options.
            np.savez_compressed(file, **arrays)  # type: ignore[arg-type]
        self.num_bytes += temporary.stat().st_size
        temporary.replace(self._folder / f"counts-{self._num_chunks:06d}.npz")
        self._num_chunks += 1
        self._last = places[-1]

    def _write(self, name: str, content: bytes) -> None:
        temporary = self._folder / f"{name}.part"
        temporary.write_bytes(content)
        temporary.replace(self._folder / name)
        self.num_bytes += len(content)


class TraceReader:
    """Reads a trace: its header at once, its records chunk by chunk."""

    def __init__(self, folder: Path) -> None:
        """Reads the header and which records there are.

        Raises:
            ValueError: if this is no trace that this release can read.
        """
        self._folder = folder
        self.header = _read_header(folder)
        names = _chunk_names(folder)
        expected = [f"counts-{index:06d}.npz" for index in range(len(names))]
        if names != expected:
            missing = sorted(set(expected) - set(names))
            raise ValueError(f"{folder} lacks {missing[0]}: a trace needs its chunks in a row")
        self._chunks = [(name, self._read_places(name)) for name in names]
        places = [place for _, chunk in self._chunks for place in chunk]
        if not places:
            raise ValueError(f"{folder} holds no counts yet: the recorder writes after some micro-batches")
        try:
            check_order(places)
        except ValueError as error:
            raise ValueError(f"{folder}: records must follow each other: {error}") from error
        self.num_records = len(places)
        """Micro-batches in the trace."""

    def __iter__(self) -> Iterator[TraceRecord]:
        """Yields the records in order.

        Raises:
            ValueError: naming the chunk that is damaged or does not fit the header.
        """
        for name, places in self._chunks:
            yield from self._read_chunk(name, places)

    def _read_places(self, name: str) -> list[tuple[int, int]]:
        with _Chunk(self._folder / name) as chunk:
            steps_N = chunk.array("step", max_items=MAX_CHUNK_RECORDS)
            micro_batches_N = chunk.array("micro_batch", max_items=MAX_CHUNK_RECORDS)
        if steps_N.ndim != 1 or steps_N.shape != micro_batches_N.shape:
            shapes = f"{list(steps_N.shape)} and {list(micro_batches_N.shape)}"
            raise ValueError(f"{self._folder / name}: step and micro_batch must both be [records], got {shapes}")
        return list(zip(steps_N.tolist(), micro_batches_N.tolist(), strict=True))

    def _read_chunk(self, name: str, places: Sequence[tuple[int, int]]) -> list[TraceRecord]:
        path, header = self._folder / name, self.header
        if len(places) * header.record_bytes > MAX_CHUNK_BYTES:
            raise ValueError(f"{path}: {len(places)} records of {header.record_bytes} bytes are too many for one chunk")
        arrays = []
        with _Chunk(path) as chunk:
            for layer, shape in enumerate(header.shapes_L):
                wanted = (len(places), *shape)
                counts_NRE = chunk.array(_layer_name(layer), max_items=int(np.prod(wanted)))
                if counts_NRE.shape != wanted:
                    raise ValueError(
                        f"{path}: {_layer_name(layer)} must be {list(wanted)}, got {list(counts_NRE.shape)}"
                    )
                arrays.append(counts_NRE)
        records = [
            TraceRecord(step=step, micro_batch=micro_batch, counts_L=tuple(counts_NRE[index] for counts_NRE in arrays))
            for index, (step, micro_batch) in enumerate(places)
        ]
        for record in records:
            try:
                check_record(record, header)
            except ValueError as error:
                raise ValueError(f"{path}, step {record.step}: {error}") from error
        return records


class _Chunk:
    """An open .npz file whose arrays are measured before they are unpacked."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            self._zip = zipfile.ZipFile(path)
        except (OSError, zipfile.BadZipFile) as error:
            raise ValueError(f"{path} cannot be read: {error}") from error

    def __enter__(self) -> _Chunk:
        return self

    def __exit__(self, *_: object) -> None:
        self._zip.close()

    def array(self, name: str, *, max_items: int) -> NDArray[np.int64]:
        """One array of whole numbers of at most 8 bytes."""
        try:
            info = self._zip.getinfo(f"{name}.npy")
        except KeyError as error:
            raise ValueError(f"{self._path} lacks the array {name!r}") from error
        if info.file_size > 8 * max_items + _NPY_HEADER_BYTES:
            raise ValueError(f"{self._path}: {name} has {info.file_size} bytes, too many for {max_items} numbers")
        try:
            with self._zip.open(info) as file:
                values = np.lib.format.read_array(file, allow_pickle=False)
        except (OSError, ValueError, EOFError, RuntimeError, zipfile.BadZipFile, zlib.error) as error:
            raise ValueError(f"{self._path} is damaged: {error}") from error
        if values.dtype.kind not in "iu":
            raise ValueError(f"{self._path}: {name} must hold whole numbers, got {values.dtype}")
        return np.asarray(values)


def _layer_name(layer: int) -> str:
    return f"layer_{layer:04d}"


def _chunk_names(folder: Path) -> list[str]:
    return sorted(name for name in os.listdir(folder) if _CHUNK_NAME.fullmatch(name))


def _read_header(folder: Path) -> TraceHeader:
    path = folder / META_NAME
    try:
        if path.stat().st_size > MAX_META_BYTES:
            raise ValueError(f"it has more than {MAX_META_BYTES} bytes")
        return header_from_json(json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError as error:
        raise ValueError(f"{folder} is no trace: it has no {META_NAME}") from error
    except OSError as error:
        raise ValueError(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: {error}") from error
