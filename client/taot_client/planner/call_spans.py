"""Spans of the leader's calls, where traces are wanted."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import grpc

from taot_api.tracing import make_tracer, to_metadata
from taot_client.environment import tracing_variables

if TYPE_CHECKING:
    from opentelemetry.trace import SpanContext, Tracer

_MAX_KEPT = 64
"""Reports that a plan may still come of."""


def make_call_spans() -> CallSpans | None:
    """What makes a span for each report, each plan asked for and each plan received; None unless wanted."""
    tracer = make_tracer(tracing_variables(), service="taot-agent")
    return None if tracer is None else CallSpans(tracer)


class CallSpans:
    """Makes the spans. A plan is linked to the report that it was made of."""

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer
        self._reports: OrderedDict[tuple[int, int], SpanContext] = OrderedDict()

    @contextmanager
    def call(self, method: str, request: Any) -> Iterator[list[tuple[str, str]]]:
        """A span around a call, and the metadata that tells the planner of it."""
        from opentelemetry.trace import SpanKind, StatusCode, set_span_in_context  # noqa: PLC0415

        report = getattr(request, "report", request)  # PlanNow holds one, ReportRouting is one
        place = {name: getattr(report, name) for name in ("step", "micro_batch") if hasattr(report, name)}
        with self._tracer.start_as_current_span(
            f"taot {method}",
            kind=SpanKind.CLIENT,
            attributes={f"taot.{name}": value for name, value in place.items()},
            record_exception=False,
            set_status_on_exception=False,
        ) as span:
            if method == "ReportRouting":  # before the call has ended: its plan may come first
                self._reports[place["step"], place["micro_batch"]] = span.get_span_context()
                if len(self._reports) > _MAX_KEPT:
                    self._reports.popitem(last=False)
            try:
                yield to_metadata(set_span_in_context(span))
            except grpc.RpcError as error:
                span.set_status(StatusCode.ERROR, error.code().name)
                raise

    def watch(self, call: Any) -> Any:
        """The same call with a span for each plan that arrives; the watch itself lasts too long to be one."""
        return _TracedWatch(call, self)

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

    def __init__(self, call: Any, spans: CallSpans) -> None:
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
