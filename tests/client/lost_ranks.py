"""Jobs in which a rank is lost, each rank a process of its own; run by test_lost_ranks.py.

Ranks are forked once everything has been imported, which takes longer than all the rest. They are interpreters of
their own all the same: an error that nobody catches ends them as it ends a training script.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from link_samples import eventually
from tiny_moe import TinyConfig, TinyMoE, batch, loss_of, tiny_options

from taot_client import Agent, ExpertParallelGroup, expert_parallel_group, token_layout
from taot_planning import warm_up

RANKS = 3
BOUND_SECONDS = 60
"""Far above any start, and above the transfer timeout of two seconds; the groups would wait for 100."""
VICTIM = 1
LOST_IN_STEP = 3
# The rank that will be lost is at home of the hot experts: all others wait for weights from it.
CONFIG = TinyConfig(num_layers=2, home_E=(1, 1, 0, 2, 0, 2, 0, 2), tokens_by_rank=(40, 40, 40))
OPTIONS = tiny_options(ranks_per_node=1, transfer_timeout=timedelta(seconds=2), plan_source="inline")


def say(text: object) -> None:
    print(text, flush=True)


def try_other_options(group: ExpertParallelGroup) -> None:
    """Every rank is told that the ranks were started with different options."""
    try:
        Agent(TinyMoE(CONFIG, group), replace(OPTIONS, tolerance=0.01 * (1 + group.rank)))
    except ValueError as error:
        say(f"refused: {error}")


def try_other_interfaces() -> None:
    """Every rank is told that gloo does not understand what NCCL does."""
    os.environ["GLOO_SOCKET_IFNAME"] = "^lo"
    try:
        expert_parallel_group()
    except RuntimeError as error:
        say(f"refused: {error}")
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"


def go(how: str) -> None:
    """The end of this rank, as the machine sees it."""
    say("going")
    os.kill(os.getpid(), signal.SIGSTOP if how == "stopped in a transfer" else signal.SIGKILL)


def lose_in_a_transfer(agent: Agent, how: str) -> None:
    """Lets this rank go where its peers have its tokens and wait for its weights, which a slow link has not sent."""
    state = agent._agent.state
    post, supply = state.weight_mover.post, state.layers[0].supply
    weights = supply.weights
    state.weight_mover.post = lambda shipments: post([] if state.step == LOST_IN_STEP else shipments)
    supply.weights = lambda layer_pass: go(how) if state.step == LOST_IN_STEP else weights(layer_pass)


def train(group: ExpertParallelGroup, how: str) -> None:
    model = TinyMoE(CONFIG, group)
    agent = Agent(model, OPTIONS)
    if group.rank == VICTIM and how != "killed between steps":
        lose_in_a_transfer(agent, how)
    for step in range(LOST_IN_STEP + 3):
        if group.rank == VICTIM and step == LOST_IN_STEP and how == "killed between steps":
            go(how)
        agent.begin_step()
        loss_of(model(batch(CONFIG, step=step, rank=group.rank))).backward()
        agent.end_step()
        say(f"step {step} done")


def run_rank(rank: int, how: str, folder: Path) -> None:
    """What the process of one rank does."""
    log = os.open(folder / f"rank{rank}.log", os.O_CREAT | os.O_WRONLY)
    os.dup2(log, 1)
    os.dup2(log, 2)
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    timeout = timedelta(seconds=100)
    store = f"file://{folder / 'store'}"
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=RANKS, timeout=timeout)
    group = expert_parallel_group(timeout=timeout)
    if how == "killed between steps":
        try_other_options(group)
        try_other_interfaces()
    train(group, how)


def outcome(pids: list[int], folder: Path) -> dict[str, object]:
    """Exit codes and last words of the survivors, None for one that hangs; the victim is ended at the last."""
    gone = lambda: "going" in (folder / f"rank{VICTIM}.log").read_text()  # noqa: E731
    eventually(lambda: (folder / f"rank{VICTIM}.log").exists() and gone(), seconds=BOUND_SECONDS)
    began, codes = time.monotonic(), dict.fromkeys(range(RANKS))

    def all_ended() -> bool:
        for rank, pid in enumerate(pids):
            if rank != VICTIM and codes[rank] is None:
                ended, status = os.waitpid(pid, os.WNOHANG)
                codes[rank] = os.waitstatus_to_exitcode(status) if ended else None
        return all(code is not None for rank, code in codes.items() if rank != VICTIM)

    eventually(all_ended, seconds=BOUND_SECONDS)
    seconds = time.monotonic() - began
    for rank, pid in enumerate(pids):
        if codes[rank] is None:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
    printed = [(folder / f"rank{rank}.log").read_text() for rank in range(RANKS)]
    return {"codes": [codes[rank] for rank in range(RANKS)], "printed": printed, "seconds": seconds}


def main() -> None:
    warm_up(["taot"], has_recent=False)
    token_layout.warm_up()
    outcomes = {}
    for how in ("killed in a transfer", "stopped in a transfer", "killed between steps"):
        folder = Path(sys.argv[1]) / how.replace(" ", "-")
        folder.mkdir()
        pids = []
        for rank in range(RANKS):
            pids.append(os.fork())
            if pids[-1] == 0:
                run_rank(rank, how, folder)
                return
        outcomes[how] = outcome(pids, folder)
    (Path(sys.argv[1]) / "outcomes.json").write_text(json.dumps(outcomes))


if __name__ == "__main__":
    main()
