"""Training on real GPUs against the dense reference: gloo by way of the host on one, NCCL on two or more."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from whole_run import run_whole

SCRIPT = Path(__file__).with_name("train_against_reference.py")

NUM_GPUS = torch.cuda.device_count()


def failure_of(*arguments: str, num_ranks: int) -> str:
    """Runs the script on `num_ranks` ranks, which compare gradients; the end of its output where a rank fails."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--local-addr", "127.0.0.1"]
    command += ["--nproc-per-node", str(num_ranks), str(SCRIPT), *arguments]
    done = run_whole(command, seconds=110)
    return done.stdout[-4000:] + done.stderr[-8000:] if done.returncode else ""


@pytest.mark.slow
def test_the_script_itself_passes_on_the_host() -> None:
    assert not failure_of("--device", "cpu", "--backend", "gloo", "--debug", num_ranks=2)


@pytest.mark.gpu
@pytest.mark.skipif(NUM_GPUS < 1, reason="needs a GPU")
@pytest.mark.parametrize("residency", ["resident", "shared"])
@pytest.mark.parametrize("debug", [False, True])
def test_two_ranks_share_one_gpu_over_gloo(residency: str, debug: bool) -> None:
    flags = ["--debug"] if debug else []
    assert not failure_of("--device", "cuda", "--backend", "gloo", "--residency", residency, *flags, num_ranks=2)


@pytest.mark.gpu
@pytest.mark.skipif(NUM_GPUS < 1, reason="needs a GPU")
@pytest.mark.parametrize("relay", ["off", "on"])
def test_four_ranks_share_one_gpu_over_gloo(relay: str) -> None:
    assert not failure_of("--device", "cuda", "--backend", "gloo", "--relay", relay, num_ranks=4)


@pytest.mark.gpu
@pytest.mark.skipif(NUM_GPUS < 2, reason="needs two GPUs")
@pytest.mark.parametrize("residency", ["resident", "shared"])
@pytest.mark.parametrize("relay", ["off", "on"])
def test_every_rank_has_a_gpu_and_guests_travel_with_nccl(residency: str, relay: str) -> None:
    num_ranks = min(NUM_GPUS, 4)
    flags = ["--residency", residency, "--relay", relay]
    assert not failure_of("--device", "cuda", "--backend", "nccl", *flags, num_ranks=num_ranks)
