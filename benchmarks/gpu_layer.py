"""What the agent adds to the step of one mixture-of-experts layer on a GPU (or on the host, with --device cpu).

    python benchmarks/gpu_layer.py [--device cuda] [--json OUT.json]
    torchrun --nproc-per-node 8 benchmarks/gpu_layer.py    # with NCCL, one GPU a rank

Steps without and with the agent take turns in one process; times are medians of device-synchronised steps. On one
rank nothing can move: what shows is the cost of counting, planning and gating alone.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from pathlib import Path

import torch
import torch.distributed as dist
from rich.console import Console
from rich.table import Table

from taot_client import Agent, AgentOptions, ExpertParallelMoE, expert_parallel_group

REPEATS = 30
WARM_UP = 5


def step_seconds(layer: ExpertParallelMoE, x: torch.Tensor, agent: Agent | None) -> float:
    """Seconds of one forward and backward."""
    _synchronize(x.device)
    started = time.perf_counter()
    if agent is not None:
        agent.begin_step()
    layer(x).float().square().mean().backward()
    if agent is not None:
        agent.end_step()
    _synchronize(x.device)
    return time.perf_counter() - started


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def measure(args: argparse.Namespace, device: torch.device) -> dict[str, float]:
    """Median seconds of a step, plain and with the agent. Collective."""
    group = expert_parallel_group()
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    sizes = {"dim": args.dim, "hidden_dim": args.hidden_dim, "num_experts": args.experts, "top_k": args.top_k}
    x = torch.randn(args.tokens, args.dim, device=device, dtype=dtype)
    layers = {name: ExpertParallelMoE(**sizes, group=group).to(device, dtype) for name in ("plain", "agent")}
    agent = Agent(layers["agent"], AgentOptions(measured_gates=False))
    seconds: dict[str, list[float]] = {name: [] for name in layers}
    for _ in range(WARM_UP + REPEATS):
        for name, layer in layers.items():
            seconds[name].append(step_seconds(layer, x, agent if name == "agent" else None))
            layer.zero_grad()
    agent.close()
    return {name: statistics.median(values[WARM_UP:]) for name, values in seconds.items()}


def main() -> None:
    """Prints one row per kind of step."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--tokens", type=int, default=8192, help="tokens per rank")
    parser.add_argument("--dim", type=int, default=2048)
    parser.add_argument("--hidden-dim", type=int, default=768)
    parser.add_argument("--experts", type=int, default=32)
    parser.add_argument("--top-k", type=int, default=4)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    for name, value in (("RANK", "0"), ("WORLD_SIZE", "1"), ("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", "0")):
        os.environ.setdefault(name, value)
    device = torch.device(args.device, int(os.environ.get("LOCAL_RANK", "0")) if args.device == "cuda" else None)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    store = None if "TORCHELASTIC_RUN_ID" in os.environ else dist.HashStore()
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    placed = {"store": store, "rank": rank, "world_size": size} if store is not None else {}
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo", **placed)
    seconds = measure(args, device)
    if rank == 0:
        table = Table("step of one layer", "ms", title=f"{size} ranks on {device.type}, {args.tokens} tokens a rank")
        for name, value in seconds.items():
            table.add_row(name, f"{value * 1e3:.2f}")
        Console().print(table)
        if args.json:
            args.json.write_text(json.dumps({"device": str(device), "ranks": size, "seconds": seconds}, indent=1))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
