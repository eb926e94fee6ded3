"""A group that starts again takes over at once, also with another size; its old run goes on without a planner."""

from __future__ import annotations

import random
from contextlib import ExitStack

import pytest
from chaos.chaos_job import ChaosJob, assert_undisturbed, chaos_options
from chaos.planner_keeper import kept_planners
from chaos.settings import number, seed
from link_samples import eventually


def restart(num_runs: int, source: random.Random) -> None:
    """Runs of one group, each begun while the one before still calls, one of them behind a planner that was killed."""
    with kept_planners("planner") as (planner,), ExitStack() as jobs:
        planner.start()
        assert eventually(planner.is_listening)
        options, sizes = chaos_options(planner.address, group="again"), [4, 2]
        old = jobs.enter_context(ChaosJob(options))
        for run in range(1, num_runs):
            assert eventually(lambda job=old: job.planner_epoch is not None, seconds=60)
            old.await_steps(3)
            size = sizes[run % 2] if run < len(sizes) else source.choice(sizes)
            new = jobs.enter_context(ChaosJob(options, num_ranks=size))
            assert eventually(lambda job=new: job.planner_epoch is not None, seconds=60), "the new run gets no plans"
            # The planner refuses what the old run still sends, and the old run does not stand in its way again.
            assert eventually(lambda job=old: job.refusal is not None, seconds=60), "two runs of one group"
            assert "this run has been replaced" in old.refusal
            if source.random() < 0.4:
                planner.kill()
                planner.start()
                epoch = new.planner_epoch
                assert eventually(lambda job=new, epoch=epoch: job.planner_epoch != epoch, seconds=60)
            old.await_steps(5)
            assert not old.stats()["connected"]
            zombie = old.finish()
            assert_undisturbed(zombie, num_ranks=old.num_ranks)
            assert zombie.modes["PLAN"] > 0 < zombie.modes["INLINE"], zombie.modes
            new.await_steps(3)
            old = new
        last = old.finish()
        assert "Traceback" not in planner.stderr, planner.stderr[-5000:]
    assert_undisturbed(last, num_ranks=old.num_ranks)
    assert last.modes["PLAN"] > 0, last.modes


@pytest.mark.chaos
@pytest.mark.timeout(600)
def test_a_group_that_starts_again_and_again_is_planned_and_its_zombies_are_not():
    restart(number("RESTARTS", 10), random.Random(seed()))


@pytest.mark.slow
def test_a_group_that_starts_again_is_planned_and_its_zombie_is_not():
    restart(2, random.Random(1))
