"""Recording the routing of a job: from the training thread into memory, from there to disk in a thread.

What the disk cannot take in time is left out and counted: training never waits for it.
"""

from __future__ import annotations

import atexit
import logging
import os
import queue
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray

from taot_api.session_spec import LayerSpec
from taot_api.trace import TraceHeader, TraceRecord
from taot_api.trace_folder import TraceWriter
from taot_client.counts_gather import count_choices
from taot_client.pinned_passes import in_backward
from taot_planning import contiguous_homes, two_level_topology
from taot_planning.arrays import IntArray

logger = logging.getLogger(__name__)

CHUNK_RECORDS = 64
"""Micro-batches of a chunk: as many are lost at most when a job is killed."""

CHUNK_BYTES = 16 * 2**20
"""A chunk is written before its counts take more than this."""

WAITING_BYTES = 64 * 2**20
"""Counts that may wait for the disk; at least two micro-batches may."""

LIMIT_BYTES = 2**30
"""Size of a trace unless asked otherwise."""

CLOSE_SECONDS = 30
"""How long the end of a job waits for the last chunk."""


class TraceFile:
    """Collects the layers of each micro-batch and writes complete ones from a thread of its own."""

    def __init__(self, folder: str | os.PathLike[str], header: TraceHeader, *, limit_bytes: int = LIMIT_BYTES) -> None:
        """Begins a trace.

        Args:
            folder: a new or empty folder.
            header: layers and topology.
            limit_bytes: size on disk at which recording ends.

        Raises:
            ValueError: if the folder cannot be used.
        """
        self._header = header
        self._writer = TraceWriter(Path(folder), header)
        self._limit_bytes = limit_bytes
        self._open: dict[tuple[int, int], dict[int, NDArray[np.int32]]] = {}
        self._last = (-1, -1)
        self._waiting: queue.Queue[TraceRecord | None] = queue.Queue(max(2, WAITING_BYTES // header.record_bytes))
        self._is_full = False
        self._is_closed = False
        self.num_dropped = 0
        """Complete micro-batches that were left out because the disk was slow or the trace had its full size."""
        self._thread = threading.Thread(target=self._write_all, name="taot-trace", daemon=True)
        self._thread.start()
        atexit.register(self.close)

    def add(self, *, step: int, micro_batch: int, layer: int, counts_RE: IntArray) -> None:
        """Adds the counts of one layer; never waits.

        Micro-batches that are incomplete when a later step begins are left out.
        """
        if self._is_closed or self._is_full:
            return
        place = (step, micro_batch)
        if place not in self._open:
            self._open = {at: layers for at, layers in self._open.items() if at[0] >= step}
        layers = self._open.setdefault(place, {})
        layers[layer] = np.array(counts_RE, dtype=np.int32)
        if len(layers) < len(self._header.layers):
            return
        del self._open[place]
        if place <= self._last:
            return  # micro-batches in flight may end in another order: the later ones are kept
        counts_L = tuple(layers[index] for index in range(len(layers)))
        try:
            self._waiting.put_nowait(TraceRecord(step=step, micro_batch=micro_batch, counts_L=counts_L))
            self._last = place
        except queue.Full:
            if not self.num_dropped:
                logger.warning("the disk does not keep up with the trace: step %d and others are left out", step)
            self.num_dropped += 1

    def close(self) -> None:
        """Writes what is waiting and ends the trace."""
        if self._is_closed:
            return
        self._is_closed = True
        atexit.unregister(self.close)
        if not self._thread.is_alive():  # also so in a forked child, which has no threads
            return
        try:
            self._waiting.put(None, timeout=CLOSE_SECONDS)
        except queue.Full:
            logger.warning("the trace is left incomplete: the disk does not answer")
            return
        self._thread.join(CLOSE_SECONDS)

    def _write_all(self) -> None:
        records: list[TraceRecord] = []
        limit = max(1, min(CHUNK_RECORDS, CHUNK_BYTES // self._header.record_bytes))
        while not self._is_full:
            record = self._waiting.get()
            if record is not None:
                records.append(record)
            if record is None or len(records) >= limit:
                self._write(records)
                records = []
            if record is None:
                return
        while self._waiting.get() is not None:  # lets `close` through
            self.num_dropped += 1

    def _write(self, records: list[TraceRecord]) -> None:
        try:
            self._writer.write(records)
        except (OSError, ValueError) as error:
            logger.error("recording ends, the job goes on: %s", error)
            self._is_full = True
            return
        if self._writer.num_bytes >= self._limit_bytes:
            logger.warning("recording ends, the trace has reached its limit of %d bytes", self._limit_bytes)
            self._is_full = True


class TraceRecorder:
    """Records the routing of any PyTorch loop, whatever its layers are made of.

    `recorder = TraceRecorder("trace", num_layers=48, num_experts=128, top_k=8)`, then in the forward of each layer
    `recorder.add(step, layer, experts_TK)`, and at the end `recorder.close()`. `taot replay trace` reads it.
    """

    def __init__(  # noqa: PLR0913 - the dimensions of a model
        self,
        folder: str | os.PathLike[str],
        *,
        num_layers: int,
        num_experts: int,
        top_k: int,
        ranks_per_node: int = 8,
        group: dist.ProcessGroup | None = None,
    ) -> None:
        """Begins a trace that the first rank of the group writes. Experts live on rank e * R // E.

        Args:
            folder: a new or empty folder.
            num_layers: mixture-of-experts layers of this rank's model.
            num_experts: experts of each.
            top_k: choices per token.
            ranks_per_node: consecutive ranks that share a node.
            group: the ranks that share the experts, gloo or NCCL; the default group when None.

        Raises:
            RuntimeError: if there is no group.
            ValueError: if a number is out of range; on the first rank, if the folder cannot be used.
        """
        self._group = group if group is not None else dist.group.WORLD
        if self._group is None:
            raise RuntimeError("torch.distributed is not initialised: call init_process_group first, or give a group")
        self._num_layers, self._num_experts = num_layers, num_experts
        self._step = -1
        self._num_seen: dict[int, int] = {}
        num_ranks = self._group.size()
        home_E = contiguous_homes(num_experts=num_experts, num_ranks=num_ranks)
        topology = two_level_topology(num_ranks=num_ranks, ranks_per_node=ranks_per_node, slots=2, inter_cost=3)
        one = LayerSpec(name="", top_k=top_k, expert_size_bytes=0, home_E=home_E)
        header = TraceHeader(
            training_job="",
            topology=topology,
            layers=tuple(replace(one, name=f"layers.{layer}") for layer in range(num_layers)),
        )
        self._file = TraceFile(folder, header) if self._group.rank() == 0 else None

    def add(self, step: int, layer: int, experts_TK: torch.Tensor) -> None:
        """Adds the choices of this rank's tokens in one layer. Collective over the group.

        Ids outside the experts are left out, as padding is. What a backward recomputes is not added again.

        Args:
            step: optimizer step, from 0.
            layer: index of the layer.
            experts_TK: chosen experts, integers, on any device; NCCL needs them on the GPU. Shape: [tokens, choices].
        """
        assert self._group is not None
        if in_backward():
            return
        counts_E = torch.from_numpy(count_choices(experts_TK, num_experts=self._num_experts).counts_E)
        counts_E = counts_E.to(experts_TK.device)
        rows = [torch.empty_like(counts_E) for _ in range(self._group.size())]
        self._group.allgather([rows], [counts_E]).wait()
        if self._file is not None:
            self.add_counts(step, layer, torch.stack(rows).cpu().numpy())

    def add_counts(self, step: int, layer: int, counts_RE: IntArray) -> None:
        """Adds counts that have been gathered already; only those of the first rank are written.

        Each time that a layer comes again within a step is another micro-batch.

        Args:
            step: optimizer step, from 0.
            layer: index of the layer.
            counts_RE: tokens of each source rank for each expert. Shape: [ranks, experts].

        Raises:
            ValueError: if there is no such layer, or the counts have another shape.
        """
        if self._file is None:
            return
        assert self._group is not None
        shape = (self._group.size(), self._num_experts)
        if not 0 <= layer < self._num_layers or counts_RE.shape != shape:
            raise ValueError(
                f"the trace has layers 0 to {self._num_layers - 1} with counts {list(shape)},"
                f" got {list(counts_RE.shape)} for layer {layer}"
            )
        if step != self._step:
            self._step = step
            self._num_seen = {}
        micro_batch = self._num_seen.get(layer, 0)
        self._num_seen[layer] = micro_batch + 1
        self._file.add(step=step, micro_batch=micro_batch, layer=layer, counts_RE=counts_RE)

    def close(self) -> None:
        """Writes the rest of the trace."""
        if self._file is not None:
            self._file.close()
