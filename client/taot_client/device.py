"""Everything that depends on the kind of device the model lives on."""

from __future__ import annotations

import torch
import torch.distributed as dist

from taot_client.gloo_mover import GlooMover
from taot_client.nccl_mover import NcclMover
from taot_client.shipment import Mover, TransferClock


def make_mover(group: dist.ProcessGroup, *, device: torch.device, clock: TransferClock, name: str) -> Mover:
    """The mover for guests on `device`: gloo on the host, NCCL on CUDA.

    Raises:
        ValueError: if the device is of another kind.
    """
    if device.type == "cpu":
        return GlooMover(group, clock=clock, name=name)
    if device.type == "cuda":
        return NcclMover(group, device=device)
    raise ValueError(f"experts on {device.type!r} devices are not supported: use cpu or cuda")


def index_to_device(index: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Moves an index made on the host to the device without waiting for it."""
    if device.type == "cpu":
        return index
    return index.pin_memory().to(device, non_blocking=True)


def to_host(values: torch.Tensor) -> torch.Tensor:
    """Brings a small tensor to the host; on CUDA the one synchronisation of a layer's forward."""
    return values.cpu()
