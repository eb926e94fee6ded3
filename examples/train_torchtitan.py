"""Trains a byte-level language model of torchtitan's mixture-of-experts layers on the standard library's own source.

Expert parallel over all ranks, on CPUs with gloo or on GPUs with NCCL:

    torchrun --nproc-per-node 2 examples/train_torchtitan.py

Routing, shared experts and the balancing of expert biases are torchtitan's; the lines that TAOT needs are marked.
"""

# mypy: disable-error-code="import-not-found"

from __future__ import annotations

import argparse
import sysconfig
import warnings
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional
from torchtitan.components.optimizer import register_moe_load_balancing_hook
from torchtitan.distributed import parallel_dims
from torchtitan.models.common.config_utils import (
    make_ffn_config,
    make_moe_config,
    make_routed_experts_config,
    make_router_config,
)

from taot_client import Agent, AgentOptions, expert_parallel_group
from taot_client.adapters.torchtitan import parallelize

VOCABULARY = 256
"""Bytes."""


class Block(nn.Module):
    """Mixes the last eight tokens, then a mixture of experts."""

    moe_enabled = True

    def __init__(self, args: argparse.Namespace) -> None:
        super().__init__()
        init = dict.fromkeys(("weight", "w1_EFD", "w2_EDF", "w3_EFD"), _init)
        size = {"dim": args.dim, "num_experts": args.experts, "top_k": args.top_k}
        self.mix = nn.Conv1d(args.dim, args.dim, kernel_size=8, groups=args.dim)
        self.norm = nn.RMSNorm(args.dim)
        self.moe = make_moe_config(
            num_experts=args.experts,
            router=make_router_config(**size, gate_param_init=init, route_norm=True),
            routed_experts=make_routed_experts_config(
                **size, hidden_dim=args.hidden_dim, param_init=init, comm_backend="standard"
            ),
            shared_experts=make_ffn_config(
                dim=args.dim, hidden_dim=args.hidden_dim, w1_param_init=init, w2w3_param_init=init
            ),
        ).build()
        self.moe.init_states()

    def forward(self, x_BTD: torch.Tensor) -> torch.Tensor:
        """Shape in and out: [batch, tokens, dim]."""
        past_BDT = functional.pad(x_BTD.transpose(1, 2), (7, 0))
        x_BTD = x_BTD + self.mix(past_BDT).transpose(1, 2)
        mixed_BTD: torch.Tensor = x_BTD + self.moe(self.norm(x_BTD))
        return mixed_BTD


class LanguageModel(nn.Module):
    """A decoder over bytes, which keeps its blocks as torchtitan's models do."""

    def __init__(self, args: argparse.Namespace) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, args.dim)
        self.layers = nn.ModuleDict({str(layer): Block(args) for layer in range(args.layers)})
        self.head = nn.Linear(args.dim, VOCABULARY, bias=False)

    def forward(self, text_BT: torch.Tensor) -> torch.Tensor:
        """Logits for the next byte. [batch, tokens] -> [batch, tokens, vocabulary]."""
        x_BTD = self.embedding(text_BT)
        for block in self.layers.values():
            x_BTD = block(x_BTD)
        logits: torch.Tensor = self.head(functional.rms_norm(x_BTD, x_BTD.shape[-1:]))
        return logits


def _init(weight: torch.Tensor) -> None:
    nn.init.normal_(weight, std=0.05)


def make_optimizer(model: LanguageModel, num_ranks: int, device: torch.device) -> torch.optim.Optimizer:
    """AdamW, before whose steps torchtitan sets the expert biases by the counts of all ranks."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    parallel_dims.device_type = device.type  # torchtitan takes every machine for one with GPUs
    dims = parallel_dims.ParallelDims(
        dp_replicate=num_ranks, dp_shard=1, cp=1, tp=1, pp=1, ep=1, world_size=num_ranks, spmd_backend="partial_dtensor"
    )
    register_moe_load_balancing_hook(optimizer, [model], dims)
    return optimizer


def load_text(device: torch.device) -> torch.Tensor:
    """Sources of the standard library as bytes. Shape: [bytes]."""
    text = b"".join(path.read_bytes() for path in sorted(Path(sysconfig.get_paths()["stdlib"]).glob("a*.py")))
    return torch.frombuffer(bytearray(text), dtype=torch.uint8).long().to(device)


def train(args: argparse.Namespace, device: torch.device) -> None:
    """Runs the training loop."""
    torch.manual_seed(0)
    group = expert_parallel_group()
    model = LanguageModel(args).to(device)
    parallelize(model, group)  # TAOT: in place of torchtitan's expert parallelism
    # On CPUs ranks share the cores, and times say nothing about what guests gain.
    gates = device.type != "cpu"
    agent = Agent(
        model, AgentOptions(planner_address=args.planner, ranks_per_node=args.ranks_per_node, measured_gates=gates)
    )
    shared = [parameter for name, parameter in model.named_parameters() if "routed_experts" not in name]
    optimizer, text = make_optimizer(model, group.size, device), load_text(device)
    for step in range(args.steps):
        generator = torch.Generator().manual_seed(step * group.size + group.rank)
        starts = torch.randint(len(text) - args.sequence, (args.batch,), generator=generator).tolist()
        windows = torch.stack([text[start : start + args.sequence + 1] for start in starts])

        agent.begin_step()  # TAOT: before the first forward of a step
        logits = model(windows[:, :-1])
        loss = functional.cross_entropy(logits.flatten(0, 1), windows[:, 1:].flatten()) / group.size
        loss.backward()
        summary = agent.end_step()  # TAOT: after the last backward, before clipping and the optimizer

        for parameter in shared:  # the gradients of experts are complete where they live
            dist.all_reduce(parameter.grad)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        mean_loss = loss.detach().clone()
        dist.all_reduce(mean_loss)
        if group.rank == 0:
            static, got = (100 * max(each.values()) for each in (summary.imbalance_static, summary.imbalance))
            guests = summary.guests_intra + summary.guests_inter
            print(f"step {step}: loss {mean_loss:.3f}, imbalance {static:.1f} % -> {got:.1f} %, {guests} guests")
    agent.close()


def main() -> None:
    """Starts one rank."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    defaults = {
        "steps": 10,
        "layers": 2,
        "dim": 64,
        "hidden-dim": 128,
        "experts": 8,
        "top-k": 2,
        "batch": 8,
        "sequence": 128,
    }
    for name, value in defaults.items():
        parser.add_argument(f"--{name}", type=int, default=value, help=f"default {value}")
    parser.add_argument("--planner", help="host:port of the planner; without it the ranks plan by themselves")
    parser.add_argument("--ranks-per-node", type=int, help="consecutive ranks per node; by host name when not given")
    args = parser.parse_args()
    warnings.filterwarnings("ignore", message="In CPU autocast")
    on_gpu = torch.cuda.is_available()
    dist.init_process_group("nccl" if on_gpu else "gloo")
    device = torch.device("cuda", dist.get_rank() % torch.cuda.device_count()) if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.cuda.set_device(device)
    train(args, device)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
