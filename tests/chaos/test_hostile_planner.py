"""A planner that lies, stalls and contradicts itself is survived: no hang, no wrong step, the same losses."""

from __future__ import annotations

import contextlib
import os
import random
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from chaos.chaos_job import ChaosJob, assert_undisturbed, chaos_options
from chaos.hostile_planner import CALL_FAULTS
from chaos.hostile_plans import PLAN_FAULTS, REFUSALS
from chaos.hostile_streams import NO_STREAMS, STREAM_FAULTS
from chaos.planner_keeper import KeptPlanner, kept_planners
from chaos.process_memory import resident_mib
from chaos.settings import number, seed
from running_planner import START_BOUND_SECONDS

MAX_GROWTH_MIB = 48
"""Of the trainer, while faults go on."""

BROKEN_LINK = "the link to the planner has broken"
"""What the agent says when a thread of its link has ended by a fault of ours."""


@dataclass
class Hostile:
    """The process between agent and planners."""

    address: str
    _log: Path

    def faults(self) -> Counter[str]:
        """Faults that have been delivered, by method and kind."""
        return Counter(self._log.read_text().splitlines())


@contextlib.contextmanager
def hostile_planner(folder: Path, planners: list[KeptPlanner], *, first_seed: int) -> Iterator[Hostile]:
    log = folder / "faults.log"
    log.touch()
    script = Path(__file__).with_name("hostile_planner.py")
    command = [sys.executable, str(script), str(log), str(first_seed), *[planner.address for planner in planners]]
    path = os.pathsep.join([str(script.parents[1]), os.environ.get("PYTHONPATH", "")])
    with (folder / "hostile-stderr").open("w") as stderr:
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=stderr, text=True, env={**os.environ, "PYTHONPATH": path}
        )
    watchdog = threading.Timer(START_BOUND_SECONDS, process.kill)
    watchdog.start()
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, (folder / "hostile-stderr").read_text()
        yield Hostile(f"127.0.0.1:{int(line)}", log)
    finally:
        watchdog.cancel()
        process.kill()
        process.wait()
        process.stdout.close()


def suffer(hostile: Hostile, planners: list[KeptPlanner], job: ChaosJob, *, until, source: random.Random) -> None:
    """Stops and kills the planners behind now and then, until enough has happened or time is up."""
    pause, end = threading.Event(), time.monotonic() + number("FAULT_SECONDS", 400)
    while not until(hostile.faults()):
        assert time.monotonic() < end, f"not every fault came up, or was refused: {hostile.faults()}"
        pause.wait(1.0)
        job.check()
        planner, trouble = source.choice(planners), source.random()
        if trouble < 0.1:
            planner.stop_for(source.uniform(0.1, 1.5))
        elif trouble < 0.2:
            planner.kill()
            planner.start()


def every_fault(method: str, faults: tuple[str, ...]):
    wanted = {f"{method}: {fault}" for fault in faults}
    return lambda seen: wanted <= seen.keys()


def some_faults(method: str, least: int):
    return lambda seen: sum(count for fault, count in seen.items() if fault.startswith(method)) >= least


def report_on(hostile: Hostile) -> None:
    faults = hostile.faults()
    print("\n".join(f"{count:6}  {fault}" for fault, count in sorted(faults.items())))
    print(f"{sum(faults.values())} faults of {len(faults)} kinds")


@pytest.fixture
def behind() -> Iterator[list[KeptPlanner]]:
    """Two real planners, neither of which knows of the other."""
    with kept_planners("one", "other") as planners:
        for planner in planners:
            planner.start()
        yield planners
        for planner in planners:
            assert "Traceback" not in planner.stderr, planner.stderr[-5000:]


@pytest.mark.chaos
@pytest.mark.timeout(900)
@pytest.mark.parametrize("plan_source", ["ahead", "blocking"])
def test_every_fault_of_a_hostile_planner_is_survived(behind, tmp_path, caplog, plan_source):
    first_seed = seed()
    with (
        hostile_planner(tmp_path, behind, first_seed=first_seed) as hostile,
        ChaosJob(chaos_options(hostile.address, plan_source=plan_source)) as job,
    ):
        reports, plans = every_fault("ReportRouting", CALL_FAULTS), every_fault("WatchPlans", PLAN_FAULTS)
        streams = every_fault("StreamReports", (NO_STREAMS, *STREAM_FAULTS))
        now = every_fault("PlanNow", CALL_FAULTS)
        opened = every_fault("OpenSession", ("wrong session id",))
        # A fault that is on its way when the agent turns away comes to nothing: what the agent has said counts.
        refused = lambda: [words for words in REFUSALS.values() if words in caplog.text]  # noqa: E731
        delivered = lambda seen: all(each(seen) for each in (reports, streams, plans, opened))  # noqa: E731
        ahead = lambda seen: delivered(seen) and len(refused()) == len(REFUSALS)  # noqa: E731
        is_enough = now if plan_source == "blocking" else ahead
        job.await_steps(20)
        before = resident_mib()
        suffer(hostile, behind, job, until=is_enough, source=random.Random(first_seed))
        grown = resident_mib() - before
        outcome = job.finish()
        report_on(hostile)
        print(f"memory of the trainer: {before:.0f} MiB, {grown:+.1f} MiB since")
    assert_undisturbed(outcome)
    assert outcome.modes["BLOCKING" if plan_source == "blocking" else "PLAN"] > 0, outcome.modes
    assert outcome.moved_guests > 0
    assert grown < MAX_GROWTH_MIB
    assert BROKEN_LINK not in caplog.text


@pytest.mark.slow
def test_some_faults_of_a_hostile_planner_are_survived(behind, tmp_path, caplog):
    with hostile_planner(tmp_path, behind, first_seed=4) as hostile, ChaosJob(chaos_options(hostile.address)) as job:
        plans, streams = some_faults("WatchPlans", 8), some_faults("StreamReports", 8)
        is_enough = lambda seen: plans(seen) and streams(seen)  # noqa: E731
        suffer(hostile, behind, job, until=is_enough, source=random.Random(4))
        outcome = job.finish()
        report_on(hostile)
    assert_undisturbed(outcome)
    assert outcome.modes["PLAN"] > 0, outcome.modes
    assert BROKEN_LINK not in caplog.text


@pytest.mark.chaos
@pytest.mark.timeout(300)
def test_deterministic_training_is_equal_bit_for_bit_whatever_the_planner_does(behind, tmp_path):
    first_seed = seed()

    options = chaos_options(None, deterministic=True, group="bits")
    with (
        hostile_planner(tmp_path, behind, first_seed=first_seed) as hostile,
        ChaosJob(replace(options, planner_address=hostile.address)) as job,
    ):
        calls, streams = some_faults("ReportRouting", 10), some_faults("StreamReports", 15)
        while not (job.step >= 100 and calls(hostile.faults()) and streams(hostile.faults())):
            job.await_steps(1)
        disturbed = job.finish()
        report_on(hostile)
    undisturbed = ChaosJob(options, num_steps=len(disturbed.losses)).finish()
    assert undisturbed.losses == disturbed.losses
    assert undisturbed.weights.keys() == disturbed.weights.keys()
    for name, weight in undisturbed.weights.items():
        assert torch.equal(weight, disturbed.weights[name]), name
    assert disturbed.moved_guests > 0
    assert_undisturbed(disturbed)
