"""A planner that has served a long job and hundreds of short ones is as small as before them."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import httpx
import pytest
from chaos.process_memory import resident_mib
from chaos.settings import number
from link_samples import eventually
from planner_client import CALL_SECONDS, planner_client
from routing_samples import make_report, make_spec
from running_planner import PlannerProcess, planner_process
from scraped import samples_of

from taot_api.codec import encode_report
from taot_api.v1 import planner_pb2 as pb

MAX_GROWTH_MIB = 10
NUM_CALLERS = 4
LEASE_SECONDS = 2
REPORTS_OF_A_SHORT_JOB = 3


@dataclass(frozen=True)
class Load:
    """How much is asked of a planner."""

    num_plans: int
    num_jobs: int


def work(planner: PlannerProcess, load: Load, *, on_tenth: Callable[[], None]) -> None:
    """One job that asks for many plans, most of them now and some ahead, and short jobs beside it."""
    numbers, jobs, lock = itertools.count(1), iter(range(load.num_jobs)), threading.Lock()
    spec = make_spec(experts_L=(8,), training_job="long", num_ranks=2, recent_reports=4)

    def next_of(counter) -> int | None:
        with lock:
            return next(counter, None)

    def ask() -> None:
        with planner_client(planner.address) as client:
            session_id = client.open(spec)
            watch = client.watch(session_id, timeout=None)  # on a busy machine callers may be silent for a lease
            requests = [encode_report(session_id, make_report(spec, step=step)) for step in range(20)]
            while (turn := next_of(numbers)) <= load.num_plans:
                request = requests[turn % len(requests)]
                if turn % 10:
                    client.stub.PlanNow(pb.PlanNowRequest(report=request), timeout=CALL_SECONDS)
                else:
                    request.step = turn
                    client.stub.ReportRouting(request, timeout=CALL_SECONDS)
                if turn % (load.num_plans // 10) == 0:
                    on_tenth()
            watch.cancel()

    def run_short_jobs() -> None:
        with planner_client(planner.address) as client:
            while (job := next_of(jobs)) is not None:
                short = make_spec(training_job=f"short-{job}", group=f"ep{job % 3}")
                session_id = client.open(short)
                for step in range(REPORTS_OF_A_SHORT_JOB):
                    client.report_and_wait(session_id, short, make_report(short, step=step))
                if job % 2:  # the others fall silent
                    client.stub.CloseSession(pb.CloseSessionRequest(session_id=session_id), timeout=CALL_SECONDS)

    with ThreadPoolExecutor(max_workers=NUM_CALLERS + 1) as pool:
        for done in [pool.submit(run_short_jobs), *[pool.submit(ask) for _ in range(NUM_CALLERS)]]:
            done.result()


def soak(load: Load, warm_up: Load, *, max_growth_mib: float) -> None:
    table: list[tuple[float, float]] = []
    print()
    with (
        planner_process(flags=["--lease-seconds", str(LEASE_SECONDS), "--max-sessions", "1000"]) as planner,
        httpx.Client(base_url=f"http://127.0.0.1:{planner.http_port}", timeout=CALL_SECONDS, trust_env=False) as http,
    ):

        def sample() -> None:
            plans = sum(value for (name, _), value in samples_of(http).items() if name == "taot_plans_total")
            table.append((plans, resident_mib(planner.pid)))
            print(f"{plans:10.0f} plans {table[-1][1]:6.1f} MiB", flush=True)

        def settle() -> dict:
            assert eventually(lambda: samples_of(http)["taot_sessions", ()] == 0, seconds=60), "sessions stay open"
            return samples_of(http)

        work(planner, warm_up, on_tenth=lambda: None)
        before = settle()
        sample()
        work(planner, load, on_tenth=sample)
        after = settle()
        sample()
        assert planner.terminate() == 0
        assert "Traceback" not in planner.stderr, planner.stderr[-5000:]
    opened = sum(load_.num_jobs for load_ in (load, warm_up))
    print(f"{opened} short jobs; {len(after)} series of metrics, before {len(before)}")
    assert table[-1][0] - table[0][0] >= load.num_plans
    assert after["taot_queue_length", ()] == 0
    assert after.keys() == before.keys(), sorted(after.keys() ^ before.keys())[:10]
    assert table[-1][1] - table[0][1] < max_growth_mib


@pytest.mark.chaos
@pytest.mark.timeout(1500)
def test_a_hundred_thousand_plans_and_five_hundred_jobs_leave_nothing_behind():
    plans, jobs = number("PLANS", 100_000), number("JOBS", 500)
    soak(Load(plans, jobs), Load(plans // 10, jobs // 10), max_growth_mib=MAX_GROWTH_MIB)


@pytest.mark.slow
def test_plans_and_jobs_leave_no_series_and_no_session_behind():
    # Too few to tell a small leak from what an allocator keeps: a large one still shows.
    soak(Load(2000, 30), Load(500, 10), max_growth_mib=MAX_GROWTH_MIB)
