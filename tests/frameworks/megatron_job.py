"""A job of two processes with Megatron's own process groups: unmodified expert parallelism, then an agent's.

Run by test_megatron.py: ``megatron_job.py FOLDER``, an empty folder for the rendezvous. Fails if the runs differ.
"""

from __future__ import annotations

import multiprocessing
import sys
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.transformer.moe.moe_utils import get_default_pg_collection
from megatron_samples import RANKS, Sample, train_unmodified, train_with_agent
from tiny_moe import assert_same_gradients

TIMEOUT_SECONDS = 60


def run_rank(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    store = dist.FileStore(str(Path(folder) / "store"), RANKS)
    timeout = timedelta(seconds=TIMEOUT_SECONDS)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=RANKS, timeout=timeout)
    parallel_state.initialize_model_parallel(expert_model_parallel_size=RANKS, expert_tensor_parallel_size=1)
    groups = get_default_pg_collection()
    assert groups.ep.size() == RANKS
    sample = Sample(config={"moe_shared_expert_intermediate_size": 16})

    want = train_unmodified(sample, groups, ranks=[rank])
    got = train_with_agent(sample, groups)
    losses = torch.tensor(want.losses, dtype=torch.float64)
    dist.all_reduce(losses)
    assert got.losses == pytest.approx(losses.tolist(), rel=1e-12)
    assert_same_gradients(got, want, tolerance=1e-12)
    guests = sum(summary.guests_intra + summary.guests_inter for summary in got.summaries)
    print(f"rank {rank}: {guests} guests", flush=True)
    dist.destroy_process_group()


def main() -> None:
    # Forked, so that Megatron is imported once.
    context = multiprocessing.get_context("fork")
    ranks = [context.Process(target=run_rank, args=(rank, sys.argv[1]), daemon=True) for rank in range(RANKS)]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join(2 * TIMEOUT_SECONDS)
    sys.exit(any(process.exitcode != 0 for process in ranks))


if __name__ == "__main__":
    main()
