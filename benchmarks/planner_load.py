"""One planner under load, over loopback: latency, reports per second, fairness, memory, restart. `make bench-load`.

A `taot serve` process is loaded by one generator process (`load_generator.py`); this process asks for probes. All share
the cores of the machine: the processor time of planner and generator stands beside every figure. `--quick` runs tiny
jobs for a moment, to see that everything works.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import numpy as np
from load_jobs import JobSize, encode_report_of, encode_variants, make_spec
from load_report import check_targets, print_results
from rich.console import Console
from served_planner import START_SECONDS, Probes, ServedPlanner, served_planner

from taot_api.codec import encode_session_spec
from taot_api.v1 import planner_pb2 as pb
from taot_api.v1.planner_pb2_grpc import PlannerServiceStub


class Scale(NamedTuple):
    """How much is measured."""

    large: JobSize
    small: JobSize
    reports: int
    """Of the job whose latency is measured."""
    seconds: float
    """Of each flood of reports."""
    num_jobs: int
    """At once, for fairness."""
    num_sessions: int
    """Open at once, for memory."""


FULL = Scale(JobSize(32, 48, 128), JobSize(8, 12, 64), reports=200, seconds=10.0, num_jobs=40, num_sessions=20)

QUICK = Scale(JobSize(4, 3, 64), JobSize(2, 2, 64), reports=5, seconds=0.5, num_jobs=3, num_sessions=2)

OPEN_RATE = 20.0
"""Reports per second of the job that does not wait for its plans."""

HISTORIES = 6
"""Reports per session where memory is measured; four are remembered."""


@contextmanager
def generator(planner: ServedPlanner, **task: Any) -> Iterator[dict[str, Any]]:
    """Plays jobs, yields what came of it while their sessions are open, and ends them.

    The result has the planner's processor time beside the generator's.
    """
    task = {"address": planner.address, "recent_reports": None, "warm_reports": 1, **task}
    taken_before = planner.num_taken
    process = subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name("load_generator.py")), json.dumps(task)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        if process.stdout.readline() != "begins\n":
            raise RuntimeError("the load generator did not begin")
        before = planner.cpu_seconds
        line = process.stdout.readline()
        if not line:
            raise RuntimeError("the load generator broke")
        result = {**json.loads(line), "planner_cpu_seconds": planner.cpu_seconds - before}
        num_taken = planner.num_taken - taken_before
        if num_taken != result["warm"] + result["accepted"]:
            raise RuntimeError(f"the planner has counted {num_taken} new reports, the load generator {result}")
        yield result
        process.stdin.close()
        if process.wait(timeout=START_SECONDS) != 0:
            raise RuntimeError("the load generator did not end well")
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def summarise(result: dict[str, Any]) -> dict[str, Any]:
    """Rates, percentiles and processor time per report of what a generator has measured."""
    latencies_J = result["latencies_J"]
    seconds = [latency for job in latencies_J for latency in job]
    reports = max(result["accepted"], 1)
    plans = [len(job) for job in latencies_J]
    return {
        "reports": result["accepted"],
        "reports_per_second": result["accepted"] / result["seconds"],
        "plans_per_second": len(seconds) / result["seconds"],
        "plans_of_job_min": min(plans),
        "plans_of_job_max": max(plans),
        "plan_p50_seconds": percentile(seconds, 50),
        "plan_p99_seconds": percentile(seconds, 99),
        "job_p50_seconds_min": min((percentile(job, 50) or 0.0) for job in latencies_J),
        "job_p50_seconds_max": max((percentile(job, 50) or 0.0) for job in latencies_J),
        "planner_cpu_milliseconds_per_report": result["planner_cpu_seconds"] * 1e3 / reports,
        "generator_cpu_milliseconds_per_report": result["cpu_seconds"] * 1e3 / reports,
        "planner_cores": result["planner_cpu_seconds"] / result["seconds"],
        "generator_cores": result["cpu_seconds"] / result["seconds"],
    }


def percentile(values: list[float], percent: float) -> float | None:
    """A percentile, None without values."""
    return float(np.percentile(values, percent)) if values else None


def measure_latency(planner: ServedPlanner, scale: Scale) -> list[dict[str, Any]]:
    """One job that reports when its plan has come, and one that reports at a steady rate."""
    rows = []
    for recent_reports in (None, 0):
        for way in ("closed", "open"):
            task = {
                **{"name": "one", "jobs": 1, "size": scale.large, "recent_reports": recent_reports, "way": way},
                **{"reports": scale.reports, "reports_per_second": OPEN_RATE, "warm_reports": HISTORIES},
            }
            with generator(planner, **task) as result:
                rows.append({"way": way, "recent_reports": recent_reports, **summarise(result)})
    return rows


def measure_flood(planner: ServedPlanner, scale: Scale, **task: Any) -> dict[str, Any]:
    """Jobs that report as fast as they can, with probes meanwhile.

    Args:
        planner: what is loaded.
        scale: for how long.
        task: of the generator: `size`, `jobs`, `way` (`stream`, or `calls` of their own), and the reports `in_flight`,
            sent by a job and not yet answered.
    """
    probes = Probes(planner)
    try:
        with generator(planner, name="flood", seconds=scale.seconds, **task) as result:
            seconds = probes.stop()
    finally:
        probes.stop()
    row = {name: task[name] for name in ("jobs", "way")} | {"counts_bytes": task["size"].counts_bytes}
    row |= summarise(result)
    for name, each in seconds.items():
        row |= {f"{name}_p50_seconds": percentile(each, 50), f"{name}_p99_seconds": percentile(each, 99)}
    return row


def measure_memory(scale: Scale) -> dict[str, Any]:
    """An idle planner, and what each session adds."""
    with served_planner() as planner:
        planner.wait_until_serving()
        row: dict[str, Any] = {"idle_bytes": planner.rss_bytes, "has_torch": planner.has_loaded("libtorch")}
        # What the first session leaves behind is the planner's, not the next one's.
        task = {"way": "closed", "reports": HISTORIES, "warm_reports": 0, "size": scale.large}
        with generator(planner, name="first", jobs=1, **task):
            pass
        before = planner.rss_bytes
        with generator(planner, name="kept", jobs=scale.num_sessions, **task):
            grown = planner.rss_bytes - before
        row |= {
            "after_first_bytes": before,
            "sessions": scale.num_sessions,
            "session_bytes": grown / scale.num_sessions,
        }
    return row


def measure_restart(scale: Scale) -> dict[str, Any]:
    """Kills a planner under a job, starts it again on the same port, and waits for the job's next plan."""
    variant = encode_variants(scale.large)[0]
    spec = make_spec(scale.large, name="restarted", recent_reports=None)
    with served_planner() as first:
        first.wait_until_serving()
        port = first.grpc_port
        first.kill()
    planned: list[float] = []

    def ask() -> None:
        planned.append(await_first_plan(f"127.0.0.1:{port}", encode_session_spec(spec), variant))

    asking = threading.Thread(target=ask)
    asking.start()
    with served_planner(grpc_port=port) as second:
        serving_seconds = second.wait_until_serving()
        asking.join(timeout=START_SECONDS)
        return {
            "start_to_listening_seconds": second.start_seconds,
            "listening_to_serving_seconds": serving_seconds,
            "listening_to_plan_seconds": planned[0] - second.listening_seconds,
        }


def await_first_plan(address: str, spec: pb.OpenSessionRequest, variant: bytes) -> float:
    """Reconnects as a leader does, opens a session, reports, and returns when the first plan came."""
    options = [("grpc.initial_reconnect_backoff_ms", 100), ("grpc.max_reconnect_backoff_ms", 100)]
    with grpc.insecure_channel(address, options=options) as channel:
        stub = PlannerServiceStub(channel)
        session_id = stub.OpenSession(spec, timeout=START_SECONDS, wait_for_ready=True).session.session_id
        watch = stub.WatchPlans(pb.WatchPlansRequest(session_id=session_id), timeout=START_SECONDS)
        stub.ReportRouting(
            pb.ReportRoutingRequest.FromString(encode_report_of(session_id, 0, variant)), timeout=START_SECONDS
        )
        next(watch)
        watch.cancel()
        return time.perf_counter()


def measure(scale: Scale) -> dict[str, Any]:
    """Everything, on planners of their own where one load would change the next."""
    results: dict[str, Any] = {"scale": scale._asdict(), "memory": measure_memory(scale)}
    with served_planner() as planner:
        planner.wait_until_serving()
        results["latency"] = measure_latency(planner, scale)
        results["large_flood"] = measure_flood(planner, scale, size=scale.large, jobs=4, way="stream", in_flight=2)
        results["small_flood"] = measure_flood(planner, scale, size=scale.small, jobs=8, way="stream", in_flight=32)
        results["small_calls"] = measure_flood(planner, scale, size=scale.small, jobs=8, way="calls", in_flight=4)
        results["many_jobs"] = measure_flood(
            planner, scale, size=scale.large, jobs=scale.num_jobs, way="stream", in_flight=1
        )
    results["restart"] = measure_restart(scale)
    results["targets"] = check_targets(results)
    return results


def main() -> None:
    """Measures, prints, and writes JSON where asked to."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="tiny jobs for a moment: figures mean nothing")
    parser.add_argument("--json", type=Path, help="write the figures here as well")
    arguments = parser.parse_args()
    results = measure(QUICK if arguments.quick else FULL)
    # Wide enough for every column also where the output goes to a file.
    print_results(Console(width=max(Console().width, 150)), results)
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
