"""Trains a byte-level mixture-of-experts language model on the Python standard library's own source code.

Expert parallel over all ranks, on CPUs with gloo or on GPUs with NCCL:

    torchrun --nproc-per-node 4 examples/train_moe.py --planner 127.0.0.1:50051 --ranks-per-node 2

Without --planner the ranks plan by themselves; TAOT_DISABLE=1 gives plain expert parallelism. The two lines that
a training loop needs are marked with "TAOT".
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import sysconfig
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, TextIO

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional

from taot_client import Agent, AgentOptions, ExpertParallelGroup, ExpertParallelMoE, StepSummary, expert_parallel_group

VOCABULARY = 256
"""Bytes."""


class Block(nn.Module):
    """Causal self-attention, then a mixture of experts."""

    def __init__(self, args: argparse.Namespace, group: ExpertParallelGroup, *, index: int) -> None:
        super().__init__()
        self.num_heads = args.heads
        self.norm_attention = nn.RMSNorm(args.dim)
        self.qkv = nn.Linear(args.dim, 3 * args.dim, bias=False)
        self.out = nn.Linear(args.dim, args.dim, bias=False)
        self.norm_experts = nn.RMSNorm(args.dim)
        self.moe = ExpertParallelMoE(
            dim=args.dim,
            hidden_dim=args.hidden_dim,
            num_experts=args.experts,
            top_k=args.top_k,
            group=group,
            seed=args.seed + index,
        )

    def forward(self, x_BTD: torch.Tensor) -> torch.Tensor:
        """Shape in and out: [batch, tokens, dim]."""
        batch, tokens, dim = x_BTD.shape
        heads = self.qkv(self.norm_attention(x_BTD)).view(batch, tokens, 3, self.num_heads, dim // self.num_heads)
        query, key, value = heads.permute(2, 0, 3, 1, 4)
        attended = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x_BTD = x_BTD + self.out(attended.transpose(1, 2).reshape(batch, tokens, dim))
        mixed_BTD: torch.Tensor = x_BTD + self.moe(self.norm_experts(x_BTD))
        return mixed_BTD


class LanguageModel(nn.Module):
    """A decoder over bytes."""

    def __init__(self, args: argparse.Namespace, group: ExpertParallelGroup) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, args.dim)
        self.position = nn.Embedding(args.sequence, args.dim)
        self.blocks = nn.ModuleList(Block(args, group, index=index) for index in range(args.layers))
        self.norm = nn.RMSNorm(args.dim)
        self.head = nn.Linear(args.dim, VOCABULARY, bias=False)

    def forward(self, text_BT: torch.Tensor) -> torch.Tensor:
        """Logits for the next byte. [batch, tokens] -> [batch, tokens, vocabulary]."""
        x_BTD = self.embedding(text_BT) + self.position.weight[: text_BT.shape[1]]
        for block in self.blocks:
            x_BTD = block(x_BTD)
        logits: torch.Tensor = self.head(self.norm(x_BTD))
        return logits


def load_text(limit_bytes: int) -> torch.Tensor:
    """The beginning of the standard library's sources, in a fixed order, as bytes."""
    text = bytearray()
    for path in sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py")):
        text += path.read_bytes()
        if len(text) >= limit_bytes:
            break
    return torch.frombuffer(text[:limit_bytes], dtype=torch.uint8).long()


def sample_batch(text: torch.Tensor, args: argparse.Namespace, *, step: int, rank: int) -> torch.Tensor:
    """Random windows of the text, different on every rank and step. Shape: [batch, sequence + 1]."""
    generator = torch.Generator().manual_seed(args.seed * 1_000_003 + step * 1_009 + rank)
    starts = torch.randint(len(text) - args.sequence - 1, (args.batch,), generator=generator)
    return torch.stack([text[start : start + args.sequence + 1] for start in starts.tolist()])


def reduce_gradients(model: nn.Module) -> None:
    """Adds up the gradients of everything that every rank holds; experts live on one rank each."""
    layers = [module for module in model.modules() if isinstance(module, ExpertParallelMoE)]
    experts = {id(weight) for layer in layers for weight in layer.experts.parameters()}
    shared = [p.grad for p in model.parameters() if p.grad is not None and id(p) not in experts]
    flat = torch.cat([grad.flatten() for grad in shared])
    dist.all_reduce(flat)
    for grad, summed in zip(shared, flat.split([grad.numel() for grad in shared]), strict=True):
        grad.copy_(summed.view_as(grad))


def train(args: argparse.Namespace, device: torch.device) -> None:
    """Runs the training loop."""
    torch.manual_seed(args.seed)
    group = expert_parallel_group()
    model = LanguageModel(args, group).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.learning_rate)
    text = load_text(args.text_bytes)
    agent = Agent(
        model,
        AgentOptions(
            planner_address=args.planner,
            plan_source=args.plan_source,
            algorithm=args.algorithm,
            num_slots=args.slots,
            ranks_per_node=args.ranks_per_node,
            # Ranks that share the cores of one machine hold each other up: their times say nothing about gains.
            measured_gates=device.type != "cpu",
            training_job=args.job,
        ),
    )
    if args.record is not None:
        agent.record(args.record)
    log = StepLog(args.step_log if group.rank == 0 else None, agent)
    for step in range(args.steps):
        started = time.perf_counter()
        windows = sample_batch(text, args, step=step, rank=group.rank).to(device)

        agent.begin_step()  # TAOT: before the first forward of a step
        logits = model(windows[:, :-1])
        loss = functional.cross_entropy(logits.flatten(0, 1), windows[:, 1:].flatten())
        (loss / group.size).backward()
        summary = agent.end_step()  # TAOT: after the last backward, before clipping and the optimizer

        reduce_gradients(model)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

        mean_loss = loss.detach().clone()
        dist.all_reduce(mean_loss)
        log.step(summary, loss=mean_loss.item() / group.size, seconds=time.perf_counter() - started)
    log.end(device)
    agent.close()


class StepLog:
    """One JSON line per step and one at the end, for tools; a readable line for people."""

    def __init__(self, path: str | None, agent: Agent) -> None:
        self._file: TextIO | None = Path(path).open("w", encoding="utf-8") if path else None  # noqa: SIM115 - closed by end()
        self._agent = agent
        self._rank = dist.get_rank()

    def step(self, summary: StepSummary, *, loss: float, seconds: float) -> None:
        """Logs one step."""
        if self._rank != 0:
            return
        plan = self._agent.planner_stats.get("plan")
        self._write(
            asdict(summary)
            | {"mode": summary.mode.name.lower(), "reason": summary.reason.name.lower()}
            | {"loss": loss, "seconds": seconds}
            | {"plan_version": plan.identity.version if plan else 0}
            | {"planning_seconds": plan.stats.planning_seconds if plan else 0.0}
        )
        if self._file is None:
            static, achieved = _mean(summary.imbalance_static), _mean(summary.imbalance)
            print(
                f"step {summary.step:4d}  loss {loss:.4f}  imbalance {static:6.1%} -> {achieved:6.1%}"
                f"  guests {summary.guests_intra}+{summary.guests_inter}  {seconds:.2f} s  {summary.mode.name.lower()}",
                flush=True,
            )

    def end(self, device: torch.device) -> None:
        """Logs the totals of all ranks. Collective."""
        totals = torch.tensor(self._agent.transfer_seconds(), device=device)
        dist.all_reduce(totals)
        if self._rank == 0:
            self._write({"transfer_seconds": totals[0].item(), "exposed_seconds": totals[1].item()})
        if self._file is not None:
            self._file.close()

    def _write(self, row: dict[str, Any]) -> None:
        if self._file is not None:
            self._file.write(json.dumps(row) + "\n")
            self._file.flush()


def _mean(by_layer: Mapping[str, float]) -> float:
    return sum(by_layer.values()) / max(len(by_layer), 1)


def parse_arguments() -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    model = parser.add_argument_group("model")
    model.add_argument("--layers", type=int, default=4)
    model.add_argument("--experts", type=int, default=16)
    model.add_argument("--top-k", type=int, default=2)
    model.add_argument("--dim", type=int, default=128)
    model.add_argument("--hidden-dim", type=int, default=256)
    model.add_argument("--heads", type=int, default=4)
    training = parser.add_argument_group("training")
    training.add_argument("--steps", type=int, default=100)
    training.add_argument("--batch", type=int, default=8, help="sequences per rank")
    training.add_argument("--sequence", type=int, default=128, help="bytes per sequence")
    training.add_argument("--learning-rate", type=float, default=1e-3)
    training.add_argument("--text-bytes", type=int, default=8_000_000)
    training.add_argument("--seed", type=int, default=0)
    training.add_argument("--step-log", help="write one JSON line per step to this file instead of printing")
    balancing = parser.add_argument_group("balancing")
    balancing.add_argument("--planner", help="address of the planner service, host:port")
    balancing.add_argument("--plan-source", choices=["ahead", "inline", "blocking", "observe"])
    balancing.add_argument("--algorithm", default="taot")
    balancing.add_argument("--slots", type=int, default=2, help="guest experts per rank and layer")
    balancing.add_argument("--ranks-per-node", type=int, help="emulate nodes of this many ranks")
    balancing.add_argument("--record", help="write a trace for `taot replay` to this new folder")
    balancing.add_argument("--job", default="train_moe")
    return parser.parse_args()


def main() -> None:
    """Runs one rank."""
    args = parse_arguments()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        torch.cuda.set_device(device)
        dist.init_process_group("nccl")
    else:
        device = torch.device("cpu")
        torch.set_num_threads(max(1, (os.cpu_count() or 1) // int(os.environ.get("LOCAL_WORLD_SIZE", "1"))))
        dist.init_process_group("gloo")
    try:
        train(args, device)
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
