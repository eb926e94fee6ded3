"""A planner that is killed and restarted all the time costs balance, never progress, and changes no loss."""

from __future__ import annotations

import random
import time
from collections import Counter
from dataclasses import dataclass, field

import pytest
from chaos.chaos_job import ChaosJob, assert_undisturbed, chaos_options
from chaos.planner_keeper import KeptPlanner, kept_planners, wait_a_random_while
from chaos.process_memory import resident_mib
from chaos.settings import number, seed
from link_samples import eventually

MAX_GROWTH_MIB = 48
"""Of the trainer, between the first quarter of the kills and the last."""

DURING_START, IN_SERVICE = "killed during its start", "killed in service"
STOPPED, SLOWED = "stopped and continued", "slowed to a tenth"


@dataclass
class Torment:
    """Faults done to one planner while a job uses it."""

    planner: KeptPlanner
    job: ChaosJob
    source: random.Random
    faults: Counter[str] = field(default_factory=Counter)
    returns_seconds: list[float] = field(default_factory=list)
    """From a planner that listens again to a plan of it that the leader has accepted."""

    @property
    def num_kills(self) -> int:
        return self.faults[DURING_START] + self.faults[IN_SERVICE]

    def live_and_die(self) -> None:
        """One life of the planner."""
        is_cold = self.source.random() < 0.08
        self.faults["started cold" if is_cold else "started"] += 1
        self.planner.start(is_cold=is_cold)
        if self.source.random() < 0.3:
            wait_a_random_while(self.source, at_most_seconds=3 if is_cold else 0.3)
            self.faults[DURING_START] += 1
        else:
            self._serve()
            self.faults[IN_SERVICE] += 1
        self.planner.kill()
        self.job.check()

    def _serve(self) -> None:
        before = self.job.planner_epoch
        assert eventually(self.planner.is_listening, seconds=100), self.planner.stderr[-3000:]
        listening = time.monotonic()
        assert eventually(lambda: self.job.planner_epoch != before, seconds=60), "plans do not flow again"
        self.returns_seconds.append(time.monotonic() - listening)
        self.job.await_steps(2)  # the step in flight, and the one whose record was written before
        planned = self.job.modes["PLAN"]
        assert eventually(lambda: self.job.modes["PLAN"] > planned, seconds=60), "no plan of this life is carried out"
        trouble = self.source.random()
        if trouble < 0.12:
            self.planner.stop_for(self.source.uniform(0.05, 2.5))
            self.faults[STOPPED] += 1
        elif trouble < 0.2:
            self.planner.slow_down_for(1.0)
            self.faults[SLOWED] += 1
        wait_a_random_while(self.source, at_most_seconds=0.5)


def torment(num_kills: int, source: random.Random) -> None:
    with kept_planners("planner") as (planner,), ChaosJob(chaos_options(planner.address)) as job:
        work = Torment(planner, job, source)
        while work.num_kills < max(1, num_kills // 4):
            work.live_and_die()
        before = resident_mib()
        while work.num_kills < num_kills:
            work.live_and_die()
        grown = resident_mib() - before
        outcome = job.finish()
        print("\n".join(f"{count:6}  {fault}" for fault, count in sorted(work.faults.items())))
        returns = sorted(work.returns_seconds)
        print(f"listening to plans: median {returns[len(returns) // 2]:.2f} s, longest {returns[-1]:.2f} s")
        print(f"memory: trainer {before:.0f} MiB, {grown:+.1f} MiB since; planners up to {planner.peak_mib:.0f} MiB")
        assert "Traceback" not in planner.stderr, planner.stderr
    assert_undisturbed(outcome)
    assert work.faults[DURING_START] > 0 < work.faults[IN_SERVICE]
    assert outcome.modes["INLINE"] > 0, "the planner was never missed"
    assert grown < MAX_GROWTH_MIB


@pytest.mark.chaos
@pytest.mark.timeout(1500)
def test_a_planner_killed_a_hundred_times_changes_no_loss():
    torment(number("KILLS", 100), random.Random(seed()))


@pytest.mark.slow
def test_a_planner_killed_now_and_then_changes_no_loss():
    torment(6, random.Random(3))
