"""Sessions as JSON shows them: one row each, and one session with its topology, layers and recent past."""

from __future__ import annotations

from dataclasses import dataclass

from taot_api.published_plan import PublishedPlan
from taot_planning import EMPTY_SLOT
from taot_service.session import Session
from taot_service.session_history import PlanPoint, ReportPoint


@dataclass(frozen=True, kw_only=True)
class PlanView:
    """The newest plan of a session."""

    version: int
    source_step: int
    source_micro_batch: int
    imbalance_before: float
    imbalance_after: float
    weighted_cost: float
    planning_seconds: float
    age_seconds: float


@dataclass(frozen=True, kw_only=True)
class SessionView:
    """One row of /v1/sessions."""

    session_id: str
    training_job: str
    group: str
    incarnation: int
    ranks: int
    layers: int
    algorithm: str
    reports: int
    rehearsals: int
    plans: int
    watches: int
    is_paused: bool
    age_seconds: float
    idle_seconds: float
    last_plan: PlanView | None


@dataclass(frozen=True, kw_only=True)
class SessionsView:
    """The answer of /v1/sessions."""

    planner_epoch: str
    release: str
    state: str
    """`warming up`, `ready` or `draining`."""
    sessions: list[SessionView]


@dataclass(frozen=True, kw_only=True)
class LevelView:
    """One level of the topology, innermost first."""

    name: str
    cost: float
    """Cost of a move whose smallest common domain is at this level, relative to the innermost."""
    bandwidth_bytes_per_second: int | None


@dataclass(frozen=True, kw_only=True)
class TopologyView:
    """Where the ranks sit and what they can take; lists have one entry per rank."""

    levels: list[LevelView]
    domains: list[list[int]]
    """The domain at each level, innermost first."""
    slots: list[int]
    speeds_milli: list[int]
    has_relay: bool


@dataclass(frozen=True, kw_only=True)
class LayerView:
    """One layer with the newest plan; None: not known yet."""

    index: int
    name: str
    experts: int
    top_k: int
    expert_size_bytes: int
    imbalance_static: float | None
    """Without guests, on the counts that the plan was made from."""
    imbalance_planned: float | None
    """With them, on the same counts."""
    imbalance_realised: float | None
    """As the ranks measured it last."""
    guests: int
    weighted_cost: float
    predicted_gain_seconds: float | None
    gates: list[str]


@dataclass(frozen=True, kw_only=True)
class SessionDetail:
    """The answer of /v1/sessions/{session_id}."""

    session: SessionView
    objective: str
    tolerance: float
    """The residual imbalance asked for."""
    effort: str
    topology: TopologyView
    layers: list[LayerView]
    reports: list[ReportPoint]
    """The last ones, oldest first."""
    plans: list[PlanPoint]
    """The last ones, oldest first."""


def view_session(session: Session, *, now_seconds: float, wall_seconds: float) -> SessionView:
    """One row.

    Args:
        session: the session.
        now_seconds: the clock of the sessions.
        wall_seconds: seconds since 1970.
    """
    spec = session.spec
    return SessionView(
        session_id=session.session_id,
        training_job=spec.training_job,
        group=spec.group,
        incarnation=spec.incarnation,
        ranks=spec.topology.num_ranks,
        layers=len(spec.layers),
        algorithm=spec.algorithm,
        reports=session.num_reports,
        rehearsals=session.num_rehearsals,
        plans=session.num_plans,
        watches=session.num_watches,
        is_paused=session.is_paused,
        age_seconds=now_seconds - session.open_seconds,
        idle_seconds=now_seconds - session.seen_seconds,
        last_plan=view_plan(session.newest_plan, wall_seconds=wall_seconds),
    )


def view_plan(plan: PublishedPlan | None, *, wall_seconds: float) -> PlanView | None:
    """The figures of a plan; None for none."""
    if plan is None:
        return None
    return PlanView(
        version=plan.identity.version,
        source_step=plan.source_step,
        source_micro_batch=plan.source_micro_batch,
        imbalance_before=plan.stats.imbalance_before,
        imbalance_after=plan.stats.imbalance_after,
        weighted_cost=plan.stats.weighted_cost,
        planning_seconds=plan.stats.planning_seconds,
        age_seconds=max(0.0, wall_seconds - plan.create_time_seconds),
    )


def view_detail(session: Session, *, now_seconds: float, wall_seconds: float) -> SessionDetail:
    """One session, see `view_session` for the clocks."""
    options = session.spec.options
    return SessionDetail(
        session=view_session(session, now_seconds=now_seconds, wall_seconds=wall_seconds),
        objective=options.objective,
        tolerance=options.tolerance_ppm / 1e6,
        effort=options.effort,
        topology=_view_topology(session),
        layers=[view_layer(session, index) for index in range(len(session.spec.layers))],
        reports=list(session.history.reports),
        plans=list(session.history.plans),
    )


def view_layer(session: Session, index: int) -> LayerView:
    """One layer of a session."""
    spec, plan = session.spec.layers[index], session.newest_plan
    stats = plan.layer_stats_L[index] if plan is not None and plan.layer_stats_L else None
    realised_L = session.history.realised_L
    return LayerView(
        index=index,
        name=spec.name,
        experts=spec.num_experts,
        top_k=spec.top_k,
        expert_size_bytes=spec.expert_size_bytes,
        imbalance_static=stats.imbalance_before if stats is not None else None,
        imbalance_planned=stats.imbalance_after if stats is not None else None,
        imbalance_realised=realised_L[index] if realised_L else None,
        guests=int((plan.guests_L[index] != EMPTY_SLOT).sum()) if plan is not None else 0,
        weighted_cost=stats.weighted_cost if stats is not None else 0.0,
        predicted_gain_seconds=stats.predicted_gain_seconds if stats is not None else None,
        gates=list(plan.gates_L[index]) if plan is not None and plan.gates_L else [],
    )


def _view_topology(session: Session) -> TopologyView:
    topology = session.spec.topology
    return TopologyView(
        levels=[
            LevelView(
                name=level.name,
                cost=level.transfer_cost_milli / 1000,
                bandwidth_bytes_per_second=level.bandwidth_bytes_per_second,
            )
            for level in topology.levels
        ],
        domains=topology.domains_RV.tolist(),
        slots=topology.slots_R.tolist(),
        speeds_milli=topology.speeds_R.tolist(),
        has_relay=topology.has_relay,
    )
