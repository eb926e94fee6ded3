"""A planner with more work than it can do, or whose callers die: others get answers, and refusals come at once."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import grpc
import httpx
import pytest
from google.rpc import error_details_pb2, status_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from link_samples import eventually
from planner_client import CALL_SECONDS, planner_client, refusal
from routing_samples import make_report, make_spec
from running_planner import planner_process, running_planner

from taot_api.codec import encode_report
from taot_api.v1 import planner_pb2 as pb
from taot_service.config import ServiceConfig

TRAINER = """
import sys, time
from planner_client import PlannerClient, planner_client
from routing_samples import make_report, make_spec
spec = make_spec(training_job="job", group="ep0", incarnation=1, num_ranks=8)
with planner_client(sys.argv[1]) as client:
    session_id = client.open(spec)
    client.report_and_wait(session_id, spec, make_report(spec, step=1))
    watch = client.watch(session_id)
    next(watch)
    print("watching", session_id, flush=True)
    time.sleep(1000)
"""


def is_serving(channel: grpc.Channel) -> bool:
    answer = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=CALL_SECONDS)
    return answer.status == health_pb2.HealthCheckResponse.SERVING


def is_live(http: httpx.Client, port: int) -> bool:
    return http.get(f"http://127.0.0.1:{port}/livez").status_code == 200


def has_retry_advice(call: grpc.Future) -> bool:
    packed = dict(call.trailing_metadata())["grpc-status-details-bin"]
    details = status_pb2.Status.FromString(packed).details
    return any(detail.Is(error_details_pb2.RetryInfo.DESCRIPTOR) for detail in details)


@pytest.mark.parametrize(
    ("limits", "flag"),
    [
        ({"max_waiting_plans": 20, "max_waiting_plans_per_session": 4}, "--max-waiting-plans"),
        ({"max_waiting_plans": 1000, "max_waiting_plans_per_session": 2}, "--max-waiting-plans-per-session"),
    ],
)
def test_of_two_hundred_plan_now_calls_those_beyond_the_limit_are_refused_at_once(limits, flag):
    num_waiting = 20
    with (
        running_planner(ServiceConfig(solver_threads=1, **limits)) as planner,
        planner_client(planner.address) as client,
    ):
        specs = [make_spec(training_job=f"job-{number}", experts_L=(8,)) for number in range(10)]
        session_ids = [client.open(spec) for spec in specs]
        # The only thread is taken, so that whatever waits goes on waiting.
        planner.on_loop(lambda: setattr(planner.planner._pool, "_num_free", 0))
        calls = [
            client.stub.PlanNow.future(
                pb.PlanNowRequest(report=encode_report(session_id, make_report(spec, step=1))), timeout=CALL_SECONDS
            )
            for _ in range(20)
            for session_id, spec in zip(session_ids, specs, strict=True)
        ]
        assert eventually(lambda: sum(call.done() for call in calls) >= 200 - num_waiting, seconds=CALL_SECONDS)
        refused = [call for call in calls if call.done()]
        assert len(refused) == 200 - num_waiting
        for call in refused:
            seen = refusal(call.result)
            assert (seen.code, seen.info.reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "OVERLOADED")
            assert seen.info.metadata["flag"] == flag
            assert has_retry_advice(call)
        with (
            httpx.Client(timeout=CALL_SECONDS, trust_env=False) as http,
            grpc.insecure_channel(planner.address) as channel,
        ):
            assert is_live(http, planner.http_port)
            assert is_serving(channel)
        planner.on_loop(lambda: (setattr(planner.planner._pool, "_num_free", 1), planner.planner._pool.wake()))
        for call in calls:
            if call not in refused:
                assert call.result(timeout=CALL_SECONDS).plan.layers


@pytest.mark.slow
def test_a_trainer_that_was_killed_is_replaced_at_once_by_one_of_another_size():
    with planner_process(flags=["--lease-seconds", "3600"]) as planner, planner_client(planner.address) as client:
        trainer = subprocess.Popen(
            [sys.executable, "-c", TRAINER, planner.address],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
        watchdog = threading.Timer(CALL_SECONDS, trainer.kill)
        watchdog.start()
        try:
            assert trainer.stdout is not None
            word, old_id = trainer.stdout.readline().split()
            assert word == "watching"
        finally:
            watchdog.cancel()
            trainer.kill()
            trainer.wait()
            trainer.stdout.close()
        spec = make_spec(training_job="job", group="ep0", incarnation=2, num_ranks=4)
        session_id = client.open(spec)
        plan = client.report_and_wait(session_id, spec, make_report(spec, step=1))
        assert plan.guests_L[0].shape[0] == 4
        sessions = httpx.get(
            f"http://127.0.0.1:{planner.http_port}/v1/sessions", timeout=CALL_SECONDS, trust_env=False
        ).json()["sessions"]
        assert [session["session_id"] for session in sessions] == [session_id]
        old = make_spec(num_ranks=8)
        assert refusal(lambda: client.report(old_id, make_report(old, step=2))).info.reason == "STALE_INCARNATION"


@pytest.mark.slow
def test_probes_are_answered_while_the_solver_never_rests(capsys):
    spec = make_spec(num_ranks=32, experts_L=(128,) * 48, top_k=1, slots=8)
    report = make_report(spec, step=1, num_tokens=64)
    with (
        planner_process() as planner,
        ThreadPoolExecutor(max_workers=2) as pool,
        httpx.Client(timeout=CALL_SECONDS, trust_env=False) as http,
        grpc.insecure_channel(planner.address) as channel,
    ):
        is_over, num_plans = threading.Event(), [0, 0]
        seconds: dict[str, list[float]] = {"/livez": [], "health": []}
        probes = {
            "/livez": lambda: is_live(http, planner.http_port),
            "health": lambda: is_serving(channel),
        }

        def ask_for_plans(number: int) -> None:
            with planner_client(planner.address) as client:
                session_id = client.open(make_spec(num_ranks=32, experts_L=(128,) * 48, top_k=1, slots=8))
                while not is_over.is_set():
                    client.plan_now(session_id, report)
                    num_plans[number] += 1

        callers = [pool.submit(ask_for_plans, number) for number in range(2)]
        try:
            assert eventually(lambda: min(num_plans) > 0, seconds=CALL_SECONDS)
            before = sum(num_plans)
            while sum(num_plans) < before + 6 or len(seconds["/livez"]) < 100:
                for name, probe in probes.items():
                    start = time.perf_counter()
                    assert probe()
                    seconds[name].append(time.perf_counter() - start)
        finally:
            is_over.set()
        for caller in callers:
            caller.result(timeout=CALL_SECONDS)
    with capsys.disabled():
        for name, each in seconds.items():
            print(f"\n{name} while saturated: p99 {1000 * sorted(each)[int(len(each) * 0.99)]:.0f} ms of {len(each)}")
