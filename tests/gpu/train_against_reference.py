"""One rank of a run on GPUs (or CPUs, to try the script itself), compared with the dense reference on the CPU.

Run by torchrun; every rank fails with an AssertionError where its gradients differ or no guest was made.
"""

from __future__ import annotations

import argparse
import sys
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).parents[1]))

from tiny_moe import DenseMoE, TinyConfig, TinyMoE, batch, loss_of

from taot_client import Agent, AgentOptions, expert_parallel_group

CONFIG = TinyConfig(num_layers=3, tokens_by_rank=(40, 33, 27, 51))
NUM_STEPS = 3


def reference_gradients(model: DenseMoE, *, step: int, num_ranks: int) -> dict[str, torch.Tensor]:
    """Gradients of all ranks' losses together, by layer, expert and tensor."""
    model.zero_grad()
    sum(loss_of(model(batch(CONFIG, step=step, rank=rank))) for rank in range(num_ranks)).backward()  # type: ignore[union-attr]
    return {
        f"{index}.{expert}.{name}": parameter.grad[expert]
        for index, experts in enumerate(model.experts)
        for name, parameter in experts.named_parameters()
        for expert in range(CONFIG.num_experts)
    }


def train(args: argparse.Namespace, device: torch.device) -> None:
    group = expert_parallel_group(timeout=timedelta(seconds=60))
    model, reference = TinyMoE(CONFIG, group).to(device), DenseMoE(CONFIG)
    options = AgentOptions(
        ranks_per_node=1, measured_gates=False, slot_residency=args.residency, relay=args.relay, debug=args.debug
    )
    agent = Agent(model, options)
    num_guests = 0
    for step in range(NUM_STEPS):
        agent.begin_step()
        model.zero_grad()
        loss_of(model(batch(CONFIG, step=step, rank=group.rank).to(device))).backward()
        summary = agent.end_step()
        num_guests += summary.guests_intra + summary.guests_inter
        wanted = reference_gradients(reference, step=step, num_ranks=group.size)
        for index, layer in enumerate(model.layers):
            for local, expert in enumerate(layer.parallel_experts.home_experts.tolist()):
                for name, parameter in layer.experts.named_parameters():
                    got, want = parameter.grad[local].cpu(), wanted[f"{index}.{expert}.{name}"]
                    difference = (got - want).norm() / want.norm().clamp(min=1e-30)
                    assert difference <= 1e-10, f"step {step}, layer {index}, expert {expert}, {name}: {difference:.1e}"
        agent.weights_changed()
    assert num_guests > 0, "no guest was made"
    agent.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=["cpu", "cuda"], required=True)
    parser.add_argument("--backend", choices=["gloo", "nccl"], required=True)
    parser.add_argument("--residency", default="resident")
    parser.add_argument("--relay", default="off")
    parser.add_argument("--debug", action="store_true")
    args = parser.parse_args()
    dist.init_process_group(args.backend, timeout=timedelta(seconds=60))
    # With gloo all ranks share one GPU, with NCCL each has its own.
    index = dist.get_rank() if args.backend == "nccl" else 0
    device = torch.device("cuda", index) if args.device == "cuda" else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    torch.set_num_threads(1)
    try:
        train(args, device)
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
