"""Makes a plan over the wire with whatever grpcio and protobuf this environment has; run by run.sh.

python one_call_each.py PYTHON_OF_THE_PLANNER
"""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import google.protobuf
import grpc
import numpy as np

from taot_api import LayerSpec, RoutingReport, SessionSpec, codec
from taot_api.v1 import planner_pb2 as pb
from taot_api.v1.planner_pb2_grpc import PlannerServiceStub
from taot_planning import two_level_topology

BOUND_SECONDS = 300
"""The planner of a new environment compiles its kernels first."""


def call(address: str) -> None:
    """Opens a session, reports, and compares the plan that comes with the one asked for."""
    layers = (LayerSpec(name="a", top_k=1, expert_size_bytes=100, home_E=np.arange(8) // 2),)
    topology = two_level_topology(num_ranks=4, ranks_per_node=2, slots=2, inter_cost=3)
    spec = SessionSpec(training_job="versions", group="ep0", incarnation=1, topology=topology, layers=layers)
    counts_RE = np.full((4, 8), 2)
    counts_RE[:, 0] = 50
    report = RoutingReport(step=0, micro_batch=0, valid_tokens_R=counts_RE.sum(axis=1), counts_L=(counts_RE,))
    with grpc.insecure_channel(address, options=[("grpc.enable_http_proxy", 0)]) as channel:
        stub = PlannerServiceStub(channel)
        request = codec.encode_session_spec(spec)
        session_id = stub.OpenSession(request, timeout=BOUND_SECONDS, wait_for_ready=True).session.session_id
        encoded = codec.encode_report(session_id, report)
        now = stub.PlanNow(pb.PlanNowRequest(report=encoded), timeout=BOUND_SECONDS).plan
        stub.ReportRouting(encoded, timeout=BOUND_SECONDS)
        ahead = next(stub.WatchPlans(pb.WatchPlansRequest(session_id=session_id), timeout=BOUND_SECONDS)).plan
        streamed = pb.StreamReportsRequest(report=codec.encode_report(session_id, dataclasses.replace(report, step=1)))
        *_, answer = stub.StreamReports(iter([streamed, streamed]), timeout=BOUND_SECONDS)
        assert (answer.answered_count, len(answer.refused_reports)) == (2, 0), answer
        plans = [codec.decode_plan(plan, num_ranks=4, num_slots=2) for plan in (now, ahead)]
        assert all((plan.guests_L[0] == 0).any() for plan in plans), "the hot expert has no guest"
        missing = stub.GetPlan.future(pb.GetPlanRequest(session_id="nobody"), timeout=BOUND_SECONDS)
        assert missing.code() is grpc.StatusCode.NOT_FOUND


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        ports = Path(folder, "ports.json")
        flags = ["--grpc-port", "0", "--http-port", "0", "--ports-file", str(ports)]
        planner = subprocess.Popen([sys.argv[1], "-m", "taot_cli", "serve", *flags], stdout=subprocess.PIPE, text=True)
        watchdog = threading.Timer(BOUND_SECONDS, planner.kill)
        watchdog.start()
        try:
            assert planner.stdout is not None
            lines = planner.stdout.readline() + planner.stdout.readline()
            assert "HTTP on" in lines, "the planner did not start"
            call(f"127.0.0.1:{json.loads(ports.read_text())['grpc_port']}")
        finally:
            watchdog.cancel()
            planner.kill()
            planner.wait()
    print(f"client with grpcio {grpc.__version__}, protobuf {google.protobuf.__version__}: planned by {sys.argv[1]}")


if __name__ == "__main__":
    main()
