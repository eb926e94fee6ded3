"""A job of two ranks that ends after three steps without closing its agents: ending_job.py ADDRESS end|crash."""

from __future__ import annotations

import sys
import threading

from rank_threads import Rank, run_ranks
from tiny_moe import TinyConfig, tiny_options, train

RANKS = 2
AT_THE_END = threading.Barrier(RANKS)


class EndOfJob(Exception):
    pass


def body(rank: Rank) -> None:
    def before_step(agent: object, step: int) -> None:
        if step == 3:
            AT_THE_END.wait(60)
            raise EndOfJob

    options = tiny_options(planner_address=sys.argv[1], training_job="ending")
    train(rank, TinyConfig(num_layers=1), options, num_steps=4, before_step=before_step)


try:
    run_ranks(RANKS, body)
except EndOfJob:
    if sys.argv[2] == "crash":
        raise
