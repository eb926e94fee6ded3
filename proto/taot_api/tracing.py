"""Traces of OpenTelemetry from the agent to the solver: whether they are wanted, and how they travel with calls.

Nothing of OpenTelemetry is imported unless its standard variables ask for traces. Agents and planners each keep the
tracer they get here, or None, which is all that they look at where there are no traces.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import Tracer

logger = logging.getLogger(__name__)

Metadata: TypeAlias = Sequence[tuple[str, str | bytes]]

VARIABLE_PREFIX = "OTEL_"
"""How the variables begin that `make_tracer` looks at."""

_ASKS = ("OTEL_TRACES_EXPORTER", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
_PROTOCOL = "http/protobuf"


def wants_traces(environment: Mapping[str, str]) -> bool:
    """Whether the standard variables ask for traces."""
    if environment.get("OTEL_SDK_DISABLED", "").lower() == "true" or environment.get("OTEL_TRACES_EXPORTER") == "none":
        return False
    return any(environment.get(name) for name in _ASKS)


def make_tracer(environment: Mapping[str, str], *, service: str) -> Tracer | None:
    """A tracer if the variables ask for traces, or None, which costs nothing.

    Where the program has set a tracer provider of its own, spans go there. Otherwise they go to the OTLP endpoint of
    the variables, over HTTP, from a thread of the SDK. What is missing or unsupported is logged; nothing is raised.

    Args:
        environment: the variables of the process.
        service: the name of the service in traces, unless OTEL_SERVICE_NAME gives one.
    """
    if not wants_traces(environment):
        return None
    exporter = environment.get("OTEL_TRACES_EXPORTER") or "otlp"
    protocol = next((environment[name] for name in _PROTOCOLS if environment.get(name)), _PROTOCOL)
    if (exporter, protocol) != ("otlp", _PROTOCOL):
        logger.warning("no traces: only otlp with %s is supported, got %s with %s", _PROTOCOL, exporter, protocol)
        return None
    try:
        from opentelemetry import trace  # noqa: PLC0415 - the extra is optional

        provider = trace.get_tracer_provider()
        if isinstance(provider, trace.ProxyTracerProvider):  # nobody has set one
            asked = {(name, value) for name, value in environment.items() if name.startswith(VARIABLE_PREFIX)}
            provider = _provider_for(frozenset(asked), service)
        return provider.get_tracer("taot")
    except ModuleNotFoundError as error:
        logger.warning("no traces: %s is missing, pip install 'taot-planner[tracing]'", error.name)
    except ValueError as error:
        logger.warning("no traces: a variable that begins with %s is wrong: %s", VARIABLE_PREFIX, error)
    return None


@cache
def _provider_for(variables: frozenset[tuple[str, str]], service: str) -> TracerProvider:
    """A provider of our own: a library leaves the one of the program alone.

    One for the process: each has a thread, which lives until the process ends.
    """
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter  # noqa: PLC0415
    from opentelemetry.sdk.resources import SERVICE_NAME, Resource  # noqa: PLC0415
    from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415
    from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415

    name = {} if dict(variables).get("OTEL_SERVICE_NAME") else {SERVICE_NAME: service}
    provider = TracerProvider(resource=Resource.create(name))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    logger.info("traces go to the OTLP endpoint of the environment")
    return provider


def to_metadata(context: Context) -> list[tuple[str, str]]:
    """The W3C trace context of a call, as metadata."""
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator  # noqa: PLC0415

    carrier: dict[str, str] = {}
    TraceContextTextMapPropagator().inject(carrier, context)
    return list(carrier.items())


def from_metadata(metadata: Metadata) -> Context:
    """The trace context that a call came with; an empty one where there is none or it is broken."""
    from opentelemetry.context import Context as Empty  # noqa: PLC0415
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator  # noqa: PLC0415

    carrier = {key: value for key, value in metadata if isinstance(value, str)}
    return TraceContextTextMapPropagator().extract(carrier, Empty())
