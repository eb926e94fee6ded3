"""Spans of the planner, where traces are wanted: a call, and what became of the report in it.

Times of planning are taken down anyway, so spans are made of them afterwards and the solver threads know nothing of
traces. Layers are shown one behind the other: their durations are measured, the pauses between them are not.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import grpc
import grpc.aio

from taot_api.contract_error import ContractError
from taot_api.routing_report import RoutingReport
from taot_api.tracing import from_metadata
from taot_service.planning_work import FinishedWork, SolvedPlan

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import Tracer

_MAX_KEPT = 4096
"""Reports whose plan may still come."""

_TRACED = ("ReportRouting", "PlanNow")
_NANOSECONDS = 1_000_000_000


class PlanTraces:
    """Makes the spans. Lives on the planner's event loop."""

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer
        self._reports: OrderedDict[tuple[str, int, int], Context] = OrderedDict()

    def interceptor(self) -> grpc.aio.ServerInterceptor:
        """Makes a span for each report and each plan asked for."""
        return _CallSpans(self._tracer)

    @contextmanager
    def report_of_stream(self, trace_context: Mapping[str, str]) -> Iterator[None]:
        """A span for a report that has no call of its own, child of the span that its sender names."""
        from opentelemetry.trace import SpanKind, StatusCode  # noqa: PLC0415

        with self._tracer.start_as_current_span(
            "taot ReportRouting",
            from_metadata(tuple(trace_context.items())),
            kind=SpanKind.SERVER,
            record_exception=False,
            set_status_on_exception=False,
        ) as span:
            try:
                yield
            except ContractError as error:
                span.set_status(StatusCode.ERROR, str(error))
                raise

    def note_checked(self, session_id: str, report: RoutingReport) -> Context:
        """Makes the span of decoding and checking, which are done; returns where the spans of the plan belong."""
        from opentelemetry import context, trace  # noqa: PLC0415 - installed, since there is a tracer

        parent = context.get_current()
        call = trace.get_current_span(parent)
        call.set_attributes(
            {"taot.session_id": session_id, "taot.step": report.step, "taot.micro_batch": report.micro_batch}
        )
        # A call that is not sampled does not know when it began.
        self._tracer.start_span("taot decode and check", parent, start_time=getattr(call, "start_time", None)).end()
        return parent

    def keep_report(self, session_id: str, report: RoutingReport) -> None:
        """As `note_checked`, for a report whose plan follows after the call."""
        self._reports[session_id, report.step, report.micro_batch] = self.note_checked(session_id, report)
        if len(self._reports) > _MAX_KEPT:
            self._reports.popitem(last=False)

    def note_plan(self, finished: FinishedWork, *, version: int) -> None:
        """Makes the spans of a plan that watchers can have from now on."""
        report = finished.work.report
        parent = self._reports.get((finished.work.session_id, report.step, report.micro_batch))
        if parent is not None:
            self.note_answer(finished, parent, version=version)

    def note_answer(self, finished: FinishedWork, parent: Context, *, version: int) -> None:
        """Makes the spans of a plan whose report came in a call that is known."""
        assert isinstance(finished.result, SolvedPlan)
        at = _Clock()
        now = time.monotonic()
        self._span("taot queue", parent, at(finished.work.arrival_seconds), at(finished.started_seconds))
        solve = self._span("taot solve", parent, at(finished.started_seconds), at(finished.solved_seconds))
        begin = finished.started_seconds
        for layer, stats in zip(finished.work.layers, finished.result.layer_stats_L, strict=True):
            end = begin + stats.planning_seconds
            self._span("taot solve layer", solve, at(begin), at(end), {"taot.layer": layer.name})
            begin = end
        self._span("taot publish", parent, at(finished.solved_seconds), at(now), {"taot.version": version})

    def _span(
        self, name: str, parent: Context, start: int, end: int, attributes: dict[str, Any] | None = None
    ) -> Context:
        from opentelemetry.trace import set_span_in_context  # noqa: PLC0415

        span = self._tracer.start_span(name, parent, attributes=attributes, start_time=start)
        span.end(end)
        return set_span_in_context(span, parent)


class _Clock:
    """Turns times of the sessions' clock into nanoseconds since 1970, as spans have them."""

    def __init__(self) -> None:
        self._offset = time.time_ns() - time.monotonic_ns()

    def __call__(self, monotonic_seconds: float) -> int:
        return round(monotonic_seconds * _NANOSECONDS) + self._offset


class _CallSpans(grpc.aio.ServerInterceptor):
    """A span around each call of a few methods, child of the span that the caller names in its metadata."""

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer

    async def intercept_service(
        self, continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]], details: grpc.HandlerCallDetails
    ) -> Any:
        """Wraps the handler of the call."""
        handler = await continuation(details)
        method = str(details.method).rsplit("/", 1)[-1]
        if handler is None or method not in _TRACED:
            return handler
        answer = handler.stream_unary  # which reads its one request itself, see call_guard.py

        async def traced(requests: Any, context: Any) -> Any:
            from opentelemetry.trace import SpanKind, StatusCode  # noqa: PLC0415

            parent = from_metadata(context.invocation_metadata() or ())
            # A refusal ends the call by an exception of gRPC's, which says nothing in a trace that the status does not.
            with self._tracer.start_as_current_span(
                f"taot {method}", parent, kind=SpanKind.SERVER, record_exception=False, set_status_on_exception=False
            ) as span:
                try:
                    return await answer(requests, context)
                except BaseException:
                    span.set_status(StatusCode.ERROR, str(context.details() or "") or None)
                    raise

        return grpc.stream_unary_rpc_method_handler(
            traced,
            request_deserializer=handler.request_deserializer,
            response_serializer=handler.response_serializer,
        )
