"""Connections that are closed or replaced while threads call over them; planners are real, or absent."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import grpc
import pytest
from access_samples import JOB_A
from certificates import Authority
from link_samples import WAIT, eventually, report, spec
from running_planner import running_planner

from taot_api import codec
from taot_api.v1 import planner_pb2 as pb
from taot_client import PlannerAccess
from taot_client.planner.planner_channel import PlannerChannel
from taot_client.planner.planner_link import PlannerLink
from taot_service.config import ServiceConfig

CLOSE_OFTEN = """
import random, sys, threading
from datetime import timedelta
from link_samples import report, spec
from taot_client.planner.planner_link import PlannerLink
from taot_client.planner_access import PlannerAccess
pause = threading.Event()
for attempt in range(100):
    link = PlannerLink("127.0.0.1:1", spec(), PlannerAccess(ca=sys.argv[1], token="a"))
    link.start(wait=timedelta(0))
    link.report(report())
    pause.wait(random.random() * 0.03)
    link.close(says_goodbye=False)
    assert not any(thread.is_alive() for thread in link._threads)
print("closed")
"""


def test_a_link_that_is_closed_at_any_moment_does_not_end_the_process(tmp_path):
    path = os.pathsep.join([str(Path(__file__).parents[1]), *sys.path])
    # Many authorities, as on real machines: to read them takes as long as the race needs.
    bundle = tmp_path / "bundle.crt"
    authority = Authority()
    authority.write(tmp_path)
    bundle.write_bytes((tmp_path / "ca.crt").read_bytes() * 100)
    done = subprocess.run(
        [sys.executable, "-c", CLOSE_OFTEN, str(bundle)],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "closed\n"), done.stderr[-2000:]
    assert "Traceback" not in done.stderr


@pytest.fixture
def folder(tmp_path):
    authority = Authority()
    authority.write(tmp_path)
    authority.issue("planner").write(tmp_path, "server")
    return tmp_path


def test_calls_in_flight_survive_that_certificates_change(folder):
    config = ServiceConfig(tls_cert=folder / "server.crt", tls_key=folder / "server.key")
    authorities = (folder / "ca.crt").read_bytes()
    has_ended = threading.Event()
    failures: list[BaseException] = []
    calls = [0, 0]
    with running_planner(config, is_warm_awaited=False) as planner:
        channel = PlannerChannel(planner.address, PlannerAccess(ca=folder / "ca.crt", token=JOB_A))
        session = channel.stub.OpenSession(codec.encode_session_spec(spec()), timeout=20).session

        def call(index: int) -> None:
            try:
                while not has_ended.is_set():
                    request = codec.encode_report(session.session_id, report(calls[index]))
                    channel.stub.ReportRouting(request, timeout=20)
                    calls[index] += 1
            except BaseException as error:  # noqa: BLE001 - told below
                failures.append(error)

        threads = [threading.Thread(target=call, args=(index,)) for index in range(2)]
        for thread in threads:
            thread.start()
        for rotation in range(1, 21):
            (folder / "ca.crt").write_bytes(authorities * (1 + rotation % 2))
            before = calls[0]
            channel.refresh()
            assert eventually(lambda before=before: calls[0] > before + 1 or failures)
        has_ended.set()
        for thread in threads:
            thread.join(20)
        assert failures == []
        channel.close()
        with pytest.raises(grpc.RpcError) as caught:
            channel.stub.CloseSession(pb.CloseSessionRequest(session_id=session.session_id), timeout=1)
        assert caught.value.code() is grpc.StatusCode.CANCELLED


def test_a_report_that_cannot_be_sent_is_dropped_and_later_ones_are_sent(caplog):
    with running_planner(is_warm_awaited=False) as planner:
        link = PlannerLink(planner.address, spec("broken"))
        assert link.start(wait=WAIT) is None
        link.report(SimpleNamespace(step=1))  # nothing that can be sent
        link.report(SimpleNamespace(step=2))
        link.report(report(3))
        assert eventually(lambda: link.plan is not None and link.plan.source_step == 3, seconds=200)
        link.close()
    assert caplog.text.count("was dropped") == 1
