"""Spans of the leader's calls, where traces are wanted."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import grpc

from taot_api.tracing import make_tracer, to_metadata
from taot_client.environment import tracing_variables
from taot_client.planner.call_metadata import with_metadata

if TYPE_CHECKING:
    from opentelemetry.trace import SpanContext, Tracer

_MAX_KEPT = 64
"""Reports that a plan may still come of."""


def span_interceptors() -> list[_Spans]:
    """What makes a span for each report, each plan asked for and each plan received; nothing unless wanted."""
    tracer = make_tracer(tracing_variables(), service="taot-agent")
    return [] if tracer is None else [_Spans(tracer)]


class _Spans(grpc.UnaryUnaryClientInterceptor, grpc.UnaryStreamClientInterceptor):
    """Makes the spans. A plan is linked to the report that it was made of."""

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer
        self._reports: OrderedDict[tuple[int, int], SpanContext] = OrderedDict()

    def intercept_unary_unary(self, continuation: Any, details: Any, request: Any) -> Any:
        """A span for a call."""
        from opentelemetry.trace import SpanKind, StatusCode, set_span_in_context  # noqa: PLC0415

        method = _method_of(details)
        report = getattr(request, "report", request)  # PlanNow holds one, ReportRouting is one
        place = {name: getattr(report, name) for name in ("step", "micro_batch") if hasattr(report, name)}
        attributes = {f"taot.{name}": value for name, value in place.items()}
        with self._tracer.start_as_current_span(f"taot {method}", kind=SpanKind.CLIENT, attributes=attributes) as span:
            outcome = continuation(with_metadata(details, to_metadata(set_span_in_context(span))), request)
            if outcome.code() is not grpc.StatusCode.OK:
                span.set_status(StatusCode.ERROR, outcome.code().name)
            elif method == "ReportRouting":
                self._reports[place["step"], place["micro_batch"]] = span.get_span_context()
                if len(self._reports) > _MAX_KEPT:
                    self._reports.popitem(last=False)
        return outcome

    def intercept_unary_stream(self, continuation: Any, details: Any, request: Any) -> Any:
        """A span for each plan that arrives; the watch itself lasts too long to be one."""
        return _TracedWatch(continuation(details, request), self)

    def note_plan(self, plan: Any) -> None:
        """A span for a plan that has arrived."""
        from opentelemetry.trace import Link  # noqa: PLC0415

        made_of = self._reports.get((plan.source_step, plan.source_micro_batch))
        self._tracer.start_span(
            "taot plan received",
            attributes={"taot.version": plan.identity.version, "taot.step": plan.source_step},
            links=[Link(made_of)] if made_of is not None else [],
        ).end()


class _TracedWatch:
    """A call that streams plans; all but reading it is the call's own."""

    def __init__(self, call: Any, spans: _Spans) -> None:
        self._call = call
        self._spans = spans

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        response = next(self._call)
        self._spans.note_plan(response.plan)
        return response

    def __getattr__(self, name: str) -> Any:
        return getattr(self._call, name)


def _method_of(details: Any) -> str:
    method = details.method.decode() if isinstance(details.method, bytes) else details.method
    return str(method).rsplit("/", 1)[-1]
