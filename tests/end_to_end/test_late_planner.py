"""The wrong order of starts: agents before their planner, the leader last of them; and a planner after its job."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
from link_samples import eventually
from plans_awaited import await_plan
from rank_threads import Rank, run_ranks
from running_planner import START_BOUND_SECONDS, free_port, planner_process
from tiny_moe import History, TinyConfig, assert_same_gradients, merged, tiny_options, train, train_dense

from taot_client import Agent

pytestmark = pytest.mark.slow

CONFIG = TinyConfig(num_layers=2)
RANKS, STEPS, PLANNER_AT = 4, 8, 2
FLAGS = ["--exit-when-idle", "0", "--exit-when-unused", "0", "--lease-seconds", "600"]


class LateJob:
    """A job whose ranks start in reversed order; it stands still once for a planner, if it is to have one."""

    def __init__(self, port: int, *, has_planner: bool) -> None:
        self.trains_alone = threading.Event()
        self.planner_listens = threading.Event()
        self._has_planner = has_planner
        self._has_begun = [threading.Event() for _ in range(RANKS + 1)]
        self._has_begun[RANKS].set()
        self._options = tiny_options(
            ranks_per_node=2, planner_address=f"127.0.0.1:{port}", connect_timeout=timedelta(milliseconds=100)
        )

    def run(self) -> History:
        return merged(run_ranks(RANKS, self._body, timeout_seconds=2 * START_BOUND_SECONDS))

    def _body(self, rank: Rank) -> History:
        assert self._has_begun[rank.group.rank + 1].wait(60)
        self._has_begun[rank.group.rank].set()
        return train(rank, CONFIG, self._options, num_steps=STEPS, before_step=self._before_step)

    def _before_step(self, agent: Agent, step: int) -> None:
        if not agent.planner_stats:  # not the leader
            return
        if step < PLANNER_AT or not self._has_planner:
            assert not agent.planner_stats["connected"]
        elif step == PLANNER_AT:
            self.trains_alone.set()
            assert self.planner_listens.wait(START_BOUND_SECONDS)
            assert eventually(lambda: agent.planner_stats["connected"], seconds=40)
        else:
            await_plan(agent, step)


@pytest.mark.timeout(300)
def test_agents_that_start_before_their_planner_get_its_plans_and_it_ends_with_them():
    port = free_port()
    job = LateJob(port, has_planner=True)
    with ThreadPoolExecutor(max_workers=1) as pool:
        running = pool.submit(job.run)
        assert eventually(lambda: job.trains_alone.is_set() or running.done(), seconds=60)
        with planner_process(grpc_port=port, flags=["--exit-when-idle", "0", "--lease-seconds", "600"]) as planner:
            job.planner_listens.set()
            got = running.result(timeout=2 * START_BOUND_SECONDS)
            assert planner.wait() == 0
    modes = [summary.mode.name for summary in got.summaries]
    assert set(modes[:PLANNER_AT]) == {"INLINE"}
    assert set(modes[PLANNER_AT + 3 :]) == {"PLAN"}, modes
    assert_same_gradients(got, train_dense(CONFIG, num_ranks=RANKS, num_steps=STEPS), tolerance=1e-9)


@pytest.mark.timeout(300)
def test_a_planner_that_starts_after_its_job_has_ended_ends_too():
    port = free_port()
    got = LateJob(port, has_planner=False).run()
    assert {summary.mode.name for summary in got.summaries} == {"INLINE"}
    with planner_process(grpc_port=port, flags=FLAGS, is_warm_awaited=False) as planner:
        assert planner.wait() == 0
