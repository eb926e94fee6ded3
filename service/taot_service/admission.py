"""What this planner has room for: sessions, calls and watches at a time. Pure.

Where waiting helps, the refusal says for how long.
"""

from __future__ import annotations

from collections.abc import Sequence

from taot_api.contract_error import ContractError, Reason
from taot_api.session_spec import LayerSpec, SessionSpec
from taot_service.config import ServiceConfig
from taot_service.held_memory import HeldMemory
from taot_service.planning_work import Purpose
from taot_service.work_queue import WorkQueue

KEPT_PLANS = 4
"""Plans that GetPlan can still return per session."""

SESSION_RETRY_SECONDS = 10.0
"""When to look whether another session has ended."""

CALL_RETRY_SECONDS = 0.5
"""When to look whether calls have been answered."""


def held_bytes(spec: SessionSpec) -> int:
    """Memory that a session may need, from the sizes it declares.

    The counts of two reports (one waits, one is planned), recent tokens, the plans that are kept, and the account of
    the newest; all in int64. Not counted: some 100 KiB of history, which does not depend on sizes.
    """
    num_ranks, num_slots = spec.topology.num_ranks, spec.topology.max_slots
    num_experts = sum(layer.num_experts for layer in spec.layers)
    counts = 2 * num_ranks * num_experts
    recent = spec.effective_recent_reports * num_experts
    plans = (KEPT_PLANS + 3) * len(spec.layers) * num_ranks * max(num_slots, 1)
    topology = num_ranks * (num_ranks if spec.topology.cost_matrix_milli is not None else len(spec.topology.levels))
    return 8 * (counts + recent + plans + num_experts + topology)


def caller_bytes(spec: SessionSpec, layers: Sequence[LayerSpec]) -> int:
    """Memory that a PlanNow call may need until it is answered: its counts, and guests with token quotas, in int64.

    Not counted: the answer as a message, which gRPC holds until it is sent.
    """
    num_ranks, num_slots = spec.topology.num_ranks, spec.topology.max_slots
    counts = num_ranks * sum(layer.num_experts for layer in layers)
    plan = len(layers) * num_ranks * num_slots * (num_ranks + 1)
    return 8 * (counts + plan)


def check_room(
    spec: SessionSpec, others: Sequence[SessionSpec], limits: ServiceConfig, held: HeldMemory, *, freed_bytes: int = 0
) -> None:
    """Checks that one more session fits beside the others.

    Args:
        spec: the session.
        others: those that stay open.
        limits: what the planner may hold.
        held: what sessions and callers hold by now.
        freed_bytes: what a session of the same job holds that is to be replaced.

    Raises:
        ContractError: LIMIT_EXCEEDED, with the flag that raises the limit; with advice to retry where sessions that
            end make room.
    """
    num_of_job = sum(other.training_job == spec.training_job for other in others)
    wanted_bytes = held_bytes(spec)
    more_bytes = wanted_bytes - freed_bytes
    too_large = wanted_bytes > min(limits.max_held_bytes, limits.max_held_bytes_per_job)
    for got, limit, flag, what in (
        (len(others) + 1, limits.max_sessions, "--max-sessions", "sessions"),
        (num_of_job + 1, limits.max_sessions_per_job, "--max-sessions-per-job", "sessions of one training job"),
        *_memory_limits(spec.training_job, more_bytes, limits, held),
    ):
        if got > limit:
            raise ContractError(
                Reason.LIMIT_EXCEEDED,
                f"this planner holds at most {limit} {what}, this would be {got}: start it with a larger {flag}, start"
                " another planner, or wait for sessions to end",
                metadata={"limit": str(limit), "got": str(got), "flag": flag},
                retry_seconds=None if too_large else SESSION_RETRY_SECONDS,
            )


def check_caller_room(spec: SessionSpec, wanted_bytes: int, limits: ServiceConfig, held: HeldMemory) -> None:
    """Checks that one more PlanNow call of a session fits beside what is held.

    Raises:
        ContractError: OVERLOADED, with advice to retry; LIMIT_EXCEEDED for a call that no waiting makes room for.
    """
    for got, limit, flag, what in _memory_limits(spec.training_job, wanted_bytes, limits, held):
        if got > limit:
            raise ContractError(
                Reason.LIMIT_EXCEEDED if wanted_bytes > limit else Reason.OVERLOADED,
                f"this planner holds at most {limit} {what}, with this call it would be {got}: go on without and try"
                f" again later, or start it with a larger {flag}",
                metadata={"limit": str(limit), "got": str(got), "flag": flag},
                retry_seconds=None if wanted_bytes > limit else CALL_RETRY_SECONDS,
            )


def _memory_limits(
    training_job: str, more_bytes: int, limits: ServiceConfig, held: HeldMemory
) -> tuple[tuple[int, int, str, str], ...]:
    """What a job and all jobs would hold with so much more, the limits, their flags and what it is."""
    return (
        (
            held.job_bytes(training_job) + more_bytes,
            limits.max_held_bytes_per_job,
            "--max-held-bytes-per-job",
            "bytes of counts and plans for one training job",
        ),
        (held.total_bytes + more_bytes, limits.max_held_bytes, "--max-held-bytes", "bytes of counts and plans in all"),
    )


def check_calls(got: int, limit: int, *, flag: str, what: str) -> None:
    """Checks that one more call, the `got`th, may go on.

    Raises:
        ContractError: OVERLOADED, with advice to retry.
    """
    if got > limit:
        raise ContractError(
            Reason.OVERLOADED,
            f"this planner has at most {limit} {what} at a time: go on without and try again later, or start it with a"
            f" larger {flag}",
            metadata={"limit": str(limit), "flag": flag},
            retry_seconds=CALL_RETRY_SECONDS,
        )


def check_waiting_plans(queue: WorkQueue, session_id: str, config: ServiceConfig) -> None:
    """Checks that one more PlanNow call of a session may wait.

    Raises:
        ContractError: OVERLOADED, with advice to retry.
    """
    of_session = queue.num_waiting(Purpose.CALLER, session_id=session_id) + 1
    limit, flag = config.max_waiting_plans_per_session, "--max-waiting-plans-per-session"
    check_calls(of_session, limit, flag=flag, what="waiting PlanNow calls of a session")
    in_all = queue.num_waiting(Purpose.CALLER) + 1
    check_calls(in_all, config.max_waiting_plans, flag="--max-waiting-plans", what="waiting PlanNow calls")
