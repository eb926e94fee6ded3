"""Everything that depends on the kind of device the model lives on."""

from __future__ import annotations

import torch
import torch.distributed as dist

from taot_client.measuring.link_meter import LinkMeter
from taot_client.measuring.stopwatch import CudaStopwatch, HostStopwatch, Stopwatch
from taot_client.transfers.gloo_mover import GlooMover
from taot_client.transfers.nccl_mover import NcclMover
from taot_client.transfers.shipment import Mover, TransferClock
from taot_client.transfers.staged_mover import StagedMover


def is_gloo(group: dist.ProcessGroup) -> bool:
    """Whether a group carries host memory only."""
    return group.name() == "gloo"


def make_mover(
    group: dist.ProcessGroup,
    *,
    device: torch.device,
    clock: TransferClock,
    name: str,
    links: LinkMeter | None = None,
) -> Mover:
    """The mover for guests on `device`: gloo on the host; on CUDA NCCL, or gloo by way of the host.

    What it receives is added up in `links`.

    Raises:
        ValueError: if the device is of another kind.
    """
    if device.type == "cpu":
        return GlooMover(group, clock=clock, name=name, links=links)
    if device.type == "cuda" and is_gloo(group):
        return StagedMover(group, clock=clock, name=name, links=links)
    if device.type == "cuda":
        return NcclMover(group, device=device, links=links)
    raise ValueError(f"experts on {device.type!r} devices are not supported: use cpu or cuda")


def make_stopwatch(device: torch.device) -> Stopwatch:
    """What times work on `device`."""
    return CudaStopwatch() if device.type == "cuda" else HostStopwatch()


def may_keep_views(device: torch.device) -> bool:
    """Whether views of weights may be kept between steps: on GPUs, jobs that offload weights want their memory back."""
    return device.type == "cpu"


def index_to_device(index: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Moves an index made on the host to the device without waiting for it."""
    if device.type == "cpu":
        return index
    return index.pin_memory().to(device, non_blocking=True)


def to_host(values: torch.Tensor) -> torch.Tensor:
    """Brings a small tensor to the host; on CUDA the one synchronisation of a layer's forward."""
    return values.cpu()


def exchange_buffers(
    received: torch.Tensor,
    sent: torch.Tensor,
    group: dist.ProcessGroup,
    *,
    send_splits: list[int],
    receive_splits: list[int],
) -> None:
    """Fills the rows of `received` with what all ranks sent; by way of the host where the group needs it."""
    if sent.device.type == "cpu" or not is_gloo(group):
        group.alltoall_base(received, sent, receive_splits, send_splits).wait()
        return
    on_host = torch.empty(received.shape, dtype=received.dtype)
    group.alltoall_base(on_host, sent.cpu(), receive_splits, send_splits).wait()
    received.copy_(on_host)
