"""Traces from the agent to the solver, over a real call; and what there is without them."""

from __future__ import annotations

import gzip
import http.server
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from link_samples import WAIT, eventually, report, spec
from opentelemetry import trace
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from planner_client import planner_client
from routing_samples import make_report, make_spec
from running_planner import planner_process, running_planner

from taot_api.tracing import from_metadata, make_tracer, to_metadata, wants_traces
from taot_api.v1 import planner_pb2 as pb
from taot_client.planner.call_spans import CallSpans
from taot_client.planner.planner_link import PlannerLink
from taot_service.plan_traces import PlanTraces

ASKS = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1"}


@pytest.fixture(scope="module")
def provider():
    """The provider of the program, which OpenTelemetry lets be set once in a process."""
    provider = trace.get_tracer_provider()
    if not isinstance(provider, TracerProvider):  # else tests of other files ran between those of this one
        provider = TracerProvider()
        trace.set_tracer_provider(provider)
    return provider


@pytest.fixture
def exporter(provider, monkeypatch):
    for name, value in ASKS.items():
        monkeypatch.setenv(name, value)
    exporter = InMemorySpanExporter()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    yield exporter
    exporter.shutdown()


def test_one_trace_leads_from_the_agent_through_the_solver_to_the_plan(exporter):
    traces = PlanTraces(make_tracer(os.environ, service="taot-planner"))
    with running_planner(traces=traces) as planner:
        link = PlannerLink(planner.address, spec("traced"))
        assert link.start(wait=WAIT) is None
        link.report(report(step=7))
        assert eventually(lambda: link.plan is not None and link.plan.source_step == 7)
        assert link.plan_now(report(step=8), layer=0, deadline=WAIT) is not None
        link.close()
    spans = exporter.get_finished_spans()
    (sent,) = (span for span in spans if span.name == "taot ReportRouting" and span.kind is trace.SpanKind.CLIENT)
    assert dict(sent.attributes) == {"taot.step": 7, "taot.micro_batch": 0}
    inside = [span for span in spans if span.context.trace_id == sent.context.trace_id and span is not sent]
    assert [span.name for span in sorted(inside, key=lambda span: (span.start_time, -span.end_time))] == [
        "taot ReportRouting",
        "taot decode and check",
        "taot queue",
        "taot solve",
        "taot solve layer",
        "taot publish",
    ]
    by_name = {span.name: span for span in inside}
    call, solve = by_name["taot ReportRouting"], by_name["taot solve"]
    assert call.parent.span_id == sent.context.span_id
    assert by_name["taot solve layer"].parent.span_id == solve.context.span_id
    assert {by_name[f"taot {name}"].parent.span_id for name in ("decode and check", "queue", "solve", "publish")} == {
        call.context.span_id
    }
    assert by_name["taot solve layer"].attributes["taot.layer"] == "a"
    for span in inside:
        assert span.start_time <= span.end_time
    received = next(span for span in spans if span.name == "taot plan received")
    assert [each.context.span_id for each in received.links] == [sent.context.span_id]
    asked = [span for span in spans if span.name == "taot PlanNow"]
    assert len({span.context.trace_id for span in asked}) == 1 < len(asked)
    assert sum(span.context.trace_id == asked[0].context.trace_id for span in spans) == 2 + 5


def test_a_plan_that_comes_before_the_answer_to_its_report_is_linked_to_it(exporter, provider):
    spans = CallSpans(provider.get_tracer("test"))
    with spans.call("ReportRouting", pb.ReportRoutingRequest(step=3, micro_batch=1)):
        spans.note_plan(pb.Plan(source_step=3, source_micro_batch=1))
    received, sent = exporter.get_finished_spans()
    assert (received.name, sent.name) == ("taot plan received", "taot ReportRouting")
    assert [each.context.span_id for each in received.links] == [sent.context.span_id]


def test_a_refused_report_is_an_error_on_both_sides_and_the_link_behaves_as_without_traces(exporter):
    traces = PlanTraces(make_tracer(os.environ, service="taot-planner"))
    with running_planner(traces=traces) as planner:
        link = PlannerLink(planner.address, spec("refused"))
        assert link.start(wait=WAIT) is None
        link.report(report(step=-1))
        assert eventually(lambda: link._unsent._errors.get("report_refused"))
        assert link.is_connected
        link.close()
    calls = [span for span in exporter.get_finished_spans() if span.name == "taot ReportRouting"]
    assert {span.kind for span in calls} == {trace.SpanKind.CLIENT, trace.SpanKind.SERVER}
    assert all(span.status.status_code is trace.StatusCode.ERROR for span in calls)


def test_a_trace_context_survives_as_metadata_and_a_broken_one_is_none(provider):
    with provider.get_tracer("test").start_as_current_span("parent") as parent:
        metadata = to_metadata(trace.set_span_in_context(parent))
    assert [key for key, _ in metadata] == ["traceparent"]
    got = trace.get_current_span(from_metadata([*metadata, ("other-bin", b"\x00")])).get_span_context()
    assert (got.trace_id, got.span_id) == (parent.context.trace_id, parent.context.span_id)
    broken = trace.get_current_span(from_metadata([("traceparent", "00-banana")])).get_span_context()
    assert not broken.is_valid


@pytest.mark.parametrize(
    ("variables", "wants"),
    [
        ({}, False),
        ({"OTEL_SERVICE_NAME": "x"}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": ""}, False),
        (ASKS, True),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://127.0.0.1:1"}, True),
        ({"OTEL_TRACES_EXPORTER": "otlp"}, True),
        ({**ASKS, "OTEL_TRACES_EXPORTER": "none"}, False),
        ({**ASKS, "OTEL_SDK_DISABLED": "TRUE"}, False),
    ],
)
def test_only_the_standard_variables_ask_for_traces(variables, wants):
    assert wants_traces(variables) is wants


def test_what_is_not_supported_is_said_and_there_are_no_traces(caplog):
    assert make_tracer({**ASKS, "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, service="x") is None
    assert make_tracer({"OTEL_TRACES_EXPORTER": "zipkin"}, service="x") is None
    assert "only otlp with http/protobuf is supported, got otlp with grpc" in caplog.text
    assert "got zipkin with http/protobuf" in caplog.text


WITHOUT = """
import os, sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "opentelemetry" and (len(sys.argv) < 3 or name.startswith(sys.argv[2])):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Blocked())
import logging
logging.basicConfig()
from link_samples import WAIT, eventually, report, spec
from taot_client.planner.planner_link import PlannerLink
link = PlannerLink(sys.argv[1], spec("without"))
assert link.start(wait=WAIT) is None
link.report(report(step=1))
assert eventually(lambda: link.plan is not None)
link.close()
assert not any(name.startswith("opentelemetry.sdk") for name in sys.modules)
print("planned")
"""


@pytest.mark.parametrize(
    ("variables", "blocked", "said"),
    [
        ({}, "opentelemetry", ""),
        (ASKS, "opentelemetry", "no traces: opentelemetry is missing, pip install 'taot-planner[tracing]'"),
        (ASKS, "opentelemetry.sdk", "no traces: opentelemetry.sdk"),
    ],
)
def test_without_the_extra_the_agent_works_and_says_what_is_missing_where_traces_are_asked_for(
    variables, blocked, said
):
    with running_planner() as planner:
        done = run_python(WITHOUT, planner.address, blocked, **variables)
    assert (done.returncode, done.stdout) == (0, "planned\n"), done.stderr
    assert said in done.stderr
    assert bool(said) == ("no traces" in done.stderr)


def run_python(script: str, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(Path(__file__).parents[1]), *sys.path])
    return subprocess.run(
        [sys.executable, "-c", script, *arguments],
        env={**os.environ, **variables, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


def test_where_nobody_asks_calls_are_left_alone_and_nothing_is_imported():
    done = run_python(
        "import sys\n"
        "from taot_client.planner.call_spans import make_call_spans\n"
        "assert make_call_spans() is None\n"
        "assert not any(name.startswith('opentelemetry') for name in sys.modules)\n"
    )
    assert done.returncode == 0, done.stderr


class Collector(http.server.BaseHTTPRequestHandler):
    """Takes what an OTLP exporter sends."""

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        if self.headers.get("content-encoding") == "gzip":
            body = gzip.decompress(body)
        self.server.requests.append((self.path, ExportTraceServiceRequest.FromString(body)))
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *arguments: object) -> None:
        pass


@pytest.mark.slow
def test_a_planner_sends_its_spans_to_the_endpoint_of_the_environment():
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Collector)
    server.requests = []
    threading.Thread(target=server.serve_forever, daemon=True).start()
    variables = {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{server.server_port}", "no_proxy": "127.0.0.1"}
    try:
        with planner_process(environment=variables) as planner:
            with planner_client(planner.address) as client:
                sample = make_spec()
                client.report_and_wait(client.open(sample), sample, make_report(sample, step=1))
            assert planner.terminate() == 0
    finally:
        server.shutdown()
        server.server_close()
    assert {path for path, _ in server.requests} == {"/v1/traces"}
    resources = [each for _, request in server.requests for each in request.resource_spans]
    names = {each.value.string_value for one in resources for each in one.resource.attributes}
    assert "taot-planner" in names
    spans = [span.name for one in resources for scope in one.scope_spans for span in scope.spans]
    assert spans.count("taot solve layer") == len(sample.layers)


def test_links_that_come_and_go_leave_one_thread_for_their_spans():
    done = run_python(
        "import threading\n"
        "from taot_client.planner.call_spans import make_call_spans\n"
        "assert make_call_spans() is not None\n"
        "before = threading.active_count()\n"
        "for _ in range(5):\n"
        "    assert make_call_spans() is not None\n"
        "assert threading.active_count() == before\n",
        **ASKS,
    )
    assert done.returncode == 0, done.stderr
