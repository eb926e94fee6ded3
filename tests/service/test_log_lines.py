"""What becomes of log records: readable, machine-readable, and never more than one line that looks like one."""

from __future__ import annotations

import json
import logging
import re
import socket
import subprocess

import grpc
import pytest
from planner_client import CALL_SECONDS, planner_client
from routing_samples import make_report, make_spec
from running_planner import START_BOUND_SECONDS, planner_process, serve_command

from taot_api.v1 import planner_pb2 as pb
from taot_service.log_lines import JsonLines, TextLines

FORGED = "x\n2026-01-01 00:00:00,000 ERROR taot_service.planner: forged\r\x1b[2J\u2028\u202e\udc80"
RECORD_START = r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} [A-Z]+ "


def record(message: str, *arguments: object, error: BaseException | None = None, **extra: object) -> logging.LogRecord:
    exc_info = (type(error), error, error.__traceback__) if error is not None else None
    made = logging.LogRecord("taot_service.sample", logging.WARNING, __file__, 1, message, arguments, exc_info)
    made.__dict__.update(extra)
    return made


def raised(message: str) -> BaseException:
    try:
        raise ValueError(message)
    except ValueError as error:
        return error


def test_text_stays_on_one_line_whatever_it_holds():
    line = TextLines().format(record("job %s", FORGED))
    assert re.match(RECORD_START + "taot_service.sample: job x", line)
    assert line.isprintable()
    assert r"x\n2026-01-01" in line


def test_a_traceback_cannot_pass_for_records():
    first, *others = TextLines().format(record("failed", error=raised(FORGED))).split("\n")
    assert re.match(RECORD_START, first)
    assert others[0] == "  Traceback (most recent call last):"
    assert any("forged" in line for line in others)
    for line in others:
        assert line.startswith("  ")
        assert line.isprintable()


def test_ordinary_text_is_left_as_it_is():
    assert TextLines().format(record("group %s: größer, 100 %%", "ep0")).endswith(": group ep0: größer, 100 %")


def test_json_is_one_object_a_line_with_the_fields_of_the_record():
    text = JsonLines().format(record("job %s", FORGED, error=raised("no"), session_id="a", step=3, path=ValueError))
    assert text.isprintable()
    line = json.loads(text)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", line.pop("time"))
    assert line.pop("exception").endswith("ValueError: no")
    assert line == {
        "level": "warning",
        "logger": "taot_service.sample",
        "message": f"job {FORGED}",
        "session_id": "a",
        "step": 3,
        "path": "<class 'ValueError'>",
    }


def test_fields_cannot_pass_for_what_every_line_has():
    line = json.loads(JsonLines().format(record("right", level="debug", time="never", logger="other")))
    assert (line["level"], line["logger"], line["message"]) == ("warning", "taot_service.sample", "right")
    assert line["time"] != "never"


@pytest.mark.slow
def test_a_planner_that_logs_json_writes_nothing_else(tmp_path):
    ports_file = tmp_path / "ports.json"
    flags = ["--grpc-port", "0", "--ports-file", str(ports_file), "--log-format", "json", "--exit-when-idle", "0"]
    process = subprocess.Popen(serve_command(*flags), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        lines = []
        while not lines or "HTTP on" not in lines[-1]["message"]:
            lines.append(json.loads(process.stderr.readline()))
        ports = json.loads(ports_file.read_text())
        with socket.create_connection(("127.0.0.1", ports["http_port"]), timeout=CALL_SECONDS) as connection:
            connection.sendall(b"no HTTP\r\n\r\n")
            assert connection.recv(1000)
        with planner_client(f"127.0.0.1:{ports['grpc_port']}") as client:
            spec = make_spec(client_release=FORGED.replace("\udc80", ""))
            session_id = client.open(spec)
            client.report_and_wait(session_id, spec, make_report(spec, step=1))
            client.stub.CloseSession(pb.CloseSessionRequest(session_id=session_id), timeout=CALL_SECONDS)
        stdout, stderr = process.communicate(timeout=START_BOUND_SECONDS)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 0
    assert stdout == ""
    lines += [json.loads(line) for line in stderr.splitlines()]
    assert all({"time", "level", "logger", "message"} <= line.keys() for line in lines)
    assert not [line for line in lines if line["level"] != "info"], "strangers fill no log"
    about = [line for line in lines if "session_id" in line]
    assert [(line["session_id"], line["training_job"], line["group"]) for line in about] == [
        (session_id, spec.training_job, spec.group)
    ] * 2
    assert {"exit_when_idle", "log_format"} <= next(line["settings"] for line in lines if "settings" in line).keys()


@pytest.mark.slow
def test_the_level_says_what_is_left_out():
    with planner_process(flags=["--log-level", "warning"]) as planner:
        with planner_client(planner.address) as client:
            client.open(make_spec())
        assert planner.terminate() == 0
        assert planner.stderr == ""


@pytest.mark.slow
def test_text_from_requests_cannot_forge_lines_and_nothing_is_said_per_report():
    with planner_process() as planner:
        with planner_client(planner.address) as client:
            spec = make_spec(client_release="1\n2026-01-01 00:00:00,000 ERROR forged")
            session_id = client.open(spec)
            said = planner.stderr
            for step in range(20):
                client.report(session_id, make_report(spec, step=step))
            with pytest.raises(grpc.RpcError):
                client.report("x\nERROR forged", make_report(spec, step=1))
        assert planner.stderr == said
        assert planner.terminate() == 0
        assert all(re.match(RECORD_START.replace("[A-Z]+", "INFO"), line) for line in planner.stderr.splitlines())
