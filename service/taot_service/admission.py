"""What this planner has room for: sessions, calls and watches at a time. Pure.

Where waiting helps, the refusal says for how long.
"""

from __future__ import annotations

from collections.abc import Sequence

from taot_api.contract_error import ContractError, Reason
from taot_api.session_spec import SessionSpec
from taot_service.config import ServiceConfig
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


def check_room(spec: SessionSpec, others: Sequence[SessionSpec], limits: ServiceConfig) -> None:
    """Checks that one more session fits beside the others.

    Raises:
        ContractError: LIMIT_EXCEEDED, with the flag that raises the limit; with advice to retry where sessions that
            end make room.
    """
    of_job = [other for other in others if other.training_job == spec.training_job]
    wanted_bytes = held_bytes(spec)
    total_bytes, job_bytes = (wanted_bytes + sum(map(held_bytes, each)) for each in (others, of_job))
    most_bytes = min(limits.max_held_bytes, limits.max_held_bytes_per_job)
    for got, limit, flag, what in (
        (len(others) + 1, limits.max_sessions, "--max-sessions", "sessions"),
        (len(of_job) + 1, limits.max_sessions_per_job, "--max-sessions-per-job", "sessions of one training job"),
        (
            job_bytes,
            limits.max_held_bytes_per_job,
            "--max-held-bytes-per-job",
            "bytes of counts and plans over the sessions of one training job",
        ),
        (total_bytes, limits.max_held_bytes, "--max-held-bytes", "bytes of counts and plans over all sessions"),
    ):
        if got > limit:
            raise ContractError(
                Reason.LIMIT_EXCEEDED,
                f"this planner holds at most {limit} {what}, this would be {got}: start it with a larger {flag}, start"
                " another planner, or wait for sessions to end",
                metadata={"limit": str(limit), "got": str(got), "flag": flag},
                retry_seconds=None if wanted_bytes > most_bytes else SESSION_RETRY_SECONDS,
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
