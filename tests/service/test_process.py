"""The planner as a process: ports, signals, crashes."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import httpx
import pytest
from link_samples import eventually
from planner_client import CALL_SECONDS, PlannerClient, planner_client, read_plan, refusal
from routing_samples import make_report, make_spec
from running_planner import START_BOUND_SECONDS, PlannerProcess, planner_process, serve_command

import taot_planning
from taot_api.codec import encode_report
from taot_api.v1 import planner_pb2 as pb

pytestmark = pytest.mark.slow


def http_get(planner: PlannerProcess, path: str) -> httpx.Response:
    return httpx.get(f"http://127.0.0.1:{planner.http_port}{path}", timeout=CALL_SECONDS, trust_env=False)


def assert_no_fault(planner: PlannerProcess) -> None:
    for word in ("Traceback", "BlockingIOError", "ERROR", "never awaited", "never retrieved"):
        assert word not in planner.stderr, planner.stderr


def start_long_call(client: PlannerClient):
    """A PlanNow that is in the server and takes a second or more; returns (its future, its spec)."""
    spec = make_spec(num_ranks=64, experts_L=(256,) * 48, top_k=1, slots=32, algorithm="taot-paper")
    session_id = client.open(spec)
    one = make_report(make_spec(num_ranks=64, experts_L=(256,), top_k=1), step=0, num_tokens=64)
    report = make_report(spec, step=1, num_tokens=64, counts_L=one.counts_L * 48)
    call = client.stub.PlanNow.future(pb.PlanNowRequest(report=encode_report(session_id, report)), timeout=CALL_SECONDS)
    # Calls of one connection arrive in order: once this one is answered, the long one is in the server.
    client.open(make_spec())
    assert not call.done()
    return call, spec


def test_ports_are_printed_and_written_to_the_file():
    with planner_process() as planner:
        assert planner.pid == planner.process.pid
        assert 0 < planner.grpc_port != planner.http_port > 0
        assert http_get(planner, "/livez").status_code == 200
        assert http_get(planner, "/readyz").status_code == 200
        assert planner.terminate() == 0
        assert_no_fault(planner)


def test_the_printed_lines_name_the_addresses():
    process = subprocess.Popen(
        serve_command("--grpc-port", "0"), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    watchdog = threading.Timer(START_BOUND_SECONDS, process.kill)
    watchdog.start()
    try:
        assert process.stdout is not None
        lines = [process.stdout.readline(), process.stdout.readline()]
        port = int(lines[0].removeprefix("gRPC on 127.0.0.1:"))
        with socket.create_connection(("127.0.0.1", port), timeout=CALL_SECONDS):
            pass
        url = lines[1].removeprefix("HTTP on ").strip()
        assert httpx.get(f"{url}/livez", timeout=CALL_SECONDS, trust_env=False).status_code == 200
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=CALL_SECONDS) == 0
        assert process.stdout.read() == ""
    finally:
        watchdog.cancel()
        process.kill()
        process.wait()
        process.stdout.close()


@pytest.mark.parametrize("flag", ["--grpc-port", "--http-port"])
def test_a_taken_port_ends_the_process_with_one_clear_line(flag, tmp_path):
    ports_file = tmp_path / "ports.json"
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        flags = {"--grpc-port": "0", "--http-port": "0", flag: str(port), "--ports-file": str(ports_file)}
        result = subprocess.run(
            serve_command(*[word for pair in flags.items() for word in pair]),
            capture_output=True,
            text=True,
            timeout=START_BOUND_SECONDS,
            check=False,
        )
    assert result.returncode == 1
    assert result.stdout == ""
    lines = [line for line in result.stderr.splitlines() if line and " INFO " not in line]
    assert len(lines) == 1, result.stderr
    assert f"cannot listen on 127.0.0.1:{port}: Address already in use" in lines[0]
    assert flag in lines[0]
    assert not ports_file.exists()


def test_a_ports_file_that_cannot_be_written_ends_the_process_with_both_ports_released(tmp_path):
    result = subprocess.run(
        serve_command("--grpc-port", "0", "--ports-file", str(tmp_path / "missing" / "ports.json")),
        capture_output=True,
        text=True,
        timeout=START_BOUND_SECONDS,
        check=False,
    )
    assert (result.returncode, result.stdout) == (1, "")
    assert "No such file or directory" in result.stderr
    assert "Traceback" not in result.stderr


def test_two_planners_never_share_a_port():
    with planner_process() as first:
        command = serve_command("--grpc-port", str(first.grpc_port))
        result = subprocess.run(command, capture_output=True, text=True, timeout=START_BOUND_SECONDS, check=False)
        assert result.returncode == 1
        assert "Address already in use" in result.stderr


def test_a_cold_planner_serves_but_is_not_ready_and_stops_without_finishing_to_compile(tmp_path):
    cold = {"NUMBA_CACHE_DIR": str(tmp_path)}
    with planner_process(environment=cold, is_warm_awaited=False) as planner:
        assert http_get(planner, "/readyz").status_code == 503
        assert http_get(planner, "/livez").status_code == 200
        with planner_client(planner.address) as client:
            client.open(make_spec())
        assert planner.terminate() == 0
        assert_no_fault(planner)
    sources = Path(taot_planning.__file__).parent.rglob("*.py")
    num_kernels = sum(len(re.findall(r"^@(?:inner_|brief_)?kernel$", source.read_text(), re.M)) for source in sources)
    assert len(list(tmp_path.rglob("*.nbi"))) < num_kernels, "it waited for the compiler"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_answers_what_is_in_flight_refuses_what_is_new_and_exits_0(number):
    with planner_process(flags=["--drain-seconds", "60"]) as planner, planner_client(planner.address) as client:
        watched = make_spec()
        watched_id = client.open(watched)
        client.report_and_wait(watched_id, watched, make_report(watched, step=1))
        watch = client.watch(watched_id)
        next(watch)
        call, spec = start_long_call(client)
        planner.signal(number)
        seen = refusal(lambda: next(watch))
        assert (seen.code, seen.info.reason) == (grpc.StatusCode.UNAVAILABLE, "SHUTTING_DOWN")
        with pytest.raises(grpc.RpcError) as caught:
            client.report(watched_id, make_report(watched, step=2))
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        plan = read_plan(call.result(timeout=CALL_SECONDS).plan, spec)
        assert len(plan.guests_L) == len(spec.layers)
        assert planner.wait() == 0
        assert_no_fault(planner)


def test_a_planner_told_so_ends_once_its_last_session_has_and_not_before_its_first():
    flags = ["--exit-when-idle", "0.1", "--lease-seconds", "600"]
    with planner_process(flags=flags) as planner, planner_client(planner.address) as client:
        assert not eventually(lambda: planner.process.poll() is not None, seconds=3), "nobody has connected yet"
        sessions = [client.open(make_spec(group=group)) for group in ("ep0", "ep1")]
        client.stub.CloseSession(pb.CloseSessionRequest(session_id=sessions[0]), timeout=CALL_SECONDS)
        assert not eventually(lambda: planner.process.poll() is not None, seconds=3), "one session is open"
        client.stub.CloseSession(pb.CloseSessionRequest(session_id=sessions[1]), timeout=CALL_SECONDS)
        assert planner.wait() == 0
        assert re.search(r"no session for \d+\.\d s: draining", planner.stderr)
        assert_no_fault(planner)


def test_a_planner_told_so_ends_when_nobody_ever_opens_a_session():
    with planner_process(flags=["--exit-when-unused", "0.1"], is_warm_awaited=False) as planner:
        assert planner.wait() == 0
        assert "warm after" in planner.stderr
        assert_no_fault(planner)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_under_load_loses_no_answer(number):
    """Every call is either answered or refused as unavailable; none is cut off in the middle."""
    with planner_process() as planner:
        is_loaded = threading.Semaphore(0)

        def call_until_refused(number: int) -> grpc.StatusCode:
            spec = make_spec(training_job=f"load-{number}")
            report = make_report(spec, step=1)
            with planner_client(planner.address) as client:
                session_id = client.open(spec)
                try:
                    for _ in range(1_000_000):
                        client.plan_now(session_id, report)
                        is_loaded.release()
                except grpc.RpcError as error:
                    return error.code()  # type: ignore[no-any-return]
            raise AssertionError("the planner never stopped")

        with ThreadPoolExecutor(max_workers=8) as pool:
            callers = [pool.submit(call_until_refused, number) for number in range(8)]
            for _ in range(64):
                assert is_loaded.acquire(timeout=CALL_SECONDS)
            planner.signal(number)
            assert planner.wait() == 0
            codes = {caller.result(timeout=CALL_SECONDS) for caller in callers}
        assert codes == {grpc.StatusCode.UNAVAILABLE}
        assert_no_fault(planner)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_ends_the_process_at_once(number):
    with planner_process(flags=["--drain-seconds", "1000"]) as planner, planner_client(planner.address) as client:
        watched = make_spec()
        watched_id = client.open(watched)
        client.report_and_wait(watched_id, watched, make_report(watched, step=1))
        watch = client.watch(watched_id)
        next(watch)
        call, _ = start_long_call(client)
        planner.signal(number)
        refusal(lambda: next(watch))
        planner.signal(number)
        assert planner.wait() == 128 + number
        with pytest.raises(grpc.RpcError):
            call.result(timeout=CALL_SECONDS)


def test_a_planner_that_was_killed_comes_back_on_its_port_with_an_epoch_of_its_own():
    spec = make_spec()
    with planner_process() as first, planner_client(first.address) as client:
        session_id = client.open(spec)
        old = client.report_and_wait(session_id, spec, make_report(spec, step=1))
        first.kill()
        with pytest.raises(grpc.RpcError) as caught:
            client.report(session_id, make_report(spec, step=2))
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        with planner_process(grpc_port=first.grpc_port) as second:
            assert second.grpc_port == first.grpc_port
            with planner_client(second.address) as again:
                seen = refusal(lambda: again.report(session_id, make_report(spec, step=2)))
                assert seen.info.reason == "SESSION_NOT_FOUND"
                new_id = again.open(spec)
                new = again.report_and_wait(new_id, spec, make_report(spec, step=1))
            assert new.identity.version == 1
            assert new.identity.planner_epoch != old.identity.planner_epoch
            assert new.guests_L[0].tolist() == old.guests_L[0].tolist()
            assert second.terminate() == 0


def test_a_thousand_requests_on_each_front_end_at_once_leave_the_loop_in_order():
    with planner_process() as planner:

        def call_grpc(number: int) -> int:
            spec = make_spec(training_job=f"storm-{number}", experts_L=(8,))
            report = make_report(spec, step=1)
            with planner_client(planner.address) as client:
                session_id = client.open(spec)
                for _ in range(124):
                    client.plan_now(session_id, report)
            return 125

        def call_http(number: int) -> int:
            paths = ("/livez", "/readyz", "/metrics", "/v1/sessions")
            with httpx.Client(
                base_url=f"http://127.0.0.1:{planner.http_port}", timeout=CALL_SECONDS, trust_env=False
            ) as http:
                return sum(http.get(paths[turn % 4]).status_code == 200 for turn in range(125))

        with ThreadPoolExecutor(max_workers=16) as pool:
            answers = [pool.submit(call, number) for number in range(8) for call in (call_grpc, call_http)]
            assert sum(answer.result(timeout=CALL_SECONDS) for answer in answers) == 2000
        assert planner.terminate() == 0
        assert_no_fault(planner)
