"""Trains a Hugging Face mixture of experts on the Python standard library's own source code, expert parallel.

    torchrun --standalone --nproc-per-node 2 examples/finetune_transformers.py

A small Qwen3-MoE with random weights reads bytes, so that nothing is downloaded; any model of `transformers` that the
adapter serves will do in its place. What TAOT needs is marked. On CPUs with gloo or on GPUs with NCCL.
"""

from __future__ import annotations

import argparse
import os
import sysconfig
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

from taot_client import Agent, AgentOptions, expert_parallel_group
from taot_client.adapters.transformers import full_state_dict, parallelize

SEQUENCE = 128
"""Bytes in a row of a batch."""


def make_model() -> Any:
    """A model of bytes, the same on every rank."""
    torch.manual_seed(0)
    config = Qwen3MoeConfig(
        vocab_size=256,
        hidden_size=64,
        intermediate_size=128,
        moe_intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        num_experts=8,
        num_experts_per_tok=2,
        max_position_embeddings=SEQUENCE,
    )
    return Qwen3MoeForCausalLM(config)


def sample_batch(text: torch.Tensor, *, step: int, rank: int) -> torch.Tensor:
    """Random windows of the text, different on every rank and step. Shape: [8, sequence + 1]."""
    generator = torch.Generator().manual_seed(step * 1_009 + rank)
    starts = torch.randint(len(text) - SEQUENCE - 1, (8,), generator=generator)
    return torch.stack([text[start : start + SEQUENCE + 1] for start in starts.tolist()])


def train(num_steps: int, planner: str | None, save: str | None, device: torch.device) -> None:
    """Runs the training loop."""
    group = expert_parallel_group()
    model = make_model().to(device).train()
    layers = parallelize(model, group)  # TAOT: each rank keeps its share of the experts
    shared = [each for name, each in model.named_parameters() if not name.startswith(tuple(layers))]
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    agent = Agent(model, AgentOptions(planner_address=planner, measured_gates=device.type != "cpu"))  # TAOT
    source = Path(sysconfig.get_paths()["stdlib"]) / "argparse.py"
    text = torch.frombuffer(bytearray(source.read_bytes()), dtype=torch.uint8).long()

    for step in range(num_steps):
        agent.begin_step()  # TAOT: before the first forward of a step
        batch = sample_batch(text, step=step, rank=group.rank).to(device)
        logits = model(batch[:, :-1], use_cache=False).logits
        # Gradients of experts are sums over the tokens of all ranks: so the mean is taken here.
        loss = cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten()) / group.size
        loss.backward()
        summary = agent.end_step()  # TAOT: after the last backward
        for parameter in shared:
            dist.all_reduce(parameter.grad)
        optimizer.step()
        optimizer.zero_grad()
        dist.all_reduce(total := loss.detach())
        if group.rank == 0:
            guests = summary.guests_intra + summary.guests_inter
            static, balanced = (
                sum(each.values()) / len(layers) for each in (summary.imbalance_static, summary.imbalance)
            )
            print(f"step {step}: loss {total:.3f}, {guests} guests, imbalance {static:.1%} -> {balanced:.1%}")

    agent.close()
    if save is not None and (state := full_state_dict(model)):
        model.save_pretrained(save, state_dict=state)


def main() -> None:
    """Reads the command line and trains on this rank."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=10, help="optimizer steps")
    parser.add_argument("--planner", help="host:port of the planner; without it the ranks plan by themselves")
    parser.add_argument("--save", help="folder for the trained model, whole")
    args = parser.parse_args()
    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    else:
        torch.set_num_threads(1)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    train(args.steps, args.planner, args.save, device)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
