"""Lets calls with a known token in, and tells the servicer what they may use."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextvars import ContextVar
from typing import Any, TypeAlias

import grpc
import grpc.aio

from taot_api.contract_error import ContractError, Reason
from taot_service.access import Access, unauthenticated
from taot_service.refusal import refusal_of
from taot_service.tokens import Grant

Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"
Caller: TypeAlias = "frozenset[str] | str"
"""Training jobs, or an address."""

OPEN_PREFIX = "/grpc.health.v1.Health/"
"""What needs no token: probes have none, and learn no more than that the planner serves."""

_CALLER: ContextVar[Grant | None] = ContextVar("taot_caller", default=None)


class GrpcGate(grpc.aio.ServerInterceptor):
    """Refuses calls without a known token before anything of their request is read."""

    def __init__(self, access: Access, *, on_refusal: Callable[[Reason], None]) -> None:
        self._access, self._on_refusal = access, on_refusal

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler | None:
        """Called by gRPC for each call, in the task that then handles it."""
        method = str(handler_call_details.method)
        if not self._access.needs_token or method.startswith(OPEN_PREFIX):
            return await continuation(handler_call_details)
        authorization = _authorization(handler_call_details.invocation_metadata)
        grant = self._access.find(authorization)
        if grant is None:
            return self._refuse(unauthenticated(has_token=authorization is not None), method)
        if not grant.jobs:
            message = "the token of this call is not for training jobs: use that of a job"
            return self._refuse(ContractError(Reason.PERMISSION_DENIED, message), method)
        _CALLER.set(grant)
        return await continuation(handler_call_details)

    def _refuse(self, error: ContractError, method: str) -> Handler:
        # A stream that nobody reads, whatever the method is: not even the bytes of the request are taken.
        async def refuse(requests: AsyncIterator[bytes], context: grpc.aio.ServicerContext[bytes, bytes]) -> bytes:
            del requests
            self._on_refusal(error.reason)
            self._access.note_failure(
                peer_host(context), f"a call of {ascii(method[:100])}", now_seconds=time.monotonic()
            )
            await context.abort(*refusal_of(error))

        return grpc.stream_unary_rpc_method_handler(refuse)


class CallerJobs:
    """Which training jobs the caller at hand may use."""

    def __init__(self, access: Access) -> None:
        self._access = access

    def may_use(self, training_job: str) -> bool:
        """Whether the caller may use sessions of a job; a caller who came past the gate may use none."""
        if not self._access.needs_token:
            return True
        grant = _CALLER.get()
        return grant is not None and grant.has_job(training_job)

    def caller_of(self, context: grpc.aio.ServicerContext[Any, Any]) -> Caller:
        """Whom a call counts for: the jobs of its token, or where none is needed the address it comes from."""
        grant = _CALLER.get()
        return peer_host(context) if grant is None else grant.jobs

    def renew(self) -> None:
        """Looks up again what the caller of a call that goes on and on may use by now.

        Raises:
            ContractError: UNAUTHENTICATED, when the token has been withdrawn.
        """
        grant = _CALLER.get()
        if grant is None or self._access.is_current(grant):
            return
        renewed = self._access.find_digest(grant.digest)
        if renewed is None:
            raise unauthenticated(has_token=True)
        _CALLER.set(renewed)

    def check(self, training_job: str) -> None:
        """Checks a caller who wants to open a session, whether or not the job has any.

        Raises:
            ContractError: PERMISSION_DENIED.
        """
        if not self.may_use(training_job):
            raise ContractError(
                Reason.PERMISSION_DENIED,
                f"the token of this call is not for job {training_job[:128]!r}: use the token of that job, or have"
                " the job granted to it",
                field="training_job",
                metadata={"training_job": training_job[:128]},
            )


def peer_host(context: grpc.aio.ServicerContext[Any, Any]) -> str:
    """Where a call comes from, without the port."""
    return str(context.peer()).rsplit(":", 1)[0]


def _authorization(metadata: Any) -> str | None:
    for key, value in metadata or ():
        if key == "authorization":
            return value.decode("latin-1") if isinstance(value, bytes) else str(value)
    return None
