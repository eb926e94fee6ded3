"""Trains a small `GPTModel` of Megatron-LM on the Python standard library's own source code, with an agent.

Data parallel and expert parallel over all ranks, on GPUs or, with stand-ins for CUDA, on CPUs:

    torchrun --standalone --nproc-per-node 2 examples/train_megatron.py

The lines that a training loop needs are marked with "TAOT".
"""

# mypy: disable-error-code="import-not-found"

from __future__ import annotations

import argparse
import os
import sysconfig
import time
from pathlib import Path
from typing import Any

import megatron_on_cpu
import torch
import torch.distributed as dist
from megatron.core import parallel_state, tensor_parallel
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.transformer.transformer_config import TransformerConfig
from torch import nn

from taot_client import Agent, AgentOptions
from taot_client.adapters.megatron import parallelize

VOCABULARY = 256
"""Bytes."""


def build_model(args: argparse.Namespace) -> Any:
    """A GPT with experts in every layer, in Megatron's data-parallel wrapper, which keeps gradients in `main_grad`."""
    config = TransformerConfig(
        num_layers=args.layers,
        hidden_size=args.dim,
        num_attention_heads=4,
        num_moe_experts=args.experts,
        moe_router_topk=2,
        moe_ffn_hidden_size=2 * args.dim,
        moe_aux_loss_coeff=args.aux_loss,
        moe_token_dispatcher_type="alltoall",  # noqa: S106 - not that kind of token
        expert_model_parallel_size=dist.get_world_size(),
        expert_tensor_parallel_size=1,
        gated_linear_unit=True,
        activation_func=nn.functional.silu,
        add_bias_linear=False,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        use_cpu_initialization=not torch.cuda.is_available(),
        cuda_graph_scope=[],
    )
    spec = get_gpt_layer_local_spec(num_experts=args.experts, moe_grouped_gemm=False)
    model = GPTModel(config, spec, vocab_size=VOCABULARY, max_sequence_length=args.sequence)
    wrapping = DistributedDataParallelConfig(grad_reduce_in_fp32=True)
    wrapped = DistributedDataParallel(config, wrapping, model)
    wrapped.broadcast_params()  # of everything but the experts, which every rank has drawn for itself
    return wrapped


def load_batch(args: argparse.Namespace, *, step: int, device: torch.device) -> torch.Tensor:
    """Windows of the standard library's sources, different on every rank and step. Shape: [batch, sequence + 1]."""
    sources = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))
    text = sources[(step * dist.get_world_size() + dist.get_rank()) % len(sources)].read_bytes()
    text = text.ljust(args.batch * (args.sequence + 1), b"\n")[: args.batch * (args.sequence + 1)]
    return torch.frombuffer(bytearray(text), dtype=torch.uint8).long().view(args.batch, -1).to(device)


def train(args: argparse.Namespace, device: torch.device) -> None:
    """Runs the training loop."""
    model = build_model(args)
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=args.learning_rate)
    positions = torch.arange(args.sequence, device=device).expand(args.batch, -1)
    mask = torch.ones(args.sequence, args.sequence, dtype=torch.bool, device=device).triu(1)[None, None]

    names = parallelize(model)  # TAOT: after wrapping
    # On CPUs ranks share the cores, and times say nothing about what guests gain.
    options = AgentOptions(
        plan_source="inline", ranks_per_node=args.ranks_per_node, measured_gates=torch.cuda.is_available()
    )
    agent = Agent(model, options)  # TAOT
    if dist.get_rank() == 0:
        print(f"layers: {', '.join(names)}", flush=True)
    for step in range(args.steps):
        started = time.perf_counter()
        windows = load_batch(args, step=step, device=device)
        model.zero_grad_buffer()

        agent.begin_step()  # TAOT: before the first forward of a step
        losses = model(windows[:, :-1].contiguous(), positions, mask, labels=windows[:, 1:].contiguous())
        losses.mean().backward()
        summary = agent.end_step()  # TAOT: after the last backward, before gradients are reduced and clipped

        model.finish_grad_sync()
        for parameter in parameters:
            parameter.grad = parameter.main_grad
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

        mean = losses.detach().mean()
        dist.all_reduce(mean)
        if dist.get_rank() == 0:
            static, achieved = (
                sum(each.values()) / len(names) for each in (summary.imbalance_static, summary.imbalance)
            )
            print(
                f"step {step:3d}  loss {mean.item() / dist.get_world_size():.4f}  imbalance {static:6.1%} ->"
                f" {achieved:6.1%}  guests {summary.guests_intra}+{summary.guests_inter}"
                f"  {time.perf_counter() - started:.2f} s",
                flush=True,
            )
    agent.close()


def parse_arguments() -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--experts", type=int, default=8)
    parser.add_argument("--dim", type=int, default=64)
    parser.add_argument("--aux-loss", type=float, default=0.0, help="weight of Megatron's load-balancing loss")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--batch", type=int, default=4, help="sequences per rank")
    parser.add_argument("--sequence", type=int, default=128, help="bytes per sequence")
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--ranks-per-node", type=int, help="emulate nodes of this many ranks")
    return parser.parse_args()


def main() -> None:
    """Runs one rank."""
    args = parse_arguments()
    megatron_on_cpu.stand_in()
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
        dist.init_process_group("nccl")
    else:
        device = torch.device("cpu")
        torch.set_num_threads(1)
        dist.init_process_group("gloo")
    try:
        parallel_state.initialize_model_parallel(
            expert_model_parallel_size=dist.get_world_size(), expert_tensor_parallel_size=1
        )
        torch.manual_seed(dist.get_rank())
        if torch.cuda.is_available():
            tensor_parallel.model_parallel_cuda_manual_seed(0)
        train(args, device)
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
